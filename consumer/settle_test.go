package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestInProgressElsewhereIsHandedBackAfterTheHoldAsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		elsewhere(t, mem, "m0")
		s := newSource()
		s.hold = 5 * time.Second
		s.publish(messages(1, "")...)
		begun := time.Now()
		c := newConsumer(t, s, newGuard(t, mem), (&recorder{}).handle, nil)
		stop := start(t, c)
		for c.Stats().Retried == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		require.InDelta(t, 5.5, time.Since(begun).Seconds(), 1)
		require.NoError(t, stop())
		w := s.all()
		require.Equal(t, "retry", w[0].what)
		require.ErrorIs(t, w[0].cause, dedup.ErrInProgress)
		require.Empty(t, s.said("ack"))
		s.kept(t)
	})
}

func TestAskingAgainStartsAtFiftyMillisecondsAndDoublesToASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		elsewhere(t, mem, "m0")
		var asked []time.Duration
		begun := time.Now()
		f := faults(func(m string) bool {
			if m == "Claim" {
				asked = append(asked, time.Since(begun).Round(time.Millisecond))
			}
			return false
		})
		f.Store = mem
		s := newSource()
		s.publish(messages(1, "")...)
		stop := start(t, newConsumer(t, s, newGuard(t, f), (&recorder{}).handle, nil))
		time.Sleep(4 * time.Second)
		require.NoError(t, stop())
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 2550 * ms, 3550 * ms}, asked)
	})
}

func TestRetryThatIsNotConfirmedIsRepeatedAndHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		s := newSource()
		s.hold = 5 * time.Second
		s.fail = func(w string, _ *consumer.Message) error {
			if w == "retry" && down.Load() {
				return errBoom
			}
			return nil
		}
		s.publish(messages(500, "lane")...)
		r := &recorder{}
		r.do = func(_ context.Context, m *consumer.Message) error {
			if m.ID == "m0" && r.times("m0") == 1 {
				return errBoom
			}
			return nil
		}
		c := newConsumer(t, s, newGuard(t, memstore.New()), r.handle, &consumer.Options{Policy: consumer.Policy{Concurrency: 1}})
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.EqualValues(t, 499, c.Stats().Done)
		require.Equal(t, 1, r.times("m0"))
		require.NotContains(t, s.said("ack"), "m0")
		down.Store(false)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, 2, r.times("m0"))
		require.EqualValues(t, 500, c.Stats().Done)
		s.kept(t)
	})
}

func TestAckThatDoesNotArriveBringsADuplicateNotASecondRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		s := newSource()
		s.fail = func(w string, _ *consumer.Message) error {
			if w == "ack" && n.Add(1)%2 == 0 {
				return errBoom
			}
			return nil
		}
		s.publish(messages(100, "")...)
		r := &recorder{}
		c := newConsumer(t, s, newGuard(t, memstore.New()), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Len(t, r.all(), 100)
		require.Zero(t, s.left())
		require.EqualValues(t, 100, c.Stats().Done)
		require.Positive(t, c.Stats().Duplicates)
		s.kept(t)
	})
}

func TestPermanentIsFoundHoweverDeepItIsWrapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.publish(message("m0", ""), message("m1", ""))
		r := &recorder{do: func(_ context.Context, m *consumer.Message) error {
			if m.ID == "m0" {
				return fmt.Errorf("a: %w", fmt.Errorf("b: %w", consumer.RetryAfter(time.Hour, consumer.Permanent(errBoom))))
			}
			panic(consumer.Permanent(errBoom)) // a panic is a plain failure
		}}
		c := newConsumer(t, s, newGuard(t, memstore.New()), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, 1, r.times("m0"))
		require.Equal(t, 5, r.times("m1"))
		require.Equal(t, []string{"m0", "m1"}, s.said("dead letter"))
		require.ElementsMatch(t, []string{"m0", "m1"}, s.said("ack"))
		for _, w := range s.all() {
			if w.what == "dead letter" {
				require.ErrorContains(t, w.cause, "boom")
				require.Equal(t, 1, w.redrive)
			}
		}
		s.kept(t)
	})
}

func TestDeadLetterComesBeforeItsAckAndAfterItsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		s := newSource()
		s.fail = func(w string, m *consumer.Message) error {
			r := inspect(t, g, m.ID)
			switch w {
			case "dead letter":
				require.Equal(t, dedup.Condemned, r.State)
			case "ack":
				require.Equal(t, dedup.Failed, r.State)
			}
			return nil
		}
		s.publish(messages(10, "lane")...)
		c := newConsumer(t, s, g, func(context.Context, *consumer.Message) error { return consumer.Permanent(errBoom) }, nil)
		stop := start(t, c)
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 10, c.Stats().DeadLettered)
		require.Len(t, s.said("ack"), 10)
		s.kept(t)
	})
}

func TestNoDeliveryOutlastsItsDeadline(t *testing.T) {
	const deadline = 10 * time.Minute
	for name, hold := range map[string]time.Duration{"broker that cannot postpone": -1, "broker that can": 5 * time.Second} {
		for what, down := range map[string]func(m string) bool{
			"store down":           func(m string) bool { return true },
			"dead letters refused": nil,
		} {
			synctest.Test(t, func(t *testing.T) {
				s := newSource()
				s.hold, s.deadline = hold, deadline
				s.fail = func(w string, _ *consumer.Message) error {
					if w == "dead letter" {
						return errBoom
					}
					return nil
				}
				if down == nil {
					down = func(string) bool { return false }
				}
				s.publish(messages(30, "lane")...)
				c := newConsumer(t, s, newGuard(t, faults(down)), func(context.Context, *consumer.Message) error { return consumer.Permanent(errBoom) }, nil)
				stop := start(t, c)
				time.Sleep(time.Hour)
				if hold < 0 {
					require.Positive(t, c.Stats().GivenBack)
				} else { // at once it would only be refused again
					require.Positive(t, c.Stats().Retried)
					require.Zero(t, c.Stats().GivenBack)
				}
				require.NoError(t, stop())
				for _, w := range s.all() {
					require.False(t, w.late, "%s, %s: %s of %s", name, what, w.what, w.id)
					if w.what == "retry" {
						require.ErrorIs(t, w.cause, dedup.ErrInProgress, "no attempt")
					}
				}
				require.Empty(t, s.said("ack"))
				s.kept(t)
			})
		}
	}
}

func TestIDsMayHoldAnyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		ids := []string{strings.Repeat("x", 1<<20), "a\x00b", "a\xff\xfe", " "}
		for _, id := range ids {
			m := message(id, "")
			m.Body = nil // a tombstone
			s.publish(m, m)
		}
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			if m.Body != nil {
				return consumer.Permanent(errBoom)
			}
			return nil
		}, nil)
		stop := start(t, c)
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, len(ids), c.Stats().Done)
		require.EqualValues(t, len(ids), c.Stats().Duplicates)
		require.Empty(t, s.said("dead letter"))
		s.kept(t)
	})
}

func TestRedriveNumbersOutOfRangeHarmNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		for i, n := range []string{"99999999999999999999", "9223372036854775807", "-5", "x", ""} {
			m := message(fmt.Sprint(i), "")
			m.Headers = map[string]string{consumer.RedriveHeader: n}
			s.publish(m)
		}
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(context.Context, *consumer.Message) error { return consumer.Permanent(errBoom) }, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.EqualValues(t, 5, c.Stats().DeadLettered)
		for _, w := range s.all() {
			require.True(t, w.what == "ack" || w.redrive > 0, "%+v", w)
		}
	})
}
