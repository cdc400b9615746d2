package main

import (
	"context"
	"database/sql"
	"log"
	"os/signal"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	db, err := sql.Open("pgx", "postgres://localhost/shop")
	check(err)
	out, err := outbox.New(db, outbox.PostgreSQL, nil)
	check(err)
	check(out.Migrate(ctx)) // makes the tables, once; safe from every instance
	check(place(ctx, out, "order-7"))

	publisher, err := kafka.NewPublisher(kafka.Cluster{Brokers: []string{"localhost:9092"}}, nil)
	check(err)
	relay, err := outbox.NewRelay(out, publisher, nil)
	check(err)
	check(relay.Run(ctx)) // in this process or in others, as many as you like
	check(publisher.Close())
}

// place has the order and the message about it, or neither.
func place(ctx context.Context, out *outbox.Outbox, id string) error {
	return out.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
			return err
		}
		return out.Write(ctx, tx, outbox.Message{ID: id + "-placed", Topic: "orders", Key: id, Body: []byte(id)})
	})
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
