package main

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/examples/internal/check"
	"github.com/idemq/idemq/outbox"
)

func TestOrders(t *testing.T) {
	db, err := sqlx.ConnectContext(t.Context(), "pgx", check.PostgreSQL(t))
	require.NoError(t, err)
	defer db.Close()
	s, err := newShop(t.Context(), db)
	require.NoError(t, err)
	check.Orders(t, check.Shop{
		DB: db.DB, Outbox: s.out, Biller: s.biller,
		Place: func(ctx context.Context, id string, cents int) error { return s.place(ctx, order{id, cents}) },
		Pools: []outbox.Tx{db, db.DB},
	})
}
