package consumer_test

import (
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// redriven is a message of topic orders as it is there after a redrive for scope.
func redriven(scope string) consumer.Message {
	m := consumer.Message{Topic: "orders", Body: []byte("body")}
	m.Headers = (&consumer.Message{ID: "order-7", Topic: "orders", Scope: scope}).DeadLetterHeaders(1, errBoom)
	delete(m.Headers, consumer.CauseHeader)
	return m
}

func TestRedriveRunsOnlyInTheGroupThatGaveTheMessageUp(t *testing.T) {
	own := redriven("test")
	other := redriven("kafka/billing")
	nameless := redriven("kafka/billing")
	delete(nameless.Headers, consumer.IDHeader)
	dead := redriven("kafka/billing") // in the topic of dead letters, which somebody consumes
	dead.Topic = "orders.dlt"
	passedOn := redriven("kafka/billing") // by a handler, headers and all, to another topic
	passedOn.Topic = "invoices"
	older := redriven("kafka/billing") // by a tool that leaves the origin out: whose it is, is not certain
	older.Headers = maps.Clone(older.Headers)
	delete(older.Headers, consumer.OriginHeader)
	for name, c := range map[string]struct {
		m    consumer.Message
		o    consumer.Options
		runs bool
	}{
		"its own":                             {own, consumer.Options{}, true},
		"another group's":                     {other, consumer.Options{}, false},
		"another group's, without a name":     {nameless, consumer.Options{AllowNoID: true}, false},
		"its own under a former name":         {other, consumer.Options{FormerScopes: []string{"kafka/old", "kafka/billing"}}, true},
		"a dead letter itself":                {dead, consumer.Options{}, true},
		"a redriven message's headers":        {passedOn, consumer.Options{}, true},
		"a redrive that names no origin":      {older, consumer.Options{}, true},
		"another group's, unnamed and buried": {nameless, consumer.Options{MessageID: []consumer.IDRule{consumer.HeaderID("x")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				settled := make(map[string]int)
				g, err := dedup.New("app", memstore.New(), &dedup.Options{Logger: quiet, Observe: func(ev dedup.Event) {
					mu.Lock()
					defer mu.Unlock()
					if ev.Name == "settle" {
						settled[ev.Cause] += ev.N
					}
				}})
				require.NoError(t, err)
				s, r := newSource(), &recorder{}
				co := newConsumer(t, s, g, r.handle, &c.o)
				s.publish(c.m)
				stop := start(t, co)
				time.Sleep(time.Second)
				require.NoError(t, stop())
				s.kept(t)
				require.Len(t, s.said("ack"), 1)
				require.Empty(t, s.said("dead letter"))
				if c.runs {
					require.Len(t, r.all(), 1)
					require.EqualValues(t, 1, co.Stats().Done)
					return
				}
				require.Empty(t, r.all())
				require.EqualValues(t, 1, co.Stats().Duplicates)
				require.Equal(t, map[string]int{"redrive_elsewhere": 1}, settled)
			})
		})
	}
}

func TestRedriveForAnotherGroupIsLoggedWithoutFloodingTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		g, err := dedup.New("app", memstore.New(), &dedup.Options{Logger: out.logger()})
		require.NoError(t, err)
		s, r := newSource(), &recorder{}
		stop := start(t, newConsumer(t, s, g, r.handle, nil))
		for range 100 {
			s.publish(redriven("kafka/billing"))
		}
		synctest.Wait()
		require.Equal(t, 1, out.count("Options.FormerScopes"))
		time.Sleep(10 * time.Second)
		s.publish(redriven("kafka/billing"))
		synctest.Wait()
		require.Equal(t, 2, out.count("Options.FormerScopes"))
		require.Equal(t, 1, out.count("and_more=99"))
		require.NoError(t, stop())
	})
}
