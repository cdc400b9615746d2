package kafka_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/internal/conformance"
	"github.com/idemq/idemq/outbox"
)

func TestSourceKeepsTheRulesOnTheFake(t *testing.T) {
	consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
		c := fakeKafka(tb, 2)
		return configOf(tb, world{brokers: c.ListenAddrs(), topic: "t", group: "g"})
	})
}

func TestSourceKeepsTheRulesOnARealBroker(t *testing.T) {
	report := conformance.Column(t, "consumertest.TestSource", "Kafka")
	consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
		w := realWorld(tb)
		w.create(tb, w.topic, 2, nil)
		c := configOf(tb, w)
		c.Report = report
		return c
	})
}

func configOf(tb testing.TB, w world) consumertest.Config {
	publisher := newPublisher(tb, w.brokers, nil)
	var mu sync.Mutex
	var open []*kafka.Source
	var dead []consumer.Message
	graves := w.client(tb, kgo.ConsumeTopics(w.topic+".dlt"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(10*time.Millisecond))
	return consumertest.Config{
		Open: func(tb testing.TB) consumer.Source {
			s := w.source(tb, func(o *kafka.SourceOptions) { o.LaneByKey = true })
			mu.Lock()
			defer mu.Unlock()
			open = append(open, s)
			return s
		},
		Publish: func(tb testing.TB, ms ...consumer.Message) {
			out := make([]outbox.Message, len(ms))
			for i, m := range ms {
				out[i] = outbox.Message{ID: m.ID, Topic: w.topic, Key: m.Key, Headers: m.Headers, Body: m.Body}
			}
			require.NoError(tb, publisher.SendAsIs(within(tb, eventually), out))
		},
		DeadLetters: func(tb testing.TB) []consumer.Message {
			ctx, cancel := context.WithTimeout(tb.Context(), 200*time.Millisecond)
			defer cancel()
			graves.ForceMetadataRefresh()
			graves.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				m := consumer.Message{Key: string(r.Key), Body: r.Value, Headers: map[string]string{}}
				for _, h := range r.Headers {
					m.Headers[h.Key] = string(h.Value)
				}
				dead = append(dead, m)
			})
			return dead
		},
		Cut: func(testing.TB) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range open {
				s.Cut()
			}
		},
		Ordered: true,
		MaxBody: 1_000_000,
	}
}
