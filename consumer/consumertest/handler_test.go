package consumertest_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// The tests here are what the package doc tells users to write.

// shop is a handler's world: an application that charges orders.
type shop struct {
	broker  *consumertest.Broker
	store   dedup.Store
	calls   int
	charged map[string]int
	fail    func(call int, m *consumer.Message) error
}

func newShop() *shop {
	return &shop{
		broker: consumertest.NewBroker(), store: memstore.New(), charged: make(map[string]int),
		fail: func(int, *consumer.Message) error { return nil },
	}
}

func (s *shop) handle(_ context.Context, m *consumer.Message) error {
	s.calls++
	if err := s.fail(s.calls, m); err != nil {
		return err
	}
	s.charged[m.ID]++
	return nil
}

// run starts the application, until there is nothing left to do. One handler runs at a time.
func (s *shop) run(t *testing.T) consumer.Stats {
	t.Helper()
	guard, err := dedup.New("billing", s.store, &dedup.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c, err := consumer.New(s.broker, guard, s.handle, &consumer.Options{Policy: consumer.Policy{Concurrency: 1}})
	require.NoError(t, err)
	return s.broker.Drain(t, c)
}

func order(id string) consumer.Message {
	return consumer.Message{ID: id, Body: []byte(`{"cents":100}`)}
}

func inBubble(t *testing.T, f func(t *testing.T, s *shop)) {
	synctest.Test(t, func(t *testing.T) { f(t, newShop()) })
}

func TestProducersDuplicateIsHandledOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *shop) {
		s.fail = func(call int, _ *consumer.Message) error {
			if call == 1 {
				return errors.New("card terminal busy")
			}
			return nil
		}
		s.broker.Publish(order("order-1"), order("order-1"))
		stats := s.run(t)
		require.Equal(t, map[string]int{"order-1": 1}, s.charged)
		require.EqualValues(t, 1, stats.Duplicates)
		require.Empty(t, s.broker.DeadLetters())
	})
}

func TestRedeliveryAfterARestartIsADuplicate(t *testing.T) {
	for _, hold := range []time.Duration{0, -1} {
		inBubble(t, func(t *testing.T, s *shop) {
			s.broker.Hold = hold
			s.broker.Publish(order("order-1"), order("order-2"))
			require.EqualValues(t, 2, s.run(t).Done)
			s.broker.Redeliver()
			stats := s.run(t)
			require.EqualValues(t, 2, stats.Duplicates)
			require.Zero(t, stats.Done)
			require.Equal(t, map[string]int{"order-1": 1, "order-2": 1}, s.charged)
		})
	}
}

func TestPoisonMessageIsDeadLetteredAndCanBeRedriven(t *testing.T) {
	inBubble(t, func(t *testing.T, s *shop) {
		s.fail = func(int, *consumer.Message) error { return consumer.Permanent(errors.New("unknown currency")) }
		s.broker.Publish(order("order-1"))
		require.EqualValues(t, 1, s.run(t).DeadLettered)
		dead := s.broker.DeadLetters()
		require.Len(t, dead, 1)
		require.Contains(t, dead[0].DeadCause, "unknown currency")
		require.Equal(t, 1, dead[0].Redrive)
		require.Empty(t, s.charged)

		s.fail = func(int, *consumer.Message) error { return nil } // repaired
		s.broker.Publish(dead...)
		require.EqualValues(t, 1, s.run(t).Done)
		require.Equal(t, map[string]int{"order-1": 1}, s.charged)
	})
}

func TestMessagesThatAHandlerPublishesAreDrained(t *testing.T) {
	inBubble(t, func(t *testing.T, s *shop) {
		s.fail = func(_ int, m *consumer.Message) error {
			if m.ID == "order-1" {
				s.broker.Publish(order(m.ChildID(1)))
			}
			return nil
		}
		s.broker.Publish(order("order-1"))
		require.EqualValues(t, 2, s.run(t).Done)
		require.Len(t, s.charged, 2)
	})
}

func TestRedeliveryToARunningConsumer(t *testing.T) {
	inBubble(t, func(t *testing.T, s *shop) {
		s.fail = func(call int, _ *consumer.Message) error {
			if call == 2 {
				s.broker.Redeliver() // of the first one, acknowledged or not, and of this one
			}
			return nil
		}
		s.broker.Publish(order("order-1"), order("order-2"))
		s.run(t)
		require.Equal(t, map[string]int{"order-1": 1, "order-2": 1}, s.charged)
	})
}

func TestDrainFailsWhenTheConsumerDoesNotFinish(t *testing.T) {
	inBubble(t, func(t *testing.T, s *shop) {
		guard, err := dedup.New("billing", s.store, &dedup.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		c, err := consumer.New(s.broker, guard, s.handle, nil)
		require.NoError(t, err)
		require.Zero(t, s.broker.Drain(t, c).Received, "there is nothing to do")

		s.broker.Publish(order("order-1"))
		failed, _, said := consumertest.Recorded(t, func(tb testing.TB) { s.broker.Drain(tb, c) })
		require.True(t, failed)
		require.Contains(t, said, "Run was called before", "a Consumer runs once")

		never := func(context.Context, *consumer.Message) error { return errors.New("out of stock") }
		patient := &consumer.Options{Policy: consumer.Policy{MaxAttempts: 100, Backoff: []time.Duration{time.Hour}}}
		c, err = consumer.New(s.broker, guard, never, patient)
		require.NoError(t, err)
		failed, _, said = consumertest.Recorded(t, func(tb testing.TB) { s.broker.Drain(tb, c) })
		require.True(t, failed)
		require.Contains(t, said, "1 messages are unsettled after 24h0m0s")
	})
}
