package shop

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/idemq/idemq/dedup/sqlstore"
)

// tables are the shop's own, beside those of the outbox and the dedup table. The ledger's has no unique key: a
// message that was booked twice would be two rows, for everybody to see.
type tables struct{ dialect sqlstore.Dialect }

const columns = "(id varchar(32) NOT NULL%s, customer varchar(32) NOT NULL, item varchar(64) NOT NULL, " +
	"quantity integer NOT NULL, cents bigint NOT NULL, way varchar(16) NOT NULL, at bigint NOT NULL)"

func (t tables) create(ctx context.Context, db *sql.DB) error {
	for name, key := range map[string]string{"shop_orders": " PRIMARY KEY", "shop_ledger": ""} {
		if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+name+" "+strings.Replace(columns, "%s", key, 1)); err != nil {
			return err
		}
	}
	return nil
}

// in is query in the words of the dialect.
func (t tables) in(query string) string {
	if t.dialect != sqlstore.PostgreSQL {
		return query
	}
	parts := strings.Split(query, "?")
	for i := range parts[1:] {
		parts[i] += "$" + string(rune('1'+i)) // there are never ten
	}
	return strings.Join(parts, "")
}

const fields = "id, customer, item, quantity, cents, way"

// addOrder reports whether the order was new.
func (t tables) addOrder(ctx context.Context, tx *sql.Tx, o order) (bool, error) {
	_, err := t.one(tx.QueryRowContext(ctx, t.in("SELECT "+fields+" FROM shop_orders WHERE id = ?"), o.ID))
	if !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	return true, t.insert(ctx, tx, "shop_orders", o)
}

// book adds a row to the ledger, whatever stands there.
func (t tables) book(ctx context.Context, tx *sql.Tx, o order) error {
	return t.insert(ctx, tx, "shop_ledger", o)
}

func (t tables) insert(ctx context.Context, tx *sql.Tx, table string, o order) error {
	_, err := tx.ExecContext(ctx, t.in("INSERT INTO "+table+" ("+fields+", at) VALUES (?, ?, ?, ?, ?, ?, ?)"),
		o.ID, o.Customer, o.Item, o.Quantity, o.Cents, o.Way, time.Now().UnixMicro())
	return err
}

func (t tables) order(ctx context.Context, db *sql.DB, id string) (order, error) {
	return t.one(db.QueryRowContext(ctx, t.in("SELECT "+fields+" FROM shop_orders WHERE id = ?"), id))
}

// ledger is the newest rows, at most n.
func (t tables) ledger(ctx context.Context, db *sql.DB, n int) (all []order, err error) {
	rows, err := db.QueryContext(ctx, t.in("SELECT "+fields+" FROM shop_ledger ORDER BY at DESC LIMIT ?"), n)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		o, err := t.one(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, rows.Err()
}

// sums is how many orders were placed, how many of them are booked, and what is booked in all.
type sums struct {
	Placed, Booked, Rows int
	Cents                int64
}

// OnTheirWay is how many orders the ledger does not know yet.
func (s sums) OnTheirWay() int { return s.Placed - s.Booked }

func (t tables) sums(ctx context.Context, db *sql.DB) (s sums, err error) {
	err = db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM shop_orders), count(DISTINCT id), count(*), coalesce(sum(cents), 0) FROM shop_ledger").
		Scan(&s.Placed, &s.Booked, &s.Rows, &s.Cents)
	return s, err
}

// one reads a row of fields.
func (t tables) one(row interface{ Scan(...any) error }) (o order, err error) {
	err = row.Scan(&o.ID, &o.Customer, &o.Item, &o.Quantity, &o.Cents, &o.Way)
	return o, err
}
