package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

func work(id string) dedup.Work { return dedup.Work{Scope: "test", ID: id} }

func newGuard(tb testing.TB, s dedup.Store, o *dedup.Options) *dedup.Guard {
	tb.Helper()
	g, err := dedup.New("app", s, o)
	require.NoError(tb, err)
	return g
}

// flaky is a Store whose calls can be made to fail, before or after they have taken effect.
type flaky struct {
	dedup.Store
	before, after func(call string) error
	calls         sync.Map // name -> *atomic.Int64
}

func (f *flaky) wrap(name string, do func() error) error {
	n, _ := f.calls.LoadOrStore(name, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	if f.before != nil {
		if err := f.before(name); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if f.after != nil {
		return f.after(name)
	}
	return nil
}

func (f *flaky) count(name string) int64 {
	n, ok := f.calls.Load(name)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

func (f *flaky) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	return f.wrap("claim", func() error { return f.Store.Claim(ctx, in, out) })
}

func (f *flaky) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	return f.wrap("extend", func() error { return f.Store.Extend(ctx, in, out) })
}

func (f *flaky) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	return f.wrap("finish", func() error { return f.Store.Finish(ctx, in, out) })
}

func TestDoRunsOnceAndAnswersLaterCallers(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	runs := 0
	for i := range 3 {
		ran, err := g.Do(t.Context(), work("a"), func(context.Context) error { runs++; return nil })
		require.NoError(t, err)
		require.Equal(t, i == 0, ran)
	}
	require.Equal(t, 1, runs)
}

func TestFailedWorkRunsAgainAndKeepsItsAttempts(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	for attempt := 1; attempt <= 3; attempt++ {
		ran, err := g.Do(t.Context(), work("a"), func(ctx context.Context) error {
			require.Equal(t, attempt, dedup.ClaimFrom(ctx).Attempt)
			return errBoom
		})
		require.ErrorIs(t, err, errBoom)
		require.True(t, ran)
	}
	ran, err := g.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
}

func TestPanicCountsAsFailureAndGoesOn(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	require.PanicsWithValue(t, "ouch", func() {
		_, _ = g.Do(t.Context(), work("a"), func(context.Context) error { panic("ouch") })
	})
	require.Panics(t, func() {
		g.DoBatch(t.Context(), []dedup.Work{work("a"), work("b")}, func(context.Context, []int) error { panic("ouch") })
	})
	r, err := g.Inspect(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Retryable, r.State)
	require.Equal(t, 3, r.Attempt)
}

func TestWorkInProgressIsRefusedNotSkipped(t *testing.T) {
	g := memstore.New()
	a, b := newGuard(t, g, nil), newGuard(t, g, nil)
	c, err := a.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, c.State)
	ran, err := b.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.False(t, ran)
	require.ErrorIs(t, err, dedup.ErrInProgress)
	var refused *dedup.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Positive(t, refused.Verdict.Left)
	require.NoError(t, c.Release(t.Context()))
	ran, err = b.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
}

func TestDoWaitsForAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newGuard(t, s, nil), newGuard(t, s, nil)
		c, err := a.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		time.AfterFunc(3*time.Second, func() { _ = c.Complete(context.Background(), nil) })
		w := work("a")
		w.Wait = time.Minute
		ran, err := b.Do(t.Context(), w, func(context.Context) error { return nil })
		require.NoError(t, err)
		require.False(t, ran)
	})
}

func TestDoThatWaitsTellsWhyItsContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(), nil)
		c, err := g.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(errBoom) })
		w := work("a")
		w.Wait = time.Minute
		ran, err := g.Do(ctx, w, func(context.Context) error { return nil })
		require.False(t, ran)
		require.ErrorIs(t, err, dedup.ErrInProgress)
		require.ErrorIs(t, err, errBoom)
		require.NoError(t, c.Release(t.Context()))
	})
}

func TestTenThousandSimultaneousCallersRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{Store: memstore.New()}
		f.before = func(string) error { time.Sleep(time.Millisecond); return nil } // meanwhile the others ask
		g := newGuard(t, f, nil)
		var runs atomic.Int64
		var wg sync.WaitGroup
		for range 10_000 {
			wg.Go(func() {
				w := work("same")
				w.Wait = time.Minute
				_, err := g.Do(context.Background(), w, func(context.Context) error { runs.Add(1); return nil })
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, runs.Load())
		require.Less(t, f.count("claim"), int64(100), "equal claims that wait for a call must share the next one")
	})
}

