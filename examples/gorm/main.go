// Command gorm writes messages in transactions of gorm: an order and the message about it commit together, or neither.
// What a consumer does with that message commits with the verdict on it, in a transaction that is gorm's again.
//
//	IDEMQ_POSTGRES_DSN=postgres://user:password@localhost:5432/database go run ./gorm
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/outbox"
)

type order struct {
	ID    string `gorm:"primaryKey"`
	Cents int
}

type invoice struct {
	OrderID string
	Cents   int
}

type shop struct {
	db  *gorm.DB
	out *outbox.Outbox
}

func newShop(ctx context.Context, db *gorm.DB) (*shop, error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	out, err := outbox.New(pool, outbox.PostgreSQL, nil)
	if err == nil {
		err = out.Migrate(ctx)
	}
	if err == nil {
		err = db.WithContext(ctx).AutoMigrate(&order{}, &invoice{})
	}
	return &shop{db, out}, err
}

// place takes an order. Where in the transaction its message is written does not matter.
func (s *shop) place(ctx context.Context, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	err = s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := s.out.Write(ctx, tx.Statement.ConnPool, outbox.Message{Topic: "orders", Key: o.ID, Body: body}); err != nil {
			return err
		}
		return tx.Create(&o).Error // if the order is there already, its message goes with the rollback
	})
	if err == nil {
		s.out.Wake() // the relay, if it runs in this process; others poll
	}
	return err
}

// biller consumes what a relay has published: outbox.NewRelay(s.out, publisher, nil).
func (s *shop) biller(ctx context.Context, source consumer.Source) (*consumer.Consumer, error) {
	pool, err := s.db.DB()
	if err != nil {
		return nil, err
	}
	store, err := sqlstore.New(pool, sqlstore.PostgreSQL, nil)
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
	db := s.db.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = tx // all that db does from here on is in tx
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return consumer.Permanent(err)
	}
	if err := db.Create(&invoice{OrderID: o.ID, Cents: o.Cents}).Error; err != nil {
		return err
	}
	return s.out.Write(ctx, tx, outbox.Message{ID: m.ChildID(0), Topic: "invoices", Key: o.ID, Body: m.Body})
}

func main() {
	if err := run(context.Background(), os.Getenv("IDEMQ_POSTGRES_DSN")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dsn string) error {
	db, err := gorm.Open(postgres.Open(dsn), nil)
	if err != nil {
		return err
	}
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
