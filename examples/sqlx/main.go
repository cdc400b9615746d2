// Command sqlx writes messages in transactions of sqlx: an order and the message about it commit together, or neither.
// What a consumer does with that message commits with the verdict on it, in a transaction that is sqlx's again.
//
//	IDEMQ_POSTGRES_DSN=postgres://user:password@localhost:5432/database go run ./sqlx
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/outbox"
)

type order struct {
	ID    string
	Cents int
}

type shop struct {
	db  *sqlx.DB
	out *outbox.Outbox
}

func newShop(ctx context.Context, db *sqlx.DB) (*shop, error) {
	out, err := outbox.New(db.DB, outbox.PostgreSQL, nil)
	if err == nil {
		err = out.Migrate(ctx)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, `
			CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents integer NOT NULL);
			CREATE TABLE IF NOT EXISTS invoices (order_id text NOT NULL, cents integer NOT NULL)`)
	}
	return &shop{db, out}, err
}

// place takes an order. Where in the transaction its message is written does not matter.
func (s *shop) place(ctx context.Context, o order) error {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := s.out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: o.ID, Body: body}); err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, "INSERT INTO orders (id, cents) VALUES (:id, :cents)", o); err != nil {
		return err // the order is there already: its message goes with the rollback
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.out.Wake() // the relay, if it runs in this process; others poll
	return nil
}

// biller consumes what a relay has published: outbox.NewRelay(s.out, publisher, nil).
func (s *shop) biller(ctx context.Context, source consumer.Source) (*consumer.Consumer, error) {
	store, err := sqlstore.New(s.db.DB, sqlstore.PostgreSQL, nil)
	if err == nil {
		err = store.Migrate(ctx)
	}
	if err != nil {
		return nil, err
	}
	guard, err := dedup.New("shop", store, nil)
	if err != nil {
		return nil, err
	}
	return consumer.NewInTx(source, guard, s.bill, nil)
}

// bill writes an invoice and a message about it, which commit with the verdict on m: once, however often m comes.
func (s *shop) bill(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
	x := &sqlx.Tx{Tx: tx, Mapper: s.db.Mapper} // it knows no driver, so names are bound by s.db
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return consumer.Permanent(err)
	}
	query, args, err := s.db.BindNamed("INSERT INTO invoices (order_id, cents) VALUES (:id, :cents)", o)
	if err != nil {
		return err
	}
	if _, err := x.ExecContext(ctx, query, args...); err != nil {
		return err
	}
	return s.out.Write(ctx, x, outbox.Message{ID: m.ChildID(0), Topic: "invoices", Key: o.ID, Body: m.Body})
}

func main() {
	if err := run(context.Background(), os.Getenv("IDEMQ_POSTGRES_DSN")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dsn string) error {
	db, err := sqlx.ConnectContext(ctx, "pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := newShop(ctx, db)
	if err != nil {
		return err
	}
	if err := s.place(ctx, order{ID: time.Now().Format("order-150405.000"), Cents: 1999}); err != nil {
		return err
	}
	stats, err := s.out.Stats(ctx)
	fmt.Println("messages that wait for a relay:", stats.Pending)
	return err
}
