package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestStoreDownRunsNothingAcknowledgesNothingAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		b := kafkaLike()
		b.MaxUnsettled = 5
		b.Publish(messages(20, "")...)
		r := &recorder{}
		c := newConsumer(t, b, newGuard(t, faults(func(string) bool { return down.Load() })), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Hour)
		s := c.Stats()
		require.Zero(t, s.Done+s.Running)
		require.EqualValues(t, 5, s.Received)
		require.EqualValues(t, 5, s.Waiting)
		require.False(t, s.Receiving)
		down.Store(false)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 20, c.Stats().Done)
		require.True(t, c.Stats().Receiving)
		require.NoError(t, stop())
		require.Len(t, r.all(), 20)
	})
}

func TestVerdictsWaitForTheStoreAndNothingRunsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		b := kafkaLike()
		b.Publish(messages(10, "lane")...)
		r := &recorder{do: func(context.Context, *consumer.Message) error { down.Store(true); return nil }}
		c := newConsumer(t, b, newGuard(t, faults(func(m string) bool { return m == "Finish" && down.Load() })), r.handle, nil)
		stop := start(t, c)
		time.Sleep(15 * time.Second)
		require.Zero(t, c.Stats().Done, "without the store's answer there is no ack")
		down.Store(false)
		r.do = nil
		time.Sleep(10 * time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 10, c.Stats().Done)
		require.Len(t, r.all(), 10)
	})
}

func TestNoHandlerStartsThatCouldOutlastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := consumertest.NewBroker()
		b.Deadline = 3 * time.Minute
		b.Publish(messages(10, "lane")...)
		begun := make(map[string]time.Time)
		c := newConsumer(t, b, newGuard(t, memstore.New()), func(ctx context.Context, m *consumer.Message) error {
			begun[m.ID] = time.Now()
			time.Sleep(50 * time.Second) // one after the other: most wait past their deadlines
			return nil
		}, nil)
		stats := b.Drain(t, c)
		require.EqualValues(t, 10, stats.Done)
		require.Positive(t, stats.Retried+stats.GivenBack)
		require.Len(t, begun, 10)
	})
}

func TestHandlerThatIgnoresItsContextEndsAsAZombieBeforeItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.hold, s.deadline = 5*time.Second, 4*time.Minute
		s.publish(messages(2, "lane")...)
		given := time.Now()
		begun := make(chan time.Time, 10)
		release := make(chan struct{})
		defer close(release)
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			begun <- time.Now()
			if m.ID == "m0" {
				time.Sleep(119500 * time.Millisecond) // the next one could still end by itself, but not as a zombie
				return nil
			}
			<-release
			return nil
		}, &consumer.Options{Policy: consumer.Policy{HandlerTimeout: 2 * time.Minute}})
		stop := start(t, c)
		time.Sleep(150 * time.Second)
		require.Equal(t, []string{"m1"}, s.said("retry"), "postponed, not begun")
		require.Len(t, begun, 2)
		require.Equal(t, given, <-begun)
		require.GreaterOrEqual(t, (<-begun).Sub(given), 119500*time.Millisecond+time.Second, "on its next delivery, which has time again")
		for _, w := range s.all() {
			if w.what == "retry" {
				require.ErrorIs(t, w.cause, dedup.ErrInProgress)
				require.Positive(t, w.after, "at once it would only be too late again")
			}
		}
		require.NoError(t, stop())
		s.kept(t)
	})
}

func TestLostSessionLetsGoOfWhatWasNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		b.Publish(messages(50, "lane")...)
		release := make(chan struct{})
		r := &recorder{}
		r.do = func(context.Context, *consumer.Message) error { <-release; return nil }
		c := newConsumer(t, b, newGuard(t, memstore.New()), r.handle, nil)
		stop := start(t, c)
		synctest.Wait()
		b.Cut()
		synctest.Wait()
		require.EqualValues(t, 1, c.Stats().Running, "what runs may end")
		close(release)
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())
		var want []string
		for _, m := range messages(50, "") {
			want = append(want, m.ID)
		}
		require.Equal(t, want, r.all(), "in order, and the second delivery of what ran is a duplicate")
		require.Equal(t, c.Stats().Received, sums(c.Stats()))
	})
}

func TestRedeliveryOfEverythingRunsNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		g := newGuard(t, memstore.New())
		r := &recorder{}
		b.Publish(messages(100, "lane")...)
		b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		b.Redeliver()
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.EqualValues(t, 100, stats.Duplicates)
		require.Len(t, r.all(), 100)
	})
}

func TestFailOpenGoesOnWhenTheStoreGoesDownInMidRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var unprotected atomic.Int64
		g, err := dedup.New("app", faults(func(string) bool { return down.Load() }), &dedup.Options{FailOpen: true, Logger: quiet, Observe: func(e dedup.Event) {
			if e.Cause == "unprotected" {
				unprotected.Add(int64(e.N))
			}
		}})
		require.NoError(t, err)
		b := kafkaLike()
		b.MaxUnsettled = 8
		b.Publish(messages(500, "lane")...)
		r := &recorder{}
		r.do = func(_ context.Context, m *consumer.Message) error {
			if m.ID == "m100" {
				down.Store(true)
			}
			return nil
		}
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.EqualValues(t, 500, stats.Done)
		require.Len(t, r.all(), 500)
		require.Greater(t, unprotected.Load(), int64(300))
	})
}

// More outcomes wait than one call takes, two calls are under way, and both fail: what the first
// one puts back must not lie over what the second one has.
func TestOutcomesOfCallsThatFailSideBySideAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var calls atomic.Int64
		f := &deduptest.Faulty{Store: memstore.New(), Before: func(_ context.Context, method string) error {
			if method != "Finish" {
				return nil
			}
			n := calls.Add(1)
			time.Sleep(time.Duration(10+n%3) * time.Millisecond)
			if time.Since(begun) < 10*time.Second {
				return errBoom
			}
			return nil
		}}
		b := newSource()
		b.publish(messages(4000, "")...)
		r := &recorder{}
		c := newConsumer(t, b, newGuard(t, f), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().Waiting)
		require.EqualValues(t, 4000, c.Stats().Done)
		require.Len(t, r.all(), 4000)
		require.NoError(t, stop())
		b.kept(t)
	})
}
