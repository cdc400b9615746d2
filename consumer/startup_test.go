package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestSettingsThatCannotBeMeantAreRefusedByName(t *testing.T) {
	g := newGuard(t, memstore.New())
	h := (&recorder{}).handle
	limited := consumertest.NewBroker()
	limited.HandlerLimit = 15 * time.Minute
	inMemory := kafkaLike()
	inMemory.HandlerLimit = 15 * time.Minute
	for _, c := range []struct {
		source consumer.Source
		guard  *dedup.Guard
		h      consumer.Handler
		o      consumer.Options
		want   []string
	}{
		{nil, g, h, consumer.Options{}, []string{"source is nil"}},
		{kafkaLike(), nil, h, consumer.Options{}, []string{"guard is nil"}},
		{kafkaLike(), g, nil, consumer.Options{}, []string{"handler is nil"}},
		{kafkaLike(), g, h, consumer.Options{DrainTimeout: -1}, []string{"DrainTimeout", "negative"}},
		{kafkaLike(), g, h, consumer.Options{Retention: -1}, []string{"Retention", "negative"}},
		{kafkaLike(), g, h, consumer.Options{Retention: time.Minute}, []string{"Retention 1m0s", "retry window", "of test", "would run again", "raise it to"}},
		{kafkaLike(), g, h, consumer.Options{Policy: consumer.Policy{MaxAttempts: -1}}, []string{"MaxAttempts -1"}},
		{kafkaLike(), g, h, consumer.Options{Policy: consumer.Policy{MaxCrashes: -1}}, []string{"MaxCrashes -1"}},
		{kafkaLike(), g, h, consumer.Options{Policy: consumer.Policy{Concurrency: -1}}, []string{"Concurrency -1"}},
		{kafkaLike(), g, h, consumer.Options{Policy: consumer.Policy{HandlerTimeout: -1}}, []string{"HandlerTimeout", "negative"}},
		{kafkaLike(), g, h, consumer.Options{Policy: consumer.Policy{Backoff: []time.Duration{1, -1}}}, []string{"Backoff", "negative"}},
		{limited, g, h, consumer.Options{Policy: consumer.Policy{HandlerTimeout: 20 * time.Minute}}, []string{"HandlerTimeout 20m0s", "limit 15m0s", "second copy"}},
		{limited, g, h, consumer.Options{Policy: consumer.Policy{HandlerTimeout: 15 * time.Minute}}, []string{"HandlerTimeout 15m0s", "less than 15s below", "limit 15m0s", "in time"}},
		{inMemory, g, h, consumer.Options{Policy: consumer.Policy{Backoff: []time.Duration{time.Second, 14 * time.Minute, time.Minute}}}, []string{"Backoff 14m0s", "HandlerTimeout 1m0s", "limit 15m0s", "take them back"}},
		{kafkaLike(), g, h, consumer.Options{MessageID: []consumer.IDRule{{}}}, []string{"MessageID[0]", "Of function"}},
		{kafkaLike(), g, h, consumer.Options{Middleware: []func(consumer.Handler) consumer.Handler{nil}}, []string{"Middleware", "nil"}},
	} {
		_, err := consumer.New(c.source, c.guard, c.h, &c.o)
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestTimeoutThatFitsTheLimitIsTaken(t *testing.T) {
	b := consumertest.NewBroker()
	b.HandlerLimit = 15 * time.Minute
	newConsumer(t, b, newGuard(t, memstore.New()), (&recorder{}).handle, &consumer.Options{Policy: consumer.Policy{HandlerTimeout: 14*time.Minute + 45*time.Second}})
}

func TestRetentionFollowsTheRetryWindow(t *testing.T) {
	c := newConsumer(t, kafkaLike(), newGuard(t, memstore.New()), (&recorder{}).handle, nil)
	p := c.Plan()
	require.Greater(t, p.Retention, p.Window)
	require.Contains(t, p.Why, "crashes x (lease 30s")
}

func TestVerdictsAreRememberedForThePlansRetention(t *testing.T) {
	for _, declared := range []time.Duration{0, 200 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource()
			s.publish(message("done", ""), message("dead", ""), message("later", ""))
			g := newGuard(t, memstore.New())
			c := newConsumer(t, s, g, func(_ context.Context, m *consumer.Message) error {
				switch m.ID {
				case "dead":
					return consumer.Permanent(errBoom)
				case "later":
					return consumer.RetryAfter(time.Hour, errBoom)
				}
				return nil
			}, &consumer.Options{Retention: declared})
			want := c.Plan().Retention
			require.NotEqual(t, g.Options().Retention, want, "the Guard's own would be too short, or go unnoticed here")
			now := time.Now()
			stop := start(t, c)
			synctest.Wait()
			for id, state := range map[string]dedup.State{"done": dedup.Done, "dead": dedup.Failed, "later": dedup.Retryable} {
				r := inspect(t, g, id)
				require.Equal(t, state, r.State)
				require.WithinDuration(t, now.Add(want), r.Expires, time.Second, id)
			}
			require.NoError(t, stop())
			s.kept(t)
		})
	}
}

// pinged is a store whose Ping can be told what to say.
type pinged struct {
	dedup.Store
	say func() error
}

func (p pinged) Ping(context.Context) error { return p.say() }

func TestStoreThatIsNotThereIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		g := newGuard(t, pinged{memstore.New(), func() error {
			if up.Load() {
				return nil
			}
			return errBoom
		}})
		b := kafkaLike()
		b.Publish(message("m1", ""))
		c := newConsumer(t, b, g, (&recorder{}).handle, nil)
		stop := start(t, c)
		time.Sleep(time.Hour)
		require.Zero(t, c.Stats().Received)
		require.False(t, c.Stats().Receiving)
		up.Store(true)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, c.Stats().Done)
		require.True(t, c.Stats().Receiving)
		require.NoError(t, stop())
	})
}

func TestStoreThatCannotBeTrustedEndsTheStart(t *testing.T) {
	g := newGuard(t, pinged{memstore.New(), func() error { return fmt.Errorf("%w: maxmemory-policy", dedup.ErrUnsafeStore) }})
	b := kafkaLike()
	b.Publish(message("m1", ""))
	c := newConsumer(t, b, g, (&recorder{}).handle, nil)
	err := c.Run(t.Context())
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	require.ErrorContains(t, err, "maxmemory-policy")
	require.Zero(t, c.Stats().Received)
}

// learning is a source that finds a contradiction once it has asked the broker.
type learning struct {
	*consumertest.Broker
	asked bool
}

func (l *learning) Plan(p consumer.Policy) (consumer.Plan, error) {
	if l.asked {
		return consumer.Plan{}, errors.New("the broker's limit contradicts HandlerTimeout")
	}
	return l.Broker.Plan(p)
}

func (l *learning) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	ds, err := l.Broker.Receive(ctx, max)
	l.asked = true
	return ds, err
}

func TestContradictionReadFromTheBrokerEndsTheRunBeforeTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &learning{Broker: kafkaLike()}
		l.Publish(message("m1", ""))
		r := &recorder{}
		c := newConsumer(t, l, newGuard(t, memstore.New()), r.handle, nil)
		require.ErrorContains(t, c.Run(t.Context()), "contradicts HandlerTimeout")
		require.Empty(t, r.all())
		require.EqualValues(t, 1, c.Stats().GivenBack)
	})
}
