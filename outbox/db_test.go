package outbox_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/internal/conformance"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
	"github.com/idemq/idemq/outbox/outboxtest"
)

func TestDB(t *testing.T) {
	for d, address := range databases {
		t.Run(string(d), func(t *testing.T) {
			driver, dsn := address(t)
			name := map[outbox.Dialect]string{outbox.PostgreSQL: "PostgreSQL", outbox.MySQL: "MariaDB", outbox.SQLite: "SQLite"}[d]
			outboxtest.TestDB(t, d, func(tb testing.TB) *sql.DB { return open(tb, driver, dsn) }, conformance.Column(t, "outboxtest.TestDB", name))
		})
	}
}

// databases are each dialect's driver and address.
var databases = map[outbox.Dialect]func(tb testing.TB) (driver, dsn string){
	outbox.SQLite: func(tb testing.TB) (string, string) {
		return "sqlite", "file:" + filepath.Join(tb.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(20000)&_pragma=synchronous(normal)&_txlock=immediate"
	},
	outbox.PostgreSQL: func(tb testing.TB) (string, string) { return "pgx", testenv.PostgreSQL(tb) },
	outbox.MySQL:      func(tb testing.TB) (string, string) { return "mysql", testenv.MySQL(tb) },
}

func open(tb testing.TB, driver, dsn string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	require.NoError(tb, err)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	return db
}

// eachDB runs f with an outbox in a new table, on every dialect that can be had.
func eachDB(t *testing.T, f func(t *testing.T, b *base)) {
	for d := range databases {
		t.Run(string(d), func(t *testing.T) { f(t, newBase(t, d)) })
	}
}

// base is an outbox in a table of a test's own.
type base struct {
	*outbox.Outbox
	dialect outbox.Dialect
	db      *sql.DB
	driver  string
	dsn     string
	table   string
}

func newBase(t *testing.T, d outbox.Dialect) *base {
	driver, dsn := databases[d](t)
	b := &base{dialect: d, db: open(t, driver, dsn), driver: driver, dsn: dsn, table: newTable()}
	b.Outbox = b.outbox(t, b.db, nil)
	require.NoError(t, b.Migrate(t.Context()))
	t.Cleanup(func() {
		for _, suffix := range []string{"", "_shards", "_relays"} {
			_, _ = b.db.Exec("DROP TABLE IF EXISTS " + b.table + suffix)
		}
		_, _ = b.db.Exec("DELETE FROM idemq_schema WHERE name = '" + b.table + "'")
		_ = b.db.Close()
	})
	return b
}

func newTable() string {
	var b [6]byte
	rand.Read(b[:])
	return "o_" + hex.EncodeToString(b[:])
}

// outbox is another one on the same table, by db.
func (b *base) outbox(t *testing.T, db *sql.DB, o *outbox.Options) *outbox.Outbox {
	if o == nil {
		o = &outbox.Options{}
	}
	o.Table = b.table
	other, err := outbox.New(db, b.dialect, o)
	require.NoError(t, err)
	return other
}

func (b *base) write(t *testing.T, ms ...outbox.Message) {
	t.Helper()
	require.NoError(t, b.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error { return b.Write(ctx, tx, ms...) }))
}

const eventually = 30 * time.Second

func (b *base) awaitSent(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		return s == outbox.Stats{}
	}, eventually, 5*time.Millisecond)
}

// run runs a relay until the test ends, or stop is called.
func run(t *testing.T, o *outbox.Outbox, p outbox.Publisher, ro outbox.RelayOptions) (stop func()) {
	t.Helper()
	if ro.Logger == nil {
		ro.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := outbox.NewRelay(o, p, &ro)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// publisher answers as it says.
type publisher func(ms []outbox.Message, errs []error) error

func (p publisher) Publish(_ context.Context, ms []outbox.Message, errs []error) error {
	return p(ms, errs)
}

// takesAll is a broker that takes everything.
var takesAll = publisher(func([]outbox.Message, []error) error { return nil })
