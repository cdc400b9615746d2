package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// Other libraries' transactions and pools, which return what is their own.
type (
	executor struct{ outbox.Tx }
	ownTx    struct{ *sql.Tx }
	ownPool  struct{ *sql.DB }
)

func (t ownTx) BeginTx(context.Context, *sql.TxOptions) (ownTx, error) { return t, nil } // a savepoint

func (p ownPool) BeginTx(ctx context.Context, o *sql.TxOptions) (outbox.Tx, error) {
	return p.DB.BeginTx(ctx, o)
}

func TestWriteTellsTransactionsOfOtherLibrariesFromTheirPools(t *testing.T) {
	b := newBase(t, outbox.SQLite)
	m := outbox.Message{Topic: "t"}
	for _, pool := range []outbox.Tx{ownPool{b.db}, &ownPool{b.db}} {
		err := b.Write(t.Context(), pool, m)
		require.ErrorIs(t, err, outbox.ErrNoTransaction)
		require.ErrorContains(t, err, "ownPool: not a transaction: the message would be there whether or not your rows are; pass what BeginTx returned")
	}
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, s.Pending)

	require.NoError(t, b.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, b.Write(ctx, ownTx{tx}, m))
		return b.Write(ctx, executor{tx}, m) // of which nothing is known but that it executes
	}))
	s, err = b.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, s.Pending)
}
