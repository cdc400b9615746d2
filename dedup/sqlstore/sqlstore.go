package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// Dialect is the same type as outbox.Dialect.
type Dialect = sqldialect.Dialect

// The dialects.
const (
	PostgreSQL = sqldialect.PostgreSQL
	MySQL      = sqldialect.MySQL // MariaDB too
	SQLite     = sqldialect.SQLite
)

// Store is a dedup.TxStore. It is safe for concurrent use, starts nothing and needs no Close; the
// db stays the caller's to close.
type Store struct {
	db        *sql.DB
	dialect   Dialect
	table     sqldialect.Table
	schema    sqldialect.Schema
	text      statements
	tx        *sql.TxOptions
	maxResult int
	clock     func() time.Time // SQLite's; the servers have their own
	beats     lane
	vanished  vanished
	locked    locked

	mu       sync.Mutex
	prepared map[string]*sql.Stmt // MySQL and SQLite: they would parse each text again
}

// Options tune a Store; nil is the default.
type Options struct {
	// Table is the table's name: letters, digits and underscores, up to 48, not a digit first, with a schema before a dot where
	// it is not the connection's own. Applications may share one: their keys differ all the same.
	// Default: "idemq_dedup".
	Table string
	// Tx are the options of the transactions that InTx begins. Above READ COMMITTED, and at the server's own
	// default, read "Isolation" in the package's documentation. Default: READ COMMITTED on PostgreSQL and MySQL; SQLite has one kind only.
	Tx *sql.TxOptions
	// MaxResult bounds a result, in bytes; a larger one is an error of its Finish.
	// Default: 1 MiB.
	MaxResult int
}

const (
	defaultTable     = "idemq_dedup"
	defaultMaxResult = 1 << 20
	maxMaxResult     = 8<<20 - 1 // MySQL's, as results are sent
)

//go:embed migrations
var migrations embed.FS

// New does no I/O.
func New(db *sql.DB, d Dialect, o *Options) (*Store, error) {
	if o == nil {
		o = &Options{}
	}
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("sqlstore: New: %w", err)
	}
	if db == nil {
		return nil, errors.New("sqlstore: New: db is nil; pass what sql.Open returned")
	}
	s := &Store{db: db, dialect: d, maxResult: o.MaxResult, clock: time.Now, prepared: make(map[string]*sql.Stmt)}
	name := o.Table
	if name == "" {
		name = defaultTable
	}
	var err error
	if s.table, err = sqldialect.ParseTable(d, name); err != nil {
		return nil, fmt.Errorf("sqlstore: New: Options.Table: %w", err)
	}
	switch {
	case o.MaxResult < 0 || o.MaxResult > maxMaxResult:
		return nil, fmt.Errorf("sqlstore: New: Options.MaxResult %d is not between 0 and %d; leave it zero for 1 MiB", o.MaxResult, maxMaxResult)
	case o.MaxResult == 0:
		s.maxResult = defaultMaxResult
	}
	if o.Tx != nil && o.Tx.ReadOnly {
		return nil, errors.New("sqlstore: New: Options.Tx.ReadOnly is set, and the verdict could not be written; leave it off")
	}
	switch {
	case o.Tx != nil:
		tx := *o.Tx // the caller's own may change
		s.tx = &tx
	case d != SQLite:
		s.tx = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	s.schema = sqldialect.Schema{Dialect: d, Table: s.table}
	if s.schema.Steps, err = sqldialect.ReadSteps(migrations, "migrations", d); err != nil {
		return nil, fmt.Errorf("sqlstore: New: %w", err)
	}
	s.text = newStatements(d, s.table)
	if d == PostgreSQL && s.tx.Isolation != sql.LevelReadCommitted && s.tx.Isolation != sql.LevelReadUncommitted {
		s.text.lock = writer{d, s.table.Quoted()}.lock()
	}
	s.beats.db = db
	return s, nil
}

// RecordBytes implements dedup.Sizer: a row without a result and its entries in the indexes, on disk. Of
// SQLite it is not known: 0.
func (s *Store) RecordBytes() int {
	return map[Dialect]int{PostgreSQL: 490, MySQL: 310}[s.dialect]
}

// Migrate creates or upgrades the table; safe to call from every instance at start. It needs the
// right to define tables only where there is something to do. A schema of a later version of this package is refused.
func (s *Store) Migrate(ctx context.Context) error {
	if err := s.schema.Migrate(ctx, s.db); err != nil {
		if errors.Is(err, sqldialect.ErrNewer) {
			err = fmt.Errorf("%w: %w", dedup.ErrUnsafeStore, err)
		}
		return fmt.Errorf("sqlstore: migrate: %w", err)
	}
	return nil
}

// conn is what statements run on: the pool, or a connection of it.
type conn interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// query runs a statement on c, or on the pool where c is nil. SQLite's clock is added to args.
func (s *Store) query(ctx context.Context, c conn, text string, args []any) (*sql.Rows, error) {
	args = s.withClock(args)
	if c != nil {
		return c.QueryContext(ctx, text, args...)
	}
	p, err := s.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return s.db.QueryContext(ctx, text, args...)
	}
	return p.QueryContext(ctx, args...)
}

func (s *Store) exec(ctx context.Context, c conn, text string, args []any) (sql.Result, error) {
	args = s.withClock(args)
	if c != nil {
		return c.ExecContext(ctx, text, args...)
	}
	p, err := s.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return s.db.ExecContext(ctx, text, args...)
	}
	return p.ExecContext(ctx, args...)
}

func (s *Store) withClock(args []any) []any {
	if s.dialect == SQLite {
		args = append(args[:len(args):len(args)], s.clock().UnixMicro())
	}
	return args
}

// prepare returns nil on PostgreSQL: pgx prepares by itself, or not, as it was told for the proxy in between.
func (s *Store) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if s.dialect == PostgreSQL {
		return nil, nil
	}
	s.mu.Lock()
	p := s.prepared[text]
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := s.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.prepared[text]; first != nil {
		_ = p.Close() // two came at once
		return first, nil
	}
	s.prepared[text] = p
	return p, nil
}

// explain says what the caller can do about err, where anything can be said.
func (s *Store) explain(err error) error {
	switch sqldialect.Classify(s.dialect, err) {
	case sqldialect.NoTable:
		return fmt.Errorf("table %s is missing or of another version: call Migrate at start: %w", s.table, err)
	case sqldialect.ReadOnly:
		return fmt.Errorf("the database takes no writes; connect to the primary, without read-only transactions: %w", err)
	case sqldialect.TooBig:
		return fmt.Errorf("a value does not fit table %s, or the statement the server's limit; Ping tells of columns that are too small: %w", s.table, err)
	}
	return err
}

var (
	_ dedup.TxStore = (*Store)(nil)
	_ dedup.Admin   = (*Store)(nil)
	_ dedup.Pinger  = (*Store)(nil)
	_ dedup.Sweeper = (*Store)(nil)
	_ dedup.Sizer   = (*Store)(nil)
)
