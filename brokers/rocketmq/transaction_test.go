package rocketmq_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMessageIsVisibleIfAndOnlyIfItsTransactionCommits(t *testing.T) {
	eachShop(t, func(t *testing.T, s *shop) {
		w := newWorld(t, 2)
		p := w.newSeller(t, s)
		require.NoError(t, p.Send(t.Context(), w.message("kept"), s.order("kept")))
		require.ErrorIs(t, p.Send(t.Context(), w.message("dropped"), failing(s.order("dropped"))), errOrder)
		require.NoError(t, p.Send(t.Context(), w.message("last"), s.order("last")))
		seen := visible(t, w.source(t), "kept", "last")
		require.Equal(t, map[string]int{"kept": 1, "last": 1}, seen)
		require.True(t, s.has(t, "kept"))
		require.False(t, s.has(t, "dropped"))
		require.Eventually(t, func() bool { return s.marks(t, 2) == 2 }, eventually, step, "confirmed")
		require.NoError(t, p.end())
	})
}
