package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// tx is a TxStore without a database: its transactions are an entry in effects, which stands once
// the verdict does. What a real database does is tested where there is one.
type tx struct {
	flaky
	effects []string
	pending []string
	verdict func() error // before the verdict; an error is the answer, and nothing was written
	commit  func() error // after it; an error is an answer lost
	beaten  atomic.Int64 // claims in the largest batch of beats
}

func (s *tx) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	s.beaten.Store(max(s.beaten.Load(), int64(len(in))))
	return s.flaky.Extend(ctx, in, out)
}

func (s *tx) InTx(ctx context.Context, f dedup.FinishRequest, work func(*sql.Tx) error) error {
	s.pending = nil
	if err := work(nil); err != nil {
		return err
	}
	if s.verdict != nil {
		if err := s.verdict(); err != nil {
			return err
		}
	}
	out := make([]error, 1)
	if err := s.Finish(context.WithoutCancel(ctx), []dedup.FinishRequest{f}, out); err != nil || out[0] != nil {
		return errors.Join(err, out[0])
	}
	s.effects = append(s.effects, s.pending...)
	if s.commit != nil {
		return s.commit()
	}
	return nil
}

func (s *tx) write(what string) func(context.Context, *sql.Tx) error {
	return func(context.Context, *sql.Tx) error {
		s.pending = append(s.pending, what)
		return nil
	}
}

func newTx(t *testing.T) (*tx, *dedup.Guard) {
	s := &tx{}
	s.Store = memstore.New()
	return s, newGuard(t, s, nil)
}

// state claims the work anew and tells what was answered.
func state(t *testing.T, g *dedup.Guard, id string) dedup.Verdict {
	t.Helper()
	c, err := g.Claim(t.Context(), work(id))
	require.NoError(t, err)
	require.NoError(t, c.Release(t.Context()))
	return c.Verdict
}

func TestEffectAndVerdictCommitTogether(t *testing.T) {
	s, g := newTx(t)
	for range 2 {
		_, err := g.DoInTx(t.Context(), work("a"), s.write("a"))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"a"}, s.effects)
	require.Equal(t, dedup.Done, state(t, g, "a").State)
}

func TestFailureInATransactionCountsAnAttempt(t *testing.T) {
	s, g := newTx(t)
	boom := errors.New("boom")
	ran, err := g.DoInTx(t.Context(), work("a"), func(ctx context.Context, _ *sql.Tx) error {
		_ = s.write("a")(ctx, nil)
		require.Equal(t, 1, dedup.ClaimFrom(ctx).Attempt)
		return boom
	})
	require.True(t, ran)
	require.ErrorIs(t, err, boom)
	require.Empty(t, s.effects)
	v := state(t, g, "a")
	require.Equal(t, 2, v.Attempt)
	require.Equal(t, "boom", v.LastError)
}

func TestPanicInATransactionCountsAnAttempt(t *testing.T) {
	s, g := newTx(t)
	require.PanicsWithValue(t, "boom", func() {
		_, _ = g.DoInTx(t.Context(), work("a"), func(context.Context, *sql.Tx) error { panic("boom") })
	})
	require.Empty(t, s.effects)
	require.Equal(t, 2, state(t, g, "a").Attempt)
}

func TestConflictIsBegunAnewWithinTheAttempt(t *testing.T) {
	s, g := newTx(t)
	conflicts := 3
	s.verdict = func() error {
		if conflicts--; conflicts >= 0 {
			return fmt.Errorf("%w: deadlock", dedup.ErrConflict)
		}
		return nil
	}
	var attempts []int
	ran, err := g.DoInTx(t.Context(), work("a"), func(ctx context.Context, _ *sql.Tx) error {
		attempts = append(attempts, dedup.ClaimFrom(ctx).Attempt)
		return s.write("a")(ctx, nil)
	})
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, []int{1, 1, 1, 1}, attempts)
	require.Equal(t, []string{"a"}, s.effects)
}

func TestConflictWithoutEndIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := newTx(t)
		runs := 0
		_, err := g.DoInTx(t.Context(), work("a"), func(context.Context, *sql.Tx) error {
			runs++
			return fmt.Errorf("%w: as the database says of a statement of the work's", dedup.ErrConflict)
		})
		require.ErrorIs(t, err, dedup.ErrConflict)
		require.Equal(t, 10, runs)
		require.Equal(t, 2, state(t, g, "a").Attempt)
		require.Empty(t, s.effects)
	})
}

