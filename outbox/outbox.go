package outbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

// Dialect is the same type as sqlstore.Dialect.
type Dialect = sqldialect.Dialect

// The dialects.
const (
	PostgreSQL = sqldialect.PostgreSQL
	MySQL      = sqldialect.MySQL // MariaDB too
	SQLite     = sqldialect.SQLite
)

// Message is one message to publish.
type Message struct {
	ID      string            // consumers deduplicate by it. Default: a random UUIDv7.
	Topic   string            // topic; on RabbitMQ a queue, or exchange/routing key. Required.
	Key     string            // messages of one key are published in the order they were written. Default: no order.
	Headers map[string]string // those by which idemq names and steers messages (message-id, idemq-…) are left out by Publishers
	Body    []byte
}

// Tx is the transaction to write in: *sql.Tx, *sql.Conn in a transaction, *sqlx.Tx, gorm's
// tx.Statement.ConnPool.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Outbox is the table of messages to publish. It is safe for concurrent use and needs no Close;
// the db stays the caller's to close.
type Outbox struct {
	db      *sql.DB
	dialect Dialect
	table   sqldialect.Table
	schema  sqldialect.Schema
	text    statements
	notify  bool
	clock   func() time.Time // SQLite's; the servers have their own

	mu       sync.Mutex
	prepared map[string]*sql.Stmt // MySQL and SQLite: they would parse each text again
	relays   map[*Relay]bool      // those that run in this process
	notified time.Time
	kept     int // connections, by relays
}

// Options tune an Outbox; nil is the default.
type Options struct {
	// Table is the name of the table of messages: letters, digits and underscores, with a schema before a
	// dot where it is not the connection's own. Two more tables stand beside it, whose names end in
	// _shards and _relays. Default: "idemq_outbox".
	Table string
	// Notify makes InTx tell the relays of other processes, by PostgreSQL's NOTIFY, on a connection
	// of its own after the commit, and at most once in 10 ms: inside the transaction it would make commits
	// wait for each other. Relays hear it by RelayOptions.Listen. Default: off.
	Notify bool
}

const defaultTable = "idemq_outbox"

//go:embed migrations
var migrations embed.FS

// New does no I/O.
func New(db *sql.DB, d Dialect, o *Options) (*Outbox, error) {
	if o == nil {
		o = &Options{}
	}
	if err := d.Check(); err != nil {
		return nil, fmt.Errorf("outbox: New: %w", err)
	}
	if db == nil {
		return nil, errors.New("outbox: New: db is nil; pass what sql.Open returned")
	}
	if o.Notify && d != PostgreSQL {
		return nil, fmt.Errorf("outbox: New: Options.Notify is set, and only PostgreSQL has NOTIFY; on %s relays poll", d)
	}
	name := o.Table
	if name == "" {
		name = defaultTable
	}
	b := &Outbox{db: db, dialect: d, notify: o.Notify, clock: time.Now, prepared: make(map[string]*sql.Stmt), relays: make(map[*Relay]bool)}
	var err error
	if b.table, err = sqldialect.ParseTable(d, name); err != nil {
		return nil, fmt.Errorf("outbox: New: Options.Table: %w", err)
	}
	if n := len(b.Channel()); o.Notify && n > maxChannel {
		return nil, fmt.Errorf("outbox: New: Options.Notify is set, and %q has %d bytes; PostgreSQL's channels are named by at most %d: shorten Options.Table", b.Channel(), n, maxChannel)
	}
	b.schema = sqldialect.Schema{Dialect: d, Table: b.table}
	if b.schema.Steps, err = sqldialect.ReadSteps(migrations, "migrations", d); err != nil {
		return nil, fmt.Errorf("outbox: New: %w", err)
	}
	b.text = newStatements(d, b.table)
	return b, nil
}

// Migrate creates or upgrades the tables; safe to call from every instance at start. It needs the
// right to define tables only where there is something to do. A schema of a later version of this package is refused, and so
// is a server without CHECK constraints: MySQL before 8.0.16, and MariaDB where check_constraint_checks is off.
func (o *Outbox) Migrate(ctx context.Context) error {
	err := o.schema.Migrate(ctx, o.db)
	if err == nil {
		err = o.checked(ctx)
	}
	if err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	return nil
}

// Table is the name of the table of messages, as it was given.
func (o *Outbox) Table() string { return o.table.String() }
