package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// picky is a Store that answers some finishes itself: those for which answer is not nil get what it returns.
type picky struct {
	dedup.Store
	answer func(q *dedup.FinishRequest) error
	calls  int
}

func (p *picky) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	p.calls++
	for i := range in {
		if out[i] = p.answer(&in[i]); out[i] != nil {
			continue
		}
		if err := p.Store.Finish(ctx, in[i:i+1], out[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// endsWithItsLease requires that the work is in progress now and free an hour later.
func endsWithItsLease(t *testing.T, s dedup.Store, w dedup.Work) *dedup.Claim {
	t.Helper()
	other := newGuard(t, s, nil)
	c, err := other.Claim(t.Context(), w)
	require.NoError(t, err)
	require.Equal(t, dedup.InProgress, c.State)
	time.Sleep(time.Hour)
	c, err = other.Claim(t.Context(), w)
	require.NoError(t, err)
	require.NotEqual(t, dedup.InProgress, c.State, "nobody holds it, but somebody beats it")
	require.NoError(t, c.Release(t.Context()))
	return c
}

func TestDoBatchWritesAgainWhatTheStoreDidNotTakeOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faults := 3
		s := &picky{Store: memstore.New()}
		var first dedup.Key
		s.answer = func(q *dedup.FinishRequest) error {
			if first == (dedup.Key{}) {
				first = q.Key
			}
			if q.Key != first {
				return nil
			}
			if faults--; faults >= 0 { // as of a node of a cluster that fails over
				return errBoom
			}
			return nil
		}
		works := []dedup.Work{work("a"), work("b"), work("c")}
		errs := newGuard(t, s, nil).DoBatch(t.Context(), works, func(context.Context, []int) error { return nil })
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, 4, s.calls)
		for _, w := range works {
			c, err := newGuard(t, s, nil).Claim(t.Context(), w)
			require.NoError(t, err)
			require.Equal(t, dedup.Done, c.State)
		}
	})
}

func TestReleaseThatIsNotWrittenLeavesTheClaimToItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		f := &flaky{Store: s, before: func(call string) error {
			if call == "finish" {
				return errBoom
			}
			return nil
		}}
		c, err := newGuard(t, f, nil).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.ErrorIs(t, c.Release(t.Context()), dedup.ErrUnavailable)
		require.False(t, c.Held())
		require.Equal(t, 1, endsWithItsLease(t, s, work("a")).Crashes)
	})
}

func TestReleaseMayBeCalledAgain(t *testing.T) {
	down := true
	s := memstore.New()
	f := &flaky{Store: s, before: func(call string) error {
		if call == "finish" && down {
			return errBoom
		}
		return nil
	}}
	c, err := newGuard(t, f, nil).Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.ErrorIs(t, c.Release(t.Context()), dedup.ErrUnavailable)
	down = false
	require.NoError(t, c.Release(t.Context()))
	next, err := newGuard(t, s, nil).Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, next.State)
	require.Zero(t, next.Crashes)
	require.NoError(t, next.Release(t.Context()))
}

func TestReleaseIsWrittenUnderAnEndedContext(t *testing.T) {
	s := memstore.New()
	func() {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := newGuard(t, s, nil).Claim(ctx, work("a"))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Release(ctx)) }()
		cancel() // as a request's, whose client has gone
	}()
	next, err := newGuard(t, s, nil).Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, next.State)
	require.Zero(t, next.Crashes)
	require.NoError(t, next.Release(t.Context()))
}

func TestReleaseUnderAnEndedContextWaitsForOneCallOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		hung := &hanging{Store: s}
		ctx, cancel := context.WithCancel(t.Context())
		c, err := newGuard(t, hung, nil).Claim(ctx, work("a"))
		require.NoError(t, err)
		cancel()
		begun := time.Now()
		require.Error(t, c.Release(ctx))
		require.Equal(t, 5*time.Second, time.Since(begun))
		endsWithItsLease(t, s, work("a"))
	})
}

// hanging is a Store that answers no finish.
type hanging struct{ dedup.Store }

func (*hanging) Finish(ctx context.Context, _ []dedup.FinishRequest, _ []error) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestCondemnedWorkThatCannotBeGivenBackEndsWithItsLease(t *testing.T) {
	for name, do := range map[string]func(g *dedup.Guard) error{
		"Do": func(g *dedup.Guard) error {
			_, err := g.Do(context.Background(), work("a"), func(context.Context) error { return nil })
			return err
		},
		"DoBatch": func(g *dedup.Guard) error {
			return g.DoBatch(context.Background(), []dedup.Work{work("a")}, func(context.Context, []int) error { return nil })[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				dead, err := newGuard(t, s, nil).Claim(t.Context(), work("a"))
				require.NoError(t, err)
				require.NoError(t, dead.Condemn(t.Context(), errBoom))
				require.NoError(t, dead.Release(t.Context()))
				err = do(newGuard(t, &picky{Store: s, answer: func(*dedup.FinishRequest) error { return errBoom }}, nil))
				require.ErrorIs(t, err, dedup.ErrFailed)
				require.ErrorIs(t, err, errBoom)
				require.Equal(t, dedup.Condemned, endsWithItsLease(t, s, work("a")).State)
			})
		})
	}
}

func TestTransactionOfUnknownEndWhoseClaimCannotBeGivenBackEndsWithItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tx{}
		s.Store = memstore.New()
		s.verdict = func() error { return dedup.ErrUnavailable }
		s.before = func(call string) error {
			if call == "finish" {
				return errBoom
			}
			return nil
		}
		ran, err := newGuard(t, s, nil).DoInTx(t.Context(), work("a"), func(context.Context, *sql.Tx) error { return nil })
		require.True(t, ran)
		require.ErrorIs(t, err, dedup.ErrUnavailable)
		endsWithItsLease(t, s.Store, work("a"))
	})
}

// refusing is a Store that takes no verdict, as MySQL does not that is larger than its packets; beats go through.
func refusing(s dedup.Store) *picky {
	return &picky{Store: s, answer: func(*dedup.FinishRequest) error { return errBoom }}
}

func TestVerdictThatIsNeverTakenIsTriedForOneLease(t *testing.T) {
	for name, do := range map[string]func(g *dedup.Guard) error{
		"Do": func(g *dedup.Guard) error {
			ran, err := g.Do(context.Background(), work("a"), func(context.Context) error { return nil })
			if !ran {
				return errors.New("it did not run")
			}
			return err
		},
		"DoBatch": func(g *dedup.Guard) error {
			return g.DoBatch(context.Background(), []dedup.Work{work("a")}, func(context.Context, []int) error { return nil })[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				words := refusing(s)
				g := newGuard(t, words, &dedup.Options{Lease: 2 * time.Minute})
				begun := time.Now()
				err := do(g)
				require.ErrorIs(t, err, dedup.ErrUnavailable)
				require.ErrorIs(t, err, errBoom)
				require.InDelta(t, 120, time.Since(begun).Seconds(), 1)
				require.InDelta(t, 127, words.calls, 1, "seven tries in the first 1.27s, then one a second")
				endsWithItsLease(t, s, work("a"))
			})
		})
	}
}
