package consumer_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// A head that is asked for again while as much as may be held stands ready behind it must not
// wait for room that only its own end makes.
func TestLeaseLostAtTheHeadOfADeepLaneDoesNotBlockIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		s := newSource()
		s.publish(messages(500, "lane")...)
		r := &recorder{}
		r.do = func(ctx context.Context, m *consumer.Message) error {
			if m.ID == "m0" && r.times("m0") == 1 {
				cut.Store(true)
				<-ctx.Done()
				cut.Store(false)
				return ctx.Err()
			}
			return nil
		}
		c := newConsumer(t, s, newGuard(t, faults(func(m string) bool { return m == "Extend" && cut.Load() })), r.handle, &consumer.Options{Policy: consumer.Policy{Concurrency: 1}})
		stop := start(t, c)
		time.Sleep(10 * time.Minute)
		require.EqualValues(t, 500, c.Stats().Done)
		require.NoError(t, stop())
		var want []string
		for _, m := range messages(500, "") {
			want = append(want, m.ID)
		}
		require.Equal(t, want, r.all()[1:], "in order")
		s.kept(t)
	})
}

// The same, when the head's verdict was superseded.
func TestSupersededHeadOfADeepLaneDoesNotBlockIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		var stalled atomic.Bool
		s := newSource()
		s.publish(messages(500, "lane")...)
		r := &recorder{}
		r.do = func(context.Context, *consumer.Message) error {
			if len(r.all()) == 1 {
				time.Sleep(time.Second) // so that others are claimed meanwhile
				stalled.Store(true)
				return errBoom
			}
			return nil
		}
		f := faults(func(string) bool { return stalled.Load() })
		f.Store = mem
		c := newConsumer(t, s, newGuard(t, f), r.handle, &consumer.Options{Policy: consumer.Policy{Concurrency: 1}})
		stop := start(t, c)
		time.Sleep(time.Minute)
		other, err := newGuard(t, mem).Claim(t.Context(), work(message("m0", "")))
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, other.State)
		stalled.Store(false)
		time.Sleep(time.Minute)
		require.NoError(t, other.Release(t.Context()))
		time.Sleep(time.Minute)
		require.EqualValues(t, 500, c.Stats().Done)
		require.NoError(t, stop())
		s.kept(t)
	})
}

func TestUnnamedMessagesInALaneWaitForItsHeadAndThenRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		named := message("x", "lane")
		named.Headers = map[string]string{"message-id": "x"}
		s.publish(named)
		s.publish(messages(300, "lane")...) // nothing names these
		failed := 0
		var order []string
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			order = append(order, m.ID+string(m.Body))
			if m.ID == "x" {
				if failed++; failed < 3 {
					return errBoom
				}
			}
			return nil
		}, &consumer.Options{AllowNoID: true, MessageID: []consumer.IDRule{consumer.HeaderID("message-id")}})
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.EqualValues(t, 301, c.Stats().Done)
		require.NoError(t, stop())
		require.Equal(t, 3, failed)
		require.Equal(t, "body of m0", order[3], "behind the head")
		require.Len(t, order, 303)
		s.kept(t)
	})
}

// Once receiving pauses and everything held is gone, only the consumer itself can find out
// that the store is back.
func TestReceivingResumesThoughNothingIsLeftToAskTheStoreFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var calls atomic.Int64
		s := newSource()
		g := newGuard(t, pinged{faults(func(string) bool { calls.Add(1); return down.Load() }), func() error {
			if down.Load() {
				return errBoom
			}
			return nil
		}})
		c := newConsumer(t, s, g, (&recorder{}).handle, nil)
		stop := start(t, c)
		synctest.Wait()
		down.Store(true)
		s.publish(messages(20, "lane")...)
		time.Sleep(time.Minute)
		require.False(t, c.Stats().Receiving)
		require.EqualValues(t, 20, c.Stats().Waiting)
		s.lose() // everything is given back, and taken by a Receive that was under way
		time.Sleep(time.Minute)
		s.lose()
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().Waiting)
		require.False(t, c.Stats().Receiving)
		asked := calls.Load()
		time.Sleep(time.Hour)
		require.Less(t, calls.Load()-asked, int64(3000), "not in a hurry")
		down.Store(false)
		time.Sleep(10 * time.Second)
		require.True(t, c.Stats().Receiving)
		require.EqualValues(t, 20, c.Stats().Done)
		require.NoError(t, stop())
		s.kept(t)
	})
}

