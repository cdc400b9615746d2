package dedup_test

import (
	"context"
	"errors"
	"math"
	"strings"
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

func TestTenThousandSimultaneousCallersRunOnce(t *testing.T) {
	f := &flaky{Store: memstore.New()}
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
	require.Less(t, f.count("claim"), int64(5_000), "equal claims that wait for a call must share the next one")
}

func TestHeartbeatKeepsAClaimForLongerThanItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newGuard(t, s, nil), newGuard(t, s, nil)
		_, err := a.Do(t.Context(), work("slow"), func(ctx context.Context) error {
			for range 20 {
				time.Sleep(30 * time.Second)
				ran, err := b.Do(ctx, work("slow"), func(context.Context) error { return nil })
				require.ErrorIs(t, err, dedup.ErrInProgress)
				require.False(t, ran)
			}
			require.NoError(t, ctx.Err())
			return nil
		})
		require.NoError(t, err)
	})
}

func TestOneLostBeatDoesNotLoseTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats atomic.Int64
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			if call == "extend" {
				if beats.Add(1)%2 == 1 {
					return errBoom
				}
			}
			return nil
		}
		g := newGuard(t, f, nil)
		_, err := g.Do(t.Context(), work("slow"), func(ctx context.Context) error {
			time.Sleep(10 * time.Minute)
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Greater(t, beats.Load(), int64(10))
	})
}

func TestLostLeaseCancelsTheWorkWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			if down.Load() {
				return errBoom
			}
			return nil
		}
		g := newGuard(t, f, nil)
		c, err := g.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		ctx, cancel := c.Context(t.Context())
		defer cancel()
		begun := time.Now()
		down.Store(true)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), dedup.ErrLeaseLost)
		require.InDelta(t, 30, time.Since(begun).Seconds(), 0.1, "by our own clock the lease ends when the store's does")
		require.False(t, c.Held())
		down.Store(false)
		require.NoError(t, c.Complete(t.Context(), nil), "nobody followed: the owner may still finish")
	})
}

func TestTakeoverFencesTheFirstOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var cut atomic.Bool
		f := &flaky{Store: s, before: func(call string) error {
			if cut.Load() {
				return errBoom
			}
			return nil
		}}
		a, b := newGuard(t, f, nil), newGuard(t, s, nil)
		ca, err := a.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		cut.Store(true)
		time.Sleep(31 * time.Second)
		cb, err := b.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, cb.State)
		require.Equal(t, 1, cb.Crashes)
		require.Greater(t, cb.Epoch, ca.Epoch)
		cut.Store(false)
		require.ErrorIs(t, ca.Complete(t.Context(), nil), dedup.ErrSuperseded)
		require.ErrorIs(t, ca.Fail(t.Context(), errBoom), dedup.ErrSuperseded)
		require.NoError(t, ca.Release(t.Context()))
		require.NoError(t, cb.Complete(t.Context(), []byte("b")))
		again, err := a.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, []byte("b"), again.Result)
	})
}

func TestClaimWhoseReplyIsLostIsFoundAgain(t *testing.T) {
	lose := true
	f := &flaky{Store: memstore.New(), after: func(call string) error {
		if call == "claim" && lose {
			return errBoom
		}
		return nil
	}}
	g := newGuard(t, f, nil)
	_, err := g.Claim(t.Context(), work("a"))
	require.ErrorIs(t, err, dedup.ErrUnavailable)
	lose = false
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, c.State, "under a new token it would wait for the lease of its own lost claim")
	require.Zero(t, c.Crashes)
	require.NoError(t, c.Complete(t.Context(), nil))
}

func TestClaimOfACallerThatLeftIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		f := &flaky{Store: memstore.New(), after: func(call string) error {
			if call == "claim" {
				<-hold
			}
			return nil
		}}
		g := newGuard(t, f, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		_, err := g.Claim(ctx, work("a"))
		require.ErrorIs(t, err, context.Canceled)
		close(hold)
		synctest.Wait()
		c, err := g.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, c.State)
		require.Zero(t, c.Crashes)
		require.NoError(t, c.Release(t.Context()))
	})
}

