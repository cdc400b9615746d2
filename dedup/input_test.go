package dedup_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

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
