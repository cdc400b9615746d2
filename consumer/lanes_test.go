package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func inspect(tb testing.TB, g *dedup.Guard, id string) dedup.Record {
	tb.Helper()
	r, err := g.Inspect(tb.Context(), work(message(id, "")))
	require.NoError(tb, err)
	return r
}

// A's lane is [x, y] and a third owner has x; B's lane is [y, x]. Were y kept behind A's waiting
// head, and x, which B is given as soon as it is free, behind B's, each would wait for the other
// for ever, since beats keep both claims alive.
func TestTwoLanesThatHoldEachOthersHeadsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		third := newGuard(t, mem)
		x, y := message("x", "lane"), message("y", "lane")
		cx, err := third.Claim(t.Context(), work(x))
		require.NoError(t, err)
		a, b := newSource(), newSource()
		a.publish(x, y)
		b.publish(y, x)
		r := &recorder{}
		ka := newConsumer(t, a, newGuard(t, mem), r.handle, nil)
		kb := newConsumer(t, b, newGuard(t, mem), r.handle, nil)
		stopA := start(t, ka)
		synctest.Wait()
		require.NoError(t, cx.Release(t.Context()))
		stopB := start(t, kb) // it is told of y and x before A asks for x again
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 2, ka.Stats().Done+ka.Stats().Duplicates)
		require.EqualValues(t, 2, kb.Stats().Done+kb.Stats().Duplicates)
		require.Len(t, r.all(), 2)
		require.NoError(t, stopA())
		require.NoError(t, stopB())
	})
}

func TestNothingBehindAWaitingHeadIsHeld(t *testing.T) {
	for name, wait := range map[string]func(t *testing.T, mem *memstore.Store) (head error){
		"in progress elsewhere": func(t *testing.T, mem *memstore.Store) error {
			elsewhere(t, mem, "m0")
			return nil
		},
		"before its next attempt": func(*testing.T, *memstore.Store) error { return consumer.RetryAfter(time.Hour, errBoom) },
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New()
			g := newGuard(t, mem)
			head := wait(t, mem)
			s := newSource()
			s.publish(messages(40, "lane")...)
			c := newConsumer(t, s, g, func(_ context.Context, m *consumer.Message) error {
				time.Sleep(10 * time.Millisecond) // all are claimed before the head waits
				return head
			}, patient)
			stop := start(t, c)
			time.Sleep(time.Minute)
			require.EqualValues(t, 40, c.Stats().Waiting, name)
			if head != nil { // it must survive a crash
				m0 := inspect(t, g, "m0")
				require.Equal(t, dedup.Retryable, m0.State, "the failure is written before the delay, not after it")
				require.Equal(t, 2, m0.Attempt)
			}
			for _, m := range messages(40, "")[1:] {
				r, err := g.Inspect(t.Context(), work(m))
				if err == nil {
					require.Equal(t, dedup.Released, r.State, "%s: %s", name, m.ID)
				}
			}
			require.NoError(t, stop())
			s.kept(t)
		})
	}
}

func TestOtherLanesGoOnWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.publish(messages(1000, "slow")...)
		quick := messages(1000, "quick")
		for i := range quick {
			quick[i].ID = "quick-" + quick[i].ID
		}
		s.publish(quick...)
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			if m.ID == "m0" {
				return consumer.RetryAfter(time.Hour, errBoom)
			}
			return nil
		}, patient)
		stop := start(t, c)
		time.Sleep(time.Second)
		require.EqualValues(t, 1000, c.Stats().Done)
		require.EqualValues(t, 1000, c.Stats().Waiting)
		require.NoError(t, stop())
		s.kept(t)
	})
}

// Followers of a failing message in other lanes hold their lanes, and go on when it ends.
func TestTwinsInOtherLanesKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		twin := message("x", "a")
		s.publish(twin, message("a1", "a"))
		twin.Key = "b"
		s.publish(message("b0", "b"), twin, message("b1", "b"))
		r := &recorder{}
		r.do = func(_ context.Context, m *consumer.Message) error {
			if m.ID == "x" && r.times("x") < 3 {
				return errBoom
			}
			return nil
		}
		c := newConsumer(t, s, newGuard(t, memstore.New()), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.Equal(t, 3, r.times("x"))
		require.ElementsMatch(t, []string{"x", "b0"}, r.all()[:2])
		require.ElementsMatch(t, []string{"a1", "b1"}, r.all()[4:])
		require.EqualValues(t, 4, c.Stats().Done)
		require.EqualValues(t, 1, c.Stats().Duplicates)
		s.kept(t)
	})
}

// Handlers that take every slot for far longer than a lease must not keep its beats from going out.
func TestHandlersInEverySlotKeepTheirClaimsForLongerThanTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		s := newSource()
		ms := messages(4, "")
		s.publish(ms...)
		r := &recorder{do: func(ctx context.Context, _ *consumer.Message) error {
			time.Sleep(5 * time.Minute)
			return ctx.Err()
		}}
		c := newConsumer(t, s, newGuard(t, mem), r.handle, &consumer.Options{Policy: consumer.Policy{Concurrency: 4, HandlerTimeout: 10 * time.Minute}})
		stop := start(t, c)
		other := newGuard(t, mem)
		for range 9 { // once in each lease and a little more
			time.Sleep(32 * time.Second)
			for _, m := range ms {
				claim, err := other.Claim(t.Context(), work(m))
				require.NoError(t, err)
				require.Equal(t, dedup.InProgress, claim.State)
			}
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, 4, c.Stats().Done)
		require.NoError(t, stop())
		require.Len(t, r.all(), 4)
		require.EqualValues(t, 4, r.most.Load())
		s.kept(t)
	})
}