func TestConflictIsNotBegunAnewOnceTheContextHasEnded(t *testing.T) {
	_, g := newTx(t)
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	_, err := g.DoInTx(ctx, work("a"), func(context.Context, *sql.Tx) error {
		runs++
		cancel()
		return dedup.ErrConflict
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, runs)
}

func TestLostReplyOfACommitIsNoSecondRun(t *testing.T) {
	s, g := newTx(t)
	s.commit = func() error { return fmt.Errorf("%w: connection reset", dedup.ErrUnavailable) }
	ran, err := g.DoInTx(t.Context(), work("a"), s.write("a"))
	require.NoError(t, err)
	require.True(t, ran)
	ran, err = g.DoInTx(t.Context(), work("a"), s.write("a"))
	require.NoError(t, err)
	require.False(t, ran)
	require.Equal(t, []string{"a"}, s.effects)
}

func TestDatabaseThatGoesAwayCountsNothing(t *testing.T) {
	s, g := newTx(t)
	s.verdict = func() error { return fmt.Errorf("%w: connection reset", dedup.ErrUnavailable) }
	_, err := g.DoInTx(t.Context(), work("a"), s.write("a"))
	require.ErrorIs(t, err, dedup.ErrUnavailable)
	require.Empty(t, s.effects)
	v := state(t, g, "a")
	require.Equal(t, dedup.Acquired, v.State, "its claim was given back")
	require.Equal(t, 1, v.Attempt)
	require.Zero(t, v.Crashes)
}

func TestClaimWhoseCommitIsUnknownIsFoundByTheNextOne(t *testing.T) {
	s, g := newTx(t)
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	s.verdict = func() error { return dedup.ErrUnavailable }
	require.ErrorIs(t, c.CompleteInTx(t.Context(), s.write("a")), dedup.ErrUnavailable)
	require.True(t, c.Undecided())
	require.False(t, c.Held())
	again, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, again.State, "not in progress until the lease ends")
	require.Equal(t, c.Epoch, again.Epoch)
	s.verdict = nil
	require.NoError(t, again.CompleteInTx(t.Context(), s.write("a")))
	require.False(t, again.Undecided())
	require.Equal(t, []string{"a"}, s.effects)
}

// A word of the work's own that sounds like one of the store's, from another Guard it uses, say.
func TestOwnErrorOfTheWorkIsAFailureWhateverItWraps(t *testing.T) {
	for _, own := range []error{dedup.ErrSuperseded, dedup.ErrUnavailable, dedup.ErrRecordLost, dedup.ErrTxEnded} {
		t.Run(own.Error(), func(t *testing.T) {
			s, g := newTx(t)
			runs := 0
			_, err := g.DoInTx(t.Context(), work("a"), func(context.Context, *sql.Tx) error { runs++; return own })
			require.ErrorIs(t, err, own)
			require.Equal(t, 1, runs)
			require.Empty(t, s.effects)
			_, err = g.Do(t.Context(), work("a"), func(context.Context) error { runs++; return own })
			require.ErrorIs(t, err, own)
			require.Equal(t, 2, runs)
			require.Equal(t, 3, state(t, g, "a").Attempt)
		})
	}
}

func TestTransactionOfASupersededOwnerWritesNothing(t *testing.T) {
	for name, answer := range map[string]error{"superseded": dedup.ErrSuperseded, "record lost": dedup.ErrRecordLost} {
		t.Run(name, func(t *testing.T) {
			var events seen
			s := &tx{}
			s.Store = memstore.New()
			g := newGuard(t, s, &dedup.Options{Observe: events.observe})
			s.verdict = func() error {
				s.verdict = nil
				s.Store = memstore.New() // so that the next claim acquires
				return answer
			}
			runs := 0
			_, err := g.DoInTx(t.Context(), work("a"), func(ctx context.Context, _ *sql.Tx) error {
				runs++
				return s.write("a")(ctx, nil)
			})
			require.NoError(t, err)
			require.Equal(t, 2, runs, "the answer to a new claim was obeyed")
			require.Equal(t, []string{"a"}, s.effects)
			require.Equal(t, 1, events.count("finish done"))
			require.Equal(t, 1, events.count("finish superseded")+events.count("finish record_lost"))
		})
	}
}

