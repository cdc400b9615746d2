package dedup_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// beatless is a Store that hears no beat of the claims with the lease given.
type beatless struct {
	dedup.Store
	lease time.Duration
}

func (b *beatless) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	for i := range in {
		if in[i].Lease == b.lease {
			out[i] = errBoom
		} else if err := b.Store.Extend(ctx, in[i:i+1], out[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func TestDoBatchThatLosesOneClaimCountsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &beatless{Store: memstore.New(), lease: 10 * time.Second}
		g := newGuard(t, s, nil)
		works := []dedup.Work{work("a"), work("b"), work("c")}
		works[1].Lease = s.lease
		errs := g.DoBatch(t.Context(), works, func(ctx context.Context, run []int) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		for i, w := range works {
			require.ErrorIs(t, errs[i], dedup.ErrLeaseLost)
			r, err := newGuard(t, s.Store, nil).Inspect(t.Context(), w)
			require.NoError(t, err)
			require.Equal(t, dedup.Released, r.State)
			require.Equal(t, 1, r.Attempt, "we made it fail")
			require.Zero(t, r.Crashes)
		}
	})
}

func TestDoBatchTellsTheCauseOfItsCallersContext(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	errs := g.DoBatch(ctx, []dedup.Work{work("a")}, func(ctx context.Context, run []int) error {
		cancel(errBoom)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	require.ErrorIs(t, errs[0], errBoom)
	r, err := g.Inspect(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, 2, r.Attempt, "the caller's word is a failure, as it is in Do")
}

func TestDoBatchTellsWhenItsFailureIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		g := newGuard(t, refusing(memstore.New()), nil)
		errs := g.DoBatch(t.Context(), []dedup.Work{work("a")}, func(context.Context, []int) error { return own })
		require.ErrorIs(t, errs[0], own)
		require.ErrorIs(t, errs[0], dedup.ErrUnavailable)
	})
}