func TestDoValueHandsOutTheFirstResult(t *testing.T) {
	type payment struct{ ID string }
	g := newGuard(t, memstore.New(), nil)
	for i := range 2 {
		v, ran, err := dedup.DoValue(t.Context(), g, work("a"), func(context.Context) (payment, error) {
			return payment{"p-1"}, nil
		})
		require.NoError(t, err)
		require.Equal(t, i == 0, ran)
		require.Equal(t, payment{"p-1"}, v)
	}
}

func TestResultThatCannotBeStoredDoesNotRepeatTheEffect(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	runs := 0
	for i := range 3 {
		_, ran, err := dedup.DoValue(t.Context(), g, work("a"), func(context.Context) (float64, error) { runs++; return math.NaN(), nil })
		require.Error(t, err)
		require.Equal(t, i == 0, ran)
	}
	require.Equal(t, 1, runs)
}

func TestDoBatchRefusesOneBadWorkAlone(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	errs := g.DoBatch(t.Context(), []dedup.Work{work("a"), work(""), work("b")}, func(_ context.Context, run []int) error {
		require.Equal(t, []int{0, 2}, run)
		return nil
	})
	require.NoError(t, errs[0])
	require.ErrorContains(t, errs[1], "Work.ID is empty")
	require.NoError(t, errs[2])
}

func TestDoBatchRunsWhatIsNewAndAnswersTwinsAlike(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	_, err := g.Do(t.Context(), work("old"), func(context.Context) error { return nil })
	require.NoError(t, err)
	works := []dedup.Work{work("old"), work("a"), work("b"), work("a"), {Scope: "test", ID: "b", Fingerprint: dedup.FingerprintOf([]byte("x"))}}
	errs := g.DoBatch(t.Context(), works, func(_ context.Context, run []int) error {
		require.Equal(t, []int{1, 2}, run)
		return nil
	})
	for i := range 4 {
		require.NoError(t, errs[i])
	}
	require.ErrorIs(t, errs[4], dedup.ErrInProgress, "b with other content is no twin")
	errs = g.DoBatch(t.Context(), works[:1], func(context.Context, []int) error { return errBoom })
	require.Equal(t, []error{nil}, errs)
}

func TestCondemnedWorkIsNotRunAgain(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.NoError(t, c.Condemn(t.Context(), errBoom))
	require.ErrorIs(t, c.Complete(t.Context(), nil), dedup.ErrSuperseded)
	require.NoError(t, c.Release(t.Context()))
	_, err = g.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.ErrorIs(t, err, dedup.ErrFailed)
	c, err = g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Condemned, c.State)
	require.Equal(t, "boom", c.LastError)
	require.NoError(t, c.FailFinal(t.Context(), errBoom))
	_, err = g.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.ErrorIs(t, err, dedup.ErrFailed)
	redriven := work("a")
	redriven.Redrive = 1
	ran, err := g.Do(t.Context(), redriven, func(context.Context) error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
}

// The inner work is a piece of its own: it needs no room that the outer one has, and neither's word
// is taken for the other's.
func TestWorkInsideOfWorkHasAClaimOfItsOwn(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	for attempt, word := range []error{errBoom, nil} {
		outer := work(fmt.Sprint("outer-", attempt))
		ran, err := g.Do(t.Context(), outer, func(ctx context.Context) error {
			mine := dedup.ClaimFrom(ctx)
			require.Equal(t, outer, mine.Work)
			ran, err := g.Do(ctx, work("inner"), func(ctx context.Context) error {
				require.Equal(t, work("inner"), dedup.ClaimFrom(ctx).Work)
				require.Equal(t, attempt+1, dedup.ClaimFrom(ctx).Attempt)
				_, err := g.Do(ctx, outer, func(context.Context) error { return nil })
				require.ErrorIs(t, err, dedup.ErrInProgress, "nor is it the same claim again")
				return word
			})
			require.True(t, ran)
			require.ErrorIs(t, err, word)
			require.Same(t, mine, dedup.ClaimFrom(ctx))
			require.True(t, mine.Held())
			return nil
		})
		require.NoError(t, err)
		require.True(t, ran)
		r, err := g.Inspect(t.Context(), outer)
		require.NoError(t, err)
		require.Equal(t, dedup.Done, r.State)
		r, err = g.Inspect(t.Context(), work("inner"))
		require.NoError(t, err)
		if word != nil {
			require.Equal(t, dedup.Retryable, r.State)
			require.Equal(t, 2, r.Attempt)
			continue
		}
		require.Equal(t, dedup.Done, r.State)
	}
}
