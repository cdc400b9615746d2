package dedup_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func announced(id string) dedup.Work {
	w := work(id)
	w.MustExist = true
	return w
}

func TestWorkThatMustExistIsRefusedAndLeavesNoRecord(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	for range 2 {
		c, err := g.Claim(t.Context(), announced("a"))
		require.NoError(t, err)
		require.Equal(t, dedup.Absent, c.State)
		require.NoError(t, c.Release(t.Context()))
	}
	ran, err := g.Do(t.Context(), announced("a"), func(context.Context) error { return nil })
	require.False(t, ran)
	require.ErrorIs(t, err, dedup.ErrNotFound)
	require.NotErrorIs(t, err, dedup.ErrFailed)
	_, err = g.Inspect(t.Context(), work("a"))
	require.ErrorIs(t, err, dedup.ErrNotFound)
}

func TestAnnouncedWorkRunsOnce(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.NoError(t, c.Release(t.Context()))
	for i := range 2 {
		ran, err := g.Do(t.Context(), announced("a"), func(context.Context) error { return nil })
		require.NoError(t, err)
		require.Equal(t, i == 0, ran)
	}
}

func TestBatchKeepsApartWhatMustExistAndWhatNeedNot(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	errs := g.DoBatch(t.Context(), []dedup.Work{announced("a"), work("b")}, func(_ context.Context, run []int) error {
		require.Equal(t, []int{1}, run)
		return nil
	})
	require.ErrorIs(t, errs[0], dedup.ErrNotFound)
	require.NoError(t, errs[1])
}
