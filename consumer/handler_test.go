package consumer_test

import (
	"context"
	"errors"
	"runtime"
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

func TestAFailureIsTriedAgainAfterItsBackoffAndThenDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		var at []time.Duration
		begun := time.Now()
		attempts := []int{}
		r := &recorder{do: func(_ context.Context, m *consumer.Message) error {
			at, attempts = append(at, time.Since(begun)), append(attempts, m.Attempt)
			return errBoom
		}}
		b.Publish(message("m1", "lane"), message("m2", "lane"))
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), func(ctx context.Context, m *consumer.Message) error {
			if m.ID == "m2" {
				return nil
			}
			return r.handle(ctx, m)
		}, &consumer.Options{Policy: consumer.Policy{MaxAttempts: 5, Backoff: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}}}))
		require.Equal(t, []int{1, 2, 3, 4, 5}, attempts)
		for i, want := range []time.Duration{0, 1, 3, 7, 11} {
			require.InDelta(t, (want * time.Second).Seconds(), at[i].Seconds(), 0.1)
		}
		require.EqualValues(t, 1, stats.Done)
		require.EqualValues(t, 1, stats.DeadLettered)
		require.Contains(t, b.DeadLetters()[0].DeadCause, "boom")
	})
}

func TestRetryAfterSaysWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, b := range []*consumertest.Broker{kafkaLike(), consumertest.NewBroker()} {
			begun := time.Now()
			r := &recorder{}
			r.do = func(_ context.Context, m *consumer.Message) error {
				if r.times(m.ID) == 1 {
					return consumer.RetryAfter(time.Hour, errBoom)
				}
				return nil
			}
			b.Publish(message("m1", ""))
			require.EqualValues(t, 1, b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), r.handle, patient)).Done)
			require.InDelta(t, 1, time.Since(begun).Hours(), 0.01)
		}
	})
}

func TestPanicsAndGoexitsAreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		r := &recorder{}
		r.do = func(_ context.Context, m *consumer.Message) error {
			if r.times(m.ID) == 1 {
				if m.ID == "m1" {
					panic("ouch")
				}
				runtime.Goexit()
			}
			return nil
		}
		b.Publish(messages(3, "lane")...)
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), r.handle, nil))
		require.EqualValues(t, 3, stats.Done)
		require.Equal(t, []string{"m0", "m0", "m1", "m1", "m2", "m2"}, r.all(), "in order")
	})
}

func TestWhatAHandlerDoesToItsMessageStaysItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		m := message("m1", "")
		m.Headers = map[string]string{"a": "1"}
		b.Publish(m)
		b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			require.Equal(t, "body of m1", string(m.Body))
			require.Equal(t, "1", m.Headers["a"])
			clear(m.Body)
			m.Headers["a"], m.ID, m.Redrive = "2", "other", 7
			return errBoom
		}, nil))
		dead := b.DeadLetters()
		require.Len(t, dead, 1)
		require.Equal(t, "body of m1", string(dead[0].Body))
		require.Equal(t, "1", dead[0].Headers["a"])
		require.Equal(t, "m1", dead[0].Headers[consumer.IDHeader])
	})
}

func TestTimeoutEndsTheHandlersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		b.Publish(message("m1", ""))
		r := &recorder{do: func(ctx context.Context, m *consumer.Message) error {
			_, has := ctx.Deadline()
			require.True(t, has)
			<-ctx.Done()
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			return ctx.Err()
		}}
		b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), r.handle, &consumer.Options{Policy: consumer.Policy{HandlerTimeout: time.Second, MaxAttempts: 2}}))
		require.Equal(t, 2, r.times("m1"), "a timeout is an attempt")
		require.Len(t, b.DeadLetters(), 1)
	})
}

func TestLostLeaseCancelsTheHandlerAndCostsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var cut atomic.Bool
		f := &deduptest.Faulty{Store: s, Before: func(context.Context, string) error {
			if cut.Load() {
				return errBoom
			}
			return nil
		}}
		b := kafkaLike()
		b.Publish(message("m1", ""))
		var attempts []int
		c := newConsumer(t, b, newGuard(t, f), func(ctx context.Context, m *consumer.Message) error {
			if attempts = append(attempts, m.Attempt); len(attempts) == 1 {
				cut.Store(true)
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), dedup.ErrLeaseLost)
				return ctx.Err()
			}
			return nil
		}, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().Done)
		require.False(t, c.Stats().Receiving)
		cut.Store(false)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, c.Stats().Done)
		require.NoError(t, stop())
		require.Equal(t, []int{1, 1}, attempts)
	})
}

