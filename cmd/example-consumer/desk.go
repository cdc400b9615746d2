package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/idemq/idemq/outbox"
)

// desk takes orders, with --outbox: a row and a message in one transaction of its own SQLite database.
type desk struct {
	db     *sql.DB
	outbox *outbox.Outbox
	topic  string
}

func openDesk(ctx context.Context, dsn, topic string) (*desk, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	d := &desk{db: db, topic: topic}
	if d.outbox, err = outbox.New(db, outbox.SQLite, nil); err == nil {
		err = d.outbox.Migrate(ctx)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE TABLE customer_orders (id TEXT PRIMARY KEY)")
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

func (d *desk) close() error { return d.db.Close() }

var errDeclined = errors.New("the customer has no credit")

// take takes an order. One that is declined is found to be so when everything is written, and is rolled back; of one that
// comes again everything is there already.
func (d *desk) take(ctx context.Context, order string, declined bool) error {
	err := d.outbox.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO customer_orders (id) VALUES (?) ON CONFLICT DO NOTHING", order); err != nil {
			return err
		}
		if err := d.outbox.Write(ctx, tx, sampleOrder(d.topic, order)); err != nil {
			return err
		}
		if declined {
			return errDeclined
		}
		return nil
	})
	if errors.Is(err, errDeclined) {
		return nil
	}
	return err
}

// pending are the orders whose messages are not noted as sent.
func (d *desk) pending(ctx context.Context) (map[string]bool, error) {
	rows, err := d.db.QueryContext(ctx, "SELECT id FROM "+d.outbox.Table()+" WHERE state <> 1")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]bool)
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		all[id] = true
	}
	return all, rows.Err()
}

// committed is how many orders and messages are there.
func (d *desk) committed(ctx context.Context) (orders, messages int, err error) {
	err = d.db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM customer_orders), (SELECT count(*) FROM "+d.outbox.Table()+")").Scan(&orders, &messages)
	return orders, messages, err
}
