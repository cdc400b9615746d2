package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/idemq/idemq/examples/internal/check"
	"github.com/idemq/idemq/outbox"
)

func TestOrders(t *testing.T) {
	testOrders(t, &gorm.Config{Logger: logger.Discard})
}

func TestOrdersByPreparedStatements(t *testing.T) {
	testOrders(t, &gorm.Config{Logger: logger.Discard, PrepareStmt: true})
}

func testOrders(t *testing.T, c *gorm.Config) {
	db, err := gorm.Open(postgres.Open(check.PostgreSQL(t)), c)
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	defer pool.Close()
	s, err := newShop(t.Context(), db)
	require.NoError(t, err)
	check.Orders(t, check.Shop{
		DB: pool, Outbox: s.out, Biller: s.biller,
		Place: func(ctx context.Context, id string, cents int) error { return s.place(ctx, order{id, cents}) },
		Pools: []outbox.Tx{db.Statement.ConnPool, pool},
	})
}
