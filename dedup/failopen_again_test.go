package dedup_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// contended is a store that is up, and answers no item of its first claim: others were in the way.
type contended struct {
	*memstore.Store
	asked int
}

func (s *contended) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	if s.asked++; s.asked > 1 {
		return s.Store.Claim(ctx, in, out)
	}
	for i := range out {
		out[i] = dedup.Verdict{Err: dedup.ErrUnavailable}
	}
	return nil
}

func TestFailOpenAsksOnceMoreForWhatAloneWasNotAnswered(t *testing.T) {
	store := &contended{Store: memstore.New()}
	w := dedup.Work{Scope: "s", ID: "a"}
	first, err := dedup.New("app", store.Store, nil)
	require.NoError(t, err)
	owner, err := first.Claim(t.Context(), w)
	require.NoError(t, err)
	g, err := dedup.New("app", store, &dedup.Options{FailOpen: true, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c, err := g.Claim(t.Context(), w)
	require.NoError(t, err)
	require.False(t, c.Unprotected(), "it would run beside its owner")
	require.Equal(t, dedup.InProgress, c.State)
	require.Equal(t, 2, store.asked)
	require.NoError(t, owner.Complete(t.Context(), nil))
}
