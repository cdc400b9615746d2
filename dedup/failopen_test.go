package dedup_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// tooMany works are those of one full store call and one more.
func tooMany() []dedup.Work {
	works := make([]dedup.Work, 1025)
	for i := range works {
		works[i] = work(strconv.Itoa(i))
	}
	return works
}

// tailless is a Store that, once down, answers full calls only. The first item of a finish is superseded then.
type tailless struct {
	dedup.Store
	down bool
}

func (s *tailless) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	if s.down && len(in) < 1024 {
		return errBoom
	}
	return s.Store.Claim(ctx, in, out)
}

func (s *tailless) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if !s.down {
		return s.Store.Finish(ctx, in, out)
	}
	if len(in) < 1024 {
		return errBoom
	}
	out[0] = dedup.ErrSuperseded
	return s.Store.Finish(ctx, in[1:], out[1:])
}

func TestFailOpenRunsOnlyWhatTheStoreDidNotAnswer(t *testing.T) {
	var events seen
	s := &tailless{Store: memstore.New()}
	g := newGuard(t, s, &dedup.Options{FailOpen: true, Observe: events.observe})
	for _, err := range g.DoBatch(t.Context(), tooMany(), func(context.Context, []int) error { return nil }) {
		require.NoError(t, err)
	}
	s.down = true
	var again []int
	for _, err := range g.DoBatch(t.Context(), tooMany(), func(_ context.Context, run []int) error { again = run; return nil }) {
		require.NoError(t, err)
	}
	require.Equal(t, []int{1024}, again, "the others are known to be done")
	require.Equal(t, 1, events.count("claim unprotected"))
	require.Equal(t, 1024, events.count("claim duplicate"))
}

func TestFailOpenRunsAnItemThatTheStoreDidNotAnswer(t *testing.T) {
	p := &partly{Store: memstore.New(), lose: true}
	g := newGuard(t, p, &dedup.Options{FailOpen: true})
	claims := make([]*dedup.Claim, 2)
	require.NoError(t, g.ClaimBatch(t.Context(), []dedup.Work{work("a"), work("b")}, claims))
	require.NoError(t, claims[0].Err)
	require.Equal(t, dedup.Acquired, claims[0].State)
	require.True(t, claims[0].Unprotected())
	require.False(t, claims[1].Unprotected())
	for _, c := range claims {
		require.NoError(t, c.Complete(t.Context(), nil))
	}
}

func TestFailOpenTakesTheVerdictsThatTheStoreAnswered(t *testing.T) {
	var events seen
	s := &tailless{Store: memstore.New()}
	g := newGuard(t, s, &dedup.Options{FailOpen: true, Observe: events.observe})
	claims := make([]*dedup.Claim, 1025)
	require.NoError(t, g.ClaimBatch(t.Context(), tooMany(), claims))
	outs, errs := make([]dedup.Outcome, len(claims)), make([]error, len(claims))
	for i, c := range claims {
		outs[i] = dedup.Outcome{Claim: c, State: dedup.Done}
	}
	s.down = true
	require.NoError(t, g.FinishBatch(t.Context(), outs, errs))
	require.ErrorIs(t, errs[0], dedup.ErrSuperseded)
	for _, err := range errs[1:] {
		require.NoError(t, err)
	}
	require.Equal(t, 1, events.count("finish superseded"))
	require.Equal(t, 1023, events.count("finish done"))
	require.Equal(t, 1, events.count("finish unprotected"))
}

func TestFailOpenGoesOnWithoutTheVerdictOfOneItem(t *testing.T) {
	var events seen
	s := refusing(memstore.New())
	s.answer = func(*dedup.FinishRequest) error { return fmt.Errorf("%w: %w", dedup.ErrUnavailable, errBoom) }
	ran, err := newGuard(t, s, &dedup.Options{FailOpen: true, Observe: events.observe}).Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 2, s.calls, "it may have been one reply")
	require.Equal(t, 1, events.count("finish unprotected"))
}

func TestClaimBatchThatFailsInPartHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tailless{Store: memstore.New(), down: true}
		claims := make([]*dedup.Claim, 1025)
		g := newGuard(t, s, nil)
		require.ErrorIs(t, g.ClaimBatch(t.Context(), tooMany(), claims), dedup.ErrUnavailable)
		synctest.Wait()
		s.down = false
		c, err := newGuard(t, s, nil).Claim(t.Context(), work("1"))
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, c.State)
		require.Zero(t, c.Crashes)
		require.NoError(t, c.Release(t.Context()))
	})
}
