package dedup_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

// The tests below are named after the rules of deduptest: they are of the half that a Guard keeps.

// seen counts events by name and cause.
type seen struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *seen) observe(e dedup.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[string]int{}
	}
	s.n[e.Name+" "+e.Cause] += e.N
}

func (s *seen) count(event string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n[event]
}

func TestRule05_FinishOfALostRecordIsWrittenAndCounted(t *testing.T) {
	var events seen
	f := &flaky{Store: memstore.New()}
	g := newGuard(t, f, &dedup.Options{Observe: events.observe})
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	f.Store = memstore.New()
	require.NoError(t, c.Complete(t.Context(), nil))
	require.Equal(t, 1, events.count("finish record_lost"))
	ran, err := g.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.False(t, ran)
}

func TestRule05_BeatOfALostRecordIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events seen
		empty := memstore.New()
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			if call == "extend" && f.count(call) == 1 {
				f.Store = empty
			}
			return nil
		}
		c, err := newGuard(t, f, &dedup.Options{Observe: events.observe}).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, 1, events.count("record_lost "))
		other, err := newGuard(t, empty, nil).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, dedup.InProgress, other.State, "the beat has made the claim again")
		require.True(t, c.Held())
		require.NoError(t, c.Complete(t.Context(), nil))
		require.Zero(t, events.count("finish record_lost"), "the record is there again")
	})
}

// ends returns when ctx does, or after as long as no lease is.
func ends(t *testing.T, ctx context.Context) time.Time {
	t.Helper()
	select {
	case <-ctx.Done():
		require.ErrorIs(t, context.Cause(ctx), dedup.ErrLeaseLost)
	case <-time.After(time.Hour):
		require.Fail(t, "the work's context outlives the lease")
	}
	return time.Now()
}

func TestRule09_LeaseIsMeasuredFromBeforeTheClaimWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			if call == "extend" {
				return errBoom
			}
			return nil
		}
		f.after = func(string) error { time.Sleep(4 * time.Second); return nil } // a slow reply
		sent := time.Now()
		c, err := newGuard(t, f, nil).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		ctx, cancel := c.Context(t.Context())
		defer cancel()
		require.Equal(t, 30*time.Second, ends(t, ctx).Sub(sent))
	})
}

func TestRule09_BeatIsMeasuredFromBeforeItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent time.Time
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			switch {
			case call != "extend":
				return nil
			case !sent.IsZero():
				return errBoom
			}
			sent = time.Now()
			return nil
		}
		f.after = func(call string) error {
			if call == "extend" {
				time.Sleep(4 * time.Second)
			}
			return nil
		}
		c, err := newGuard(t, f, nil).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		ctx, cancel := c.Context(t.Context())
		defer cancel()
		require.Equal(t, 30*time.Second, ends(t, ctx).Sub(sent))
	})
}

func TestRule09_NoWorkBeginsAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{Store: memstore.New(), before: func(call string) error {
			if call == "extend" {
				return errBoom
			}
			return nil
		}}
		c, err := newGuard(t, f, nil).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.True(t, c.Held())
		time.Sleep(30 * time.Second)
		require.False(t, c.Held())
		ctx, cancel := c.Context(t.Context())
		defer cancel()
		require.ErrorIs(t, context.Cause(ctx), dedup.ErrLeaseLost)
	})
}

// mute leaves every item of a claim without an answer.
type mute struct{ dedup.Store }

func (mute) Claim(context.Context, []dedup.ClaimRequest, []dedup.Verdict) error { return nil }

func TestRule10_ZeroAnswerIsAFault(t *testing.T) {
	g := newGuard(t, mute{memstore.New()}, nil)
	_, err := g.Claim(t.Context(), work("a"))
	require.ErrorContains(t, err, "without an answer")
	errs := g.DoBatch(t.Context(), []dedup.Work{work("a"), work("b")}, func(context.Context, []int) error {
		t.Error("work ran without a claim")
		return nil
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "without an answer")
	}
}

func TestRule09_DoRunsNothingOnAnAnswerThatTookLongerThanTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := 2
		f := &deduptest.Faulty{Store: memstore.New(), After: func(_ context.Context, method string) error {
			if method == "Claim" && late > 0 {
				late--
				time.Sleep(31 * time.Second)
			}
			return nil
		}}
		g := newGuard(t, f, nil)
		runs := 0
		run := func(ctx context.Context) error {
			runs++
			require.NoError(t, ctx.Err())
			require.Zero(t, dedup.ClaimFrom(ctx).Crashes, "what was let go was no crash")
			return nil
		}
		ran, err := g.Do(t.Context(), work("a"), run)
		require.NoError(t, err)
		require.True(t, ran)
		require.Equal(t, 1, runs)

		late = 1
		batch := func(context.Context, []int) error { runs++; return nil }
		errs := g.DoBatch(t.Context(), []dedup.Work{work("b"), work("c")}, batch)
		require.ErrorIs(t, errs[0], dedup.ErrLeaseLost)
		require.ErrorIs(t, errs[1], dedup.ErrLeaseLost)
		require.Equal(t, 1, runs)
		errs = g.DoBatch(t.Context(), []dedup.Work{work("b"), work("c")}, batch)
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, 2, runs)
	})
}