func TestCondemnedSuspectWhoseDeadLetterIsRefusedBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		s := newSource()
		s.fail = func(w string, m *consumer.Message) error {
			if w == "dead letter" {
				return errBoom
			}
			return nil
		}
		bad, first := message("bad", ""), message("first", "")
		crash(t, g, 1, false, first, bad)
		held := make(chan struct{})
		r := &recorder{do: func(_ context.Context, m *consumer.Message) error {
			if m.ID == "first" {
				<-held
			}
			return nil
		}}
		c := newConsumer(t, s, g, r.handle, nil)
		stop := start(t, c)
		s.publish(first, bad) // bad waits for its turn
		synctest.Wait()
		other, err := g.Claim(t.Context(), work(bad))
		require.NoError(t, err)
		require.NoError(t, other.Condemn(t.Context(), errBoom))
		require.NoError(t, other.Release(t.Context()))
		close(held)
		time.Sleep(time.Second)
		s.publish(messages(10, "")...)
		time.Sleep(time.Minute)
		require.EqualValues(t, 11, c.Stats().Done)
		require.NoError(t, stop())
		require.Zero(t, r.times("bad"))
		s.kept(t)
	})
}

func TestDrainDoesNotWaitForClaimsThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		f := faults(func(string) bool { return false })
		f.Before = func(context.Context, string) error { time.Sleep(3 * time.Second); return errBoom }
		c := newConsumer(t, s, newGuard(t, f), (&recorder{}).handle, nil)
		s.publish(messages(10, "lane")...)
		stop := start(t, c)
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, stop())
		require.Less(t, time.Since(begun), 10*time.Second)
		require.EqualValues(t, 10, c.Stats().GivenBack)
		s.kept(t)
	})
}

func TestGoexitAfterALostLeaseIsAFailureOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		s := newSource()
		s.publish(message("m0", ""))
		r := &recorder{}
		r.do = func(ctx context.Context, m *consumer.Message) error {
			if r.times("m0") == 1 {
				cut.Store(true)
				<-ctx.Done()
				cut.Store(false)
				return ctx.Err()
			}
			runtime.Goexit()
			return nil
		}
		c := newConsumer(t, s, newGuard(t, faults(func(m string) bool { return m == "Extend" && cut.Load() })), r.handle, nil)
		stop := start(t, c)
		time.Sleep(5 * time.Minute)
		require.EqualValues(t, 1, c.Stats().DeadLettered)
		require.Equal(t, 1+5, r.times("m0"))
		require.NoError(t, stop())
		s.kept(t)
	})
}

func TestGoexitInAHandlerWhoseLeaseIsLostCostsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		s := newSource()
		s.publish(message("m0", ""))
		var attempts []int
		c := newConsumer(t, s, newGuard(t, faults(func(m string) bool { return m == "Extend" && cut.Load() })), func(ctx context.Context, m *consumer.Message) error {
			if attempts = append(attempts, m.Attempt); len(attempts) == 1 {
				cut.Store(true)
				<-ctx.Done()
				cut.Store(false)
				runtime.Goexit()
			}
			return nil
		}, nil)
		stop := start(t, c)
		time.Sleep(5 * time.Minute)
		require.NoError(t, stop())
		require.Equal(t, []int{1, 1}, attempts)
		require.Equal(t, []string{"m0"}, s.said("ack"))
	})
}
