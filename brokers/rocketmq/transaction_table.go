package rocketmq

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

//go:embed migrations
var migrations embed.FS

// mark is the state of a key in the table of markers.
type mark int

const (
	markAbsent    mark = iota
	markCommitted      // it came with the rows of its transaction; it holds the message
	markConfirmed      // a broker has said that the message is visible; it holds none any more
	markTombstone      // "rollback" was answered, or is about to be
	markHome           // of the one row that names the table
)

// homeKey is the key of that row. No UNIQ_KEY is as short.
const homeKey = "home"

var errNoHome = errors.New("the table of markers has no name yet: call Migrate at start")

// markers is the table in which local transactions leave a row of their own.
type markers struct {
	db      *sql.DB
	dialect sqldialect.Dialect
	table   sqldialect.Table
	schema  sqldialect.Schema
	text    markerStatements

	mu   sync.Mutex
	name string // of the table, "" before it was read
}

func newMarkers(db *sql.DB, d sqldialect.Dialect, name string) (*markers, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	t, err := sqldialect.ParseTable(d, name)
	if err != nil {
		return nil, fmt.Errorf("TransactionOptions.Table: %w", err)
	}
	m := &markers{db: db, dialect: d, table: t, schema: sqldialect.Schema{Dialect: d, Table: t}, text: newMarkerStatements(d, t.Quoted())}
	m.schema.Steps, err = sqldialect.ReadSteps(migrations, "migrations", d)
	return m, err
}

// migrate makes the table and names it, at random, so that half messages of another one are told from its own.
func (m *markers) migrate(ctx context.Context) error {
	if err := m.schema.Migrate(ctx, m.db); err != nil {
		return err
	}
	_, err := m.home(ctx)
	if !errors.Is(err, errNoHome) {
		return err
	}
	_, err = m.db.ExecContext(ctx, m.text.insert, m.clocked([]byte(homeKey), int64(markHome), "", []byte(rand.Text()), nil)...)
	if sqldialect.Classify(m.dialect, err) == sqldialect.Duplicate { // another process was quicker
		err = nil
	}
	return err
}

// home is the table's name.
func (m *markers) home(ctx context.Context) (string, error) {
	m.mu.Lock()
	name := m.name
	m.mu.Unlock()
	if name != "" {
		return name, nil
	}
	err := m.db.QueryRowContext(ctx, m.text.home, []byte(homeKey)).Scan(&name)
	if errors.Is(err, sql.ErrNoRows) {
		return "", errNoHome
	}
	if err != nil {
		return "", m.explain(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.name = name
	return name, nil
}

// clocked adds SQLite's clock to the parameters; servers have their own.
func (m *markers) clocked(args ...any) []any {
	if m.dialect == sqldialect.SQLite {
		args = append(args, time.Now().UnixMicro())
	}
	return args
}

// mark writes the marker of h, as a part of its transaction.
func (m *markers) mark(ctx context.Context, tx *sql.Tx, h *half) error {
	_, err := tx.ExecContext(ctx, m.text.insert, m.clocked([]byte(h.key), int64(markCommitted), h.record.topic, h.record.head, h.record.body)...)
	return err
}

// holds reports whether the transaction still has its marker.
func (m *markers) holds(ctx context.Context, tx *sql.Tx, key string) (bool, error) {
	got, err := scanMark(tx.QueryRowContext(ctx, m.text.look, []byte(key)))
	return got == markCommitted, err
}

func scanMark(row *sql.Row) (got mark, err error) {
	err = row.Scan(&got)
	if errors.Is(err, sql.ErrNoRows) {
		return markAbsent, nil
	}
	return got, err
}

// look reads what is committed. It says so to servers that may be set to show more than that.
func (m *markers) look(ctx context.Context, key string) (mark, error) {
	if m.dialect == sqldialect.SQLite {
		got, err := scanMark(m.db.QueryRowContext(ctx, m.text.look, []byte(key)))
		return got, m.explain(err)
	}
	tx, err := m.begin(ctx, true)
	if err != nil {
		return markAbsent, err
	}
	defer tx.Rollback()
	got, err := scanMark(tx.QueryRowContext(ctx, m.text.look, []byte(key)))
	return got, m.explain(err)
}

func (m *markers) begin(ctx context.Context, readOnly bool) (*sql.Tx, error) {
	if m.dialect == sqldialect.SQLite {
		return m.db.BeginTx(ctx, nil)
	}
	return m.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: readOnly})
}