func TestWorkThatEndsItsTransactionIsToldSo(t *testing.T) {
	s, g := newTx(t)
	s.verdict = func() error { return fmt.Errorf("%w: …", dedup.ErrTxEnded) }
	_, err := g.DoInTx(t.Context(), work("a"), s.write("a"))
	require.ErrorIs(t, err, dedup.ErrTxEnded)
	require.Equal(t, 2, state(t, g, "a").Attempt)
}

// A beat in the window between verdict and commit would wait for the row's lock, and with it the
// beats of all other claims; the end of the lease would call off the commit.
func TestNothingDisturbsATransactionThatIsEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := newTx(t)
		other, err := g.Claim(t.Context(), work("other"))
		require.NoError(t, err)
		var ended error
		s.commit = func() error {
			require.EqualValues(t, 2, s.beaten.Swap(0), "at once, while the work ran")
			time.Sleep(45 * time.Second) // more than a lease
			require.EqualValues(t, 1, s.beaten.Load(), "the other claim alone")
			return nil
		}
		ran, err := g.DoInTx(t.Context(), work("a"), func(ctx context.Context, _ *sql.Tx) error {
			context.AfterFunc(ctx, func() { ended = context.Cause(ctx) })
			time.Sleep(55 * time.Second) // between two beats
			require.NoError(t, ctx.Err(), "beaten while it runs")
			return s.write("a")(ctx, nil)
		})
		require.NoError(t, err)
		require.True(t, ran)
		synctest.Wait()
		require.ErrorIs(t, ended, context.Canceled, "ended by its end, not by the lease")
		require.True(t, other.Held())
		require.NoError(t, other.Release(t.Context()))
	})
}

func TestCommitThatNeverEndsIsCalledOffInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := newTx(t)
		var work1 context.Context
		s.verdict = func() error {
			<-work1.Done()
			return fmt.Errorf("%w: %w", dedup.ErrUnavailable, context.Cause(work1))
		}
		begun := time.Now()
		_, err := g.DoInTx(t.Context(), work("a"), func(ctx context.Context, _ *sql.Tx) error {
			work1 = ctx
			return nil
		})
		require.ErrorIs(t, err, dedup.ErrLeaseLost)
		require.Equal(t, 2*g.Options().Lease, time.Since(begun))
	})
}

func TestDoneWorkIsNotCommittedAgain(t *testing.T) {
	s, g := newTx(t)
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.NoError(t, c.CompleteInTx(t.Context(), s.write("a")))
	require.ErrorContains(t, c.CompleteInTx(t.Context(), s.write("a")), `dedup: test "a" is done already`)
	require.NoError(t, c.Complete(t.Context(), nil), "said before")
	require.NoError(t, c.Release(t.Context()))
	require.Equal(t, []string{"a"}, s.effects)
}

func TestGuardThatCannotJoinTransactionsSaysWhy(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	ran, err := g.DoInTx(t.Context(), work("a"), nil)
	require.False(t, ran)
	require.ErrorContains(t, err, "needs a store that joins transactions (sqlstore, tierstore); the Guard has *memstore.Store")
	open := newGuard(t, &tx{}, &dedup.Options{FailOpen: true})
	require.ErrorContains(t, open.JoinsTx(), "contradicts Options.FailOpen")
}

// narrow takes no results.
type narrow struct{ dedup.Store }

func (n *narrow) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	for i := range in {
		if in[i].Result != nil {
			out[i] = fmt.Errorf("%w: 1048578 bytes", dedup.ErrResultTooLarge)
			return nil
		}
	}
	return n.Store.Finish(ctx, in, out)
}

func TestResultThatIsTooLargeDoesNotRepeatTheEffect(t *testing.T) {
	g := newGuard(t, &narrow{memstore.New()}, nil)
	effects := 0
	get := func(context.Context) (string, error) { effects++; return "much", nil }
	v, ran, err := dedup.DoValue(t.Context(), g, work("a"), get)
	require.ErrorIs(t, err, dedup.ErrResultTooLarge)
	require.True(t, ran)
	require.Equal(t, "much", v)
	_, ran, err = dedup.DoValue(t.Context(), g, work("a"), get)
	require.ErrorContains(t, err, "its result could not be stored")
	require.False(t, ran)
	require.Equal(t, 1, effects)
}
