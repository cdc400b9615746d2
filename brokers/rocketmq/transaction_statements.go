package rocketmq

import (
	"fmt"

	"github.com/idemq/idemq/internal/sqldialect"
)

// markerStatements are the texts for one table.
type markerStatements struct {
	home, insert, look, confirm, sweep, unconfirmed, waiting string
}

// keyShape is a batch of keys.
var keyShape = sqldialect.Shape{{Name: "k", Kind: sqldialect.Hash}}

func newMarkerStatements(d sqldialect.Dialect, table string) markerStatements {
	old := func(states string, params int) string { // the age is the first parameter
		return fmt.Sprintf("state IN (%s) AND written_at < %s - %s", states, clockOf(d, params), d.Arg(1))
	}
	s := markerStatements{
		home: fmt.Sprintf("SELECT head FROM %s WHERE k = %s AND state = %d", table, d.Arg(1), markHome),
		look: fmt.Sprintf("SELECT state FROM %s WHERE k = %s", table, d.Arg(1)),
		insert: fmt.Sprintf("INSERT INTO %s (k, state, topic, head, body, written_at) VALUES (%s, %s, %s, %s, %s, %s)",
			table, d.Arg(1), d.Arg(2), d.Arg(3), d.Arg(4), d.Arg(5), clockOf(d, 5)),
		unconfirmed: fmt.Sprintf("SELECT k, written_at, topic, head, body FROM %s WHERE %s AND written_at >= %s AND (written_at > %s OR k > %s) ORDER BY written_at, k LIMIT %s",
			table, old("1", 5), d.Arg(2), d.Arg(3), d.Arg(4), d.Arg(5)),
		waiting: fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE %s", table, old("1", 1)),
	}
	keys := d.From(keyShape, "q")
	const set = "state = 2, head = NULL, body = NULL"
	switch d {
	case sqldialect.PostgreSQL:
		s.confirm = fmt.Sprintf("UPDATE %s AS t SET %s FROM %s WHERE t.k = q.k AND t.state = 1", table, set, keys)
		s.sweep = fmt.Sprintf("DELETE FROM %s WHERE k IN (SELECT k FROM %s WHERE %s LIMIT %d FOR UPDATE SKIP LOCKED)", table, table, old("2, 3", 1), sweepRows)
	case sqldialect.MySQL: // which would read a small table from end to end, and wait for the lock of every marker on the way
		s.confirm = fmt.Sprintf("UPDATE %s STRAIGHT_JOIN %s AS t FORCE INDEX FOR JOIN (PRIMARY) ON t.k = q.k SET t.state = 2, t.head = NULL, t.body = NULL WHERE t.state = 1", keys, table)
		s.sweep = fmt.Sprintf("DELETE FROM %s WHERE %s LIMIT %d", table, old("2, 3", 1), sweepRows)
	default:
		s.confirm = fmt.Sprintf("UPDATE %s AS t SET %s FROM %s WHERE t.k = q.k AND t.state = 1", table, set, keys)
		s.sweep = fmt.Sprintf("DELETE FROM %s WHERE k IN (SELECT k FROM %s WHERE %s LIMIT %d)", table, table, old("2, 3", 1), sweepRows)
	}
	return s
}

// clockOf is the database's time in microseconds. SQLite has no clock: its time is the parameter
// after n others.
func clockOf(d sqldialect.Dialect, n int) string {
	switch d {
	case sqldialect.PostgreSQL:
		return "(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
	case sqldialect.MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	default:
		return d.Arg(n + 1)
	}
}