// The first owner says Permanent, stalls past its lease before that is written, and the
// successor completes: the stale word must neither bury the message nor acknowledge it.
func TestStaleVerdictsYieldToTheSuccessors(t *testing.T) {
	for name, word := range map[string]error{"permanent": consumer.Permanent(errBoom), "failed": errBoom, "done": nil} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			var stalled atomic.Bool
			f := &deduptest.Faulty{Store: s, Before: func(context.Context, string) error {
				if stalled.Load() {
					return errBoom
				}
				return nil
			}}
			b := kafkaLike()
			b.Publish(message("m1", ""))
			c := newConsumer(t, b, newGuard(t, f), func(context.Context, *consumer.Message) error {
				stalled.Store(true)
				return word
			}, nil)
			stop := start(t, c)
			time.Sleep(time.Minute) // its lease is over
			ran, err := newGuard(t, s).Do(t.Context(), work(message("m1", "")), func(context.Context) error { return nil })
			require.NoError(t, err)
			require.True(t, ran)
			stalled.Store(false)
			time.Sleep(time.Minute)
			require.Empty(t, b.DeadLetters(), name)
			require.EqualValues(t, 1, c.Stats().Duplicates, name)
			require.NoError(t, stop())
		})
	}
}

func TestVerdictWhoseReplyIsLostIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		f := &deduptest.Faulty{Store: memstore.New(), After: func(_ context.Context, method string) error {
			if lost.Add(1)%3 != 0 {
				return errBoom
			}
			return nil
		}}
		b := kafkaLike()
		b.Publish(messages(20, "lane")...)
		r := &recorder{}
		r.do = func(_ context.Context, m *consumer.Message) error {
			if m.ID == "m3" && r.times("m3") == 1 {
				return errBoom
			}
			return nil
		}
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, f), r.handle, nil))
		require.EqualValues(t, 20, stats.Done)
		require.Len(t, r.all(), 21)
		require.Greater(t, lost.Load(), int64(5))
	})
}

func TestFlushBetweenClaimAndFinishLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &deduptest.Faulty{Store: memstore.New()}
		var flushed atomic.Int64
		g, err := dedup.New("app", f, &dedup.Options{Logger: quiet, Observe: func(e dedup.Event) {
			if e.Cause == "record_lost" {
				flushed.Add(int64(e.N))
			}
		}})
		require.NoError(t, err)
		b := kafkaLike()
		b.Publish(message("m1", ""), message("m1", ""))
		stats := b.Drain(t, newConsumer(t, b, g, func(context.Context, *consumer.Message) error {
			f.Store = memstore.New()
			return nil
		}, nil))
		require.EqualValues(t, 1, stats.Done)
		require.EqualValues(t, 1, stats.Duplicates)
		require.EqualValues(t, 1, flushed.Load())
	})
}

func TestDeadLetterThatIsNotConfirmedIsNeverAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		var down atomic.Bool
		down.Store(true)
		b.Fail = func(word string, m *consumer.Message) error {
			if word == "DeadLetter" && down.Load() {
				return errBoom
			}
			return nil
		}
		s := memstore.New()
		b.Publish(messages(10, "lane")...)
		r := &recorder{do: func(_ context.Context, m *consumer.Message) error {
			if m.ID == "m4" {
				return consumer.Permanent(errBoom)
			}
			return nil
		}}
		c := newConsumer(t, b, newGuard(t, s), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.EqualValues(t, 9, c.Stats().Done, "the lane goes on")
		require.EqualValues(t, 1, c.Stats().Waiting)
		require.NoError(t, stop(), "a drain gives it back")
		require.EqualValues(t, 1, c.Stats().GivenBack)

		down.Store(false)
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, s), r.handle, nil))
		require.EqualValues(t, 1, stats.DeadLettered)
		require.Equal(t, 1, r.times("m4"), "condemned: only to be dead-lettered")
		require.Len(t, b.DeadLetters(), 1)
		require.Contains(t, b.DeadLetters()[0].DeadCause, "boom")
	})
}

func TestMiddlewareWrapsFirstOutermost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		wrap := func(name string) func(consumer.Handler) consumer.Handler {
			return func(next consumer.Handler) consumer.Handler {
				return func(ctx context.Context, m *consumer.Message) error {
					order = append(order, name)
					return errors.Join(next(ctx, m))
				}
			}
		}
		b := kafkaLike()
		b.Publish(message("m1", ""))
		b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), (&recorder{}).handle,
			&consumer.Options{Middleware: []func(consumer.Handler) consumer.Handler{wrap("a"), wrap("b")}}))
		require.Equal(t, []string{"a", "b"}, order)
	})
}