func TestStoreDownRunsNothingUnlessOpenIsChosen(t *testing.T) {
	f := &flaky{Store: memstore.New(), before: func(string) error { return errBoom }}
	ran, err := newGuard(t, f, nil).Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.False(t, ran)
	require.ErrorIs(t, err, dedup.ErrUnavailable)
	require.ErrorIs(t, err, errBoom)

	unprotected := 0
	g := newGuard(t, f, &dedup.Options{FailOpen: true, Observe: func(e dedup.Event) {
		if e.Cause == "unprotected" {
			unprotected += e.N
		}
	}})
	ran, err = g.Do(t.Context(), work("a"), func(ctx context.Context) error {
		require.True(t, dedup.ClaimFrom(ctx).Unprotected())
		return nil
	})
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 1, unprotected)
}

func TestOutcomeIsWrittenThoughTheCallerLeft(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ran, err := g.Do(ctx, work("a"), func(context.Context) error { cancel(); return nil })
	require.NoError(t, err)
	require.True(t, ran)
	r, err := g.Inspect(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Done, r.State)
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

func TestRecordLostBetweenClaimAndFinishIsWrittenAndReported(t *testing.T) {
	f := &flaky{Store: memstore.New()}
	var lost int
	g := newGuard(t, f, &dedup.Options{Observe: func(e dedup.Event) {
		if e.Name == "finish" && e.Cause == "record_lost" {
			lost += e.N
		}
	}})
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	f.Store = memstore.New()
	require.NoError(t, c.Complete(t.Context(), nil))
	require.Equal(t, 1, lost)
	ran, err := g.Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.False(t, ran)
}

func TestBadInputIsRefusedByName(t *testing.T) {
	s := memstore.New()
	for want, make := range map[string]func() error{
		"app is empty":                  func() error { _, err := dedup.New("", s, nil); return err },
		"store is nil":                  func() error { _, err := dedup.New("a", nil, nil); return err },
		"Options.Lease -1s is negative": func() error { _, err := dedup.New("a", s, &dedup.Options{Lease: -time.Second}); return err },
		"Options.Lease 1ms is below":    func() error { _, err := dedup.New("a", s, &dedup.Options{Lease: time.Millisecond}); return err },
		"Options.Retention -1s":         func() error { _, err := dedup.New("a", s, &dedup.Options{Retention: -time.Second}); return err },
		"Retention 1s is below":         func() error { _, err := dedup.New("a", s, &dedup.Options{Retention: time.Second}); return err },
		"Work.ID is empty":              func() error { _, err := newGuard(t, s, nil).Claim(t.Context(), work("")); return err },
		"Work.Scope is empty":           func() error { _, err := newGuard(t, s, nil).Claim(t.Context(), dedup.Work{ID: "a"}); return err },
		"Work.Redrive -1": func() error {
			_, err := newGuard(t, s, nil).Claim(t.Context(), dedup.Work{Scope: "s", ID: "a", Redrive: -1})
			return err
		},
		"only done, retryable, condemned": func() error {
			g := newGuard(t, s, nil)
			c, err := g.Claim(t.Context(), work("x"))
			require.NoError(t, err)
			defer c.Release(t.Context())
			return finishAs(t, g, c, dedup.Mismatch)
		},
	} {
		require.ErrorContains(t, make(), want)
	}
}

func finishAs(t *testing.T, g *dedup.Guard, c *dedup.Claim, s dedup.State) error {
	errs := make([]error, 1)
	require.NoError(t, g.FinishBatch(t.Context(), []dedup.Outcome{{Claim: c, State: s}}, errs))
	return errs[0]
}

func TestIDsOfAnyBytesAndLengthStayApart(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	ids := []string{"a", "a\x00", "\x00a", "A", "a ", "\xff\xfe", "é", "e\u0301", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20+1)}
	for _, id := range ids {
		ran, err := g.Do(t.Context(), work(id), func(context.Context) error { return nil })
		require.NoError(t, err)
		require.True(t, ran, "%q", id[:min(len(id), 9)])
	}
	ran, err := g.Do(t.Context(), dedup.Work{Scope: "tes", ID: "ta"}, func(context.Context) error { return nil })
	require.NoError(t, err)
	require.True(t, ran, "scope and ID must not run together")
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
