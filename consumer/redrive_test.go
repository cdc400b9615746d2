package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup/memstore"
)

// into is a Redriver that publishes to a Broker what fail has nothing against.
type into struct {
	*consumertest.Broker
	fail func(m *consumer.Message) error
}

func (to into) Redrive(_ context.Context, m *consumer.Message) error {
	if to.fail != nil {
		if err := to.fail(m); err != nil {
			return err
		}
	}
	to.Publish(*m)
	return nil
}

// grave has every message of orders dead-lettered, in a broker of their own.
func grave(t *testing.T, orders *consumertest.Broker, ms ...consumer.Message) *consumertest.Broker {
	orders.Publish(ms...)
	s := memstore.New()
	orders.Drain(t, newConsumer(t, orders, newGuard(t, s), func(context.Context, *consumer.Message) error { return consumer.Permanent(errBoom) }, nil))
	b := kafkaLike()
	b.Publish(orders.DeadLetters()...)
	return b
}

func TestRedriveSendsBackWhatMatchesAndKeepsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := consumertest.NewBroker()
		graves := grave(t, orders, messages(20, "lane")...)
		begun := time.Now()
		n, err := consumer.Redrive(t.Context(), graves, into{Broker: orders}, func(m *consumer.Message) bool { return m.ID == "m3" || m.ID == "m11" })
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, 5*time.Second, time.Since(begun), "it ends when nothing has come for so long")

		var left []string
		n, err = consumer.Redrive(t.Context(), graves, into{Broker: orders}, func(m *consumer.Message) bool {
			left = append(left, m.ID)
			return false
		})
		require.NoError(t, err)
		require.Zero(t, n)
		require.Len(t, left, 18)
		require.NotContains(t, left, "m3")
	})
}

func TestRedriveTwiceRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders, g := consumertest.NewBroker(), newGuard(t, memstore.New())
		orders.Publish(messages(3, "lane")...)
		orders.Drain(t, newConsumer(t, orders, g, func(context.Context, *consumer.Message) error { return consumer.Permanent(errBoom) }, nil))
		for range 2 {
			graves := kafkaLike()
			graves.Publish(orders.DeadLetters()...)
			n, err := consumer.Redrive(t.Context(), graves, into{Broker: orders}, nil)
			require.NoError(t, err)
			require.Equal(t, 3, n)
		}
		r := &recorder{}
		stats := orders.Drain(t, newConsumer(t, orders, g, r.handle, nil))
		require.ElementsMatch(t, []string{"m0", "m1", "m2"}, r.all())
		require.EqualValues(t, 3, stats.Duplicates)
	})
}

// again is a Redriver whose consumer gives each message up at once: its dead letter is back before the redrive is over.
type again struct{ graves *consumertest.Broker }

func (a again) Redrive(_ context.Context, m *consumer.Message) error {
	dead := *m
	dead.Headers = m.DeadLetterHeaders(m.Redrive+1, errBoom)
	dead.Headers[consumer.OriginHeader] = m.Headers[consumer.OriginHeader]
	a.graves.Publish(dead)
	return nil
}

func TestRedrivePassesOverWhatFailsAgainMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		graves := grave(t, consumertest.NewBroker(), message("poison", ""))
		n, err := consumer.Redrive(t.Context(), graves, again{graves}, nil)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = consumer.Redrive(t.Context(), graves, again{graves}, nil)
		require.NoError(t, err)
		require.Equal(t, 1, n, "it was kept for the next one")
	})
}

func TestRedriveThatCannotSendLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := consumertest.NewBroker()
		graves := grave(t, orders, messages(10, "lane")...)
		full := into{Broker: orders, fail: func(m *consumer.Message) error {
			if m.ID == "m4" {
				return errBoom
			}
			return nil
		}}
		n, err := consumer.Redrive(t.Context(), graves, full, nil)
		require.ErrorIs(t, err, errBoom)
		require.Less(t, n, 10)
		rest, err := consumer.Redrive(t.Context(), graves, into{Broker: orders}, nil)
		require.NoError(t, err)
		require.Equal(t, 10, n+rest)
	})
}

func TestRedriveWhoseAckIsRefusedSaysThatTheDeadLetterStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := consumertest.NewBroker()
		graves := grave(t, orders, message("a", ""))
		graves.Fail = func(word string, _ *consumer.Message) error {
			if word == "Ack" {
				return errBoom
			}
			return nil
		}
		n, err := consumer.Redrive(t.Context(), graves, into{Broker: orders}, nil)
		require.Equal(t, 1, n)
		require.ErrorIs(t, err, errBoom)
		require.ErrorContains(t, err, "its dead letter stays")
	})
}

// joining is a source whose session takes a while, as that of a group that forms.
type joining struct {
	*consumertest.Broker
	at time.Time
}

func (j joining) Connected() bool { return !time.Now().Before(j.at) }

func (j joining) Receive(ctx context.Context, most int) ([]consumer.Delivery, error) {
	t := time.NewTimer(time.Until(j.at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.C:
		return j.Broker.Receive(ctx, most)
	}
}

func TestRedriveWaitsForASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := consumertest.NewBroker()
		graves := grave(t, orders, message("a", ""))
		n, err := consumer.Redrive(t.Context(), joining{graves, time.Now().Add(time.Minute)}, into{Broker: orders}, nil)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		n, err = consumer.Redrive(ctx, joining{grave(t, orders, message("b", "")), time.Now().Add(time.Minute)}, into{Broker: orders}, nil)
		require.NoError(t, err, "ctx ends it")
		require.Zero(t, n)
	})
}

func TestRedriveRefusesWhatCannotBeMeant(t *testing.T) {
	_, err := consumer.Redrive(t.Context(), nil, into{}, nil)
	require.ErrorContains(t, err, "deadLetters is nil")
	_, err = consumer.Redrive(t.Context(), kafkaLike(), nil, nil)
	require.ErrorContains(t, err, "Redriver is nil")
	bad := kafkaLike()
	bad.HandlerLimit = -1
	_, err = consumer.Redrive(t.Context(), bad, into{}, nil)
	require.ErrorContains(t, err, fmt.Sprint("HandlerLimit ", time.Duration(-1)))
}