// bury commits a tombstone. It waits about a second at most for a transaction that has written the
// marker and is not over; the error is then a sqldialect.LockWait.
func (m *markers) bury(ctx context.Context, key string) error {
	tx, err := m.begin(ctx, false)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	switch m.dialect {
	case sqldialect.PostgreSQL:
		_, err = tx.ExecContext(ctx, "SET LOCAL lock_timeout = '1s'")
	case sqldialect.MySQL: // whose insert would wait for 50 s
		var got mark
		if err = tx.QueryRowContext(ctx, m.text.look+" FOR UPDATE NOWAIT", []byte(key)).Scan(&got); errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, m.text.insert, m.clocked([]byte(key), int64(markTombstone), "", nil, nil)...); err != nil {
		return err
	}
	return tx.Commit()
}

// confirm takes the messages out of markers: brokers have them.
func (m *markers) confirm(ctx context.Context, keys []string) error {
	var contended error
	err := m.dialect.Contend(ctx, len(keys), func(from, to int) error {
		rows := sqldialect.NewRows(m.dialect, keyShape, to-from)
		for _, k := range keys[from:to] {
			rows.Bytes([]byte(k))
		}
		return m.confirmOnly(ctx, rows.Args())
	}, func(_ int, err error) { contended = err })
	return cmp.Or(err, contended)
}

// confirmOnly locks the markers that it is given and nothing else: under REPEATABLE READ, which is MySQL's own, it would lock the
// gaps of keys that are gone, too, into which others write theirs.
func (m *markers) confirmOnly(ctx context.Context, args []any) error {
	if m.dialect != sqldialect.MySQL {
		_, err := m.db.ExecContext(ctx, m.text.confirm, args...)
		return err
	}
	tx, err := m.begin(ctx, false)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, m.text.confirm, args...); err != nil {
		return err
	}
	return tx.Commit()
}

// sweepRows bounds one statement, and with it how long its locks last.
const sweepRows = 1000

// sweep deletes confirmed markers and tombstones of that age, and returns how many.
func (m *markers) sweep(ctx context.Context, age time.Duration) (int64, error) {
	tx, err := m.begin(ctx, false)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	res, err := tx.ExecContext(ctx, m.text.sweep, m.clocked(age.Microseconds())...)
	if err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// waitingMarker is a marker that no broker has confirmed.
type waitingMarker struct {
	place
	marker
}

// place is where a marker stands in the order of age.
type place struct {
	writtenAt int64
	key       string
}

// unconfirmed lists committed markers of that age, the oldest first, from behind a place on; the zero one is before all.
func (m *markers) unconfirmed(ctx context.Context, age time.Duration, behind place, limit int) (all []waitingMarker, err error) {
	rows, err := m.db.QueryContext(ctx, m.text.unconfirmed, m.clocked(age.Microseconds(), behind.writtenAt, behind.writtenAt, []byte(behind.key), int64(limit))...)
	if err != nil {
		return nil, m.explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		var k waitingMarker
		if err := rows.Scan(&k.key, &k.writtenAt, &k.topic, &k.head, &k.body); err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, rows.Err()
}

// explain says what the caller can do about err, where anything can be said.
func (m *markers) explain(err error) error {
	switch sqldialect.Classify(m.dialect, err) {
	case sqldialect.NoTable:
		return fmt.Errorf("table %s is missing or of another version: call Migrate at start: %w", m.table, err)
	case sqldialect.ReadOnly:
		return fmt.Errorf("the database takes no writes; connect to the primary: %w", err)
	case sqldialect.TooBig:
		return fmt.Errorf("the message does not fit table %s, or the server's limit for a statement: %w", m.table, err)
	}
	return err
}

// waiting is how many committed markers of that age there are.
func (m *markers) waiting(ctx context.Context, age time.Duration) (n int64, err error) {
	err = m.db.QueryRowContext(ctx, m.text.waiting, m.clocked(age.Microseconds())...).Scan(&n)
	return n, err
}
