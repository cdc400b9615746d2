package main

import (
	"context"
	"database/sql"
	"log"
	"os/signal"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	db, err := sql.Open("pgx", "postgres://localhost/billing")
	check(err)
	store, err := sqlstore.New(db, sqlstore.PostgreSQL, nil)
	check(err)
	check(store.Migrate(ctx)) // makes the table, once; safe from every instance
	guard, err := dedup.New("billing", store, nil)
	check(err)
	source, err := kafka.NewSource(kafka.Cluster{Brokers: []string{"localhost:9092"}}, "billing", []string{"orders"}, nil)
	check(err)
	c, err := consumer.NewInTx(source, guard, credit, nil)
	check(err)
	check(c.Run(ctx))
}

// credit neither commits nor rolls back: returning nil or an error says it.
func credit(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (order_id, body) VALUES ($1, $2)", m.ID, m.Body)
	return err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
