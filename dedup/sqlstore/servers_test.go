package sqlstore_test

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/internal/testenv"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// base is a database with a table of one test's own.
type base struct {
	*sql.DB
	dialect sqlstore.Dialect
	dsn     string
	table   string
}

func newTable() string {
	var b [6]byte
	rand.Read(b[:])
	return "t_" + hex.EncodeToString(b[:])
}

// openSQLite is a file of the test's own.
func openSQLite(tb testing.TB) *base {
	tb.Helper()
	dsn := "file:" + filepath.Join(tb.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(30000)&_pragma=synchronous(normal)"
	return openDB(tb, sqlstore.SQLite, "sqlite", dsn)
}

func openDB(tb testing.TB, d sqlstore.Dialect, driver, dsn string) *base {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(tb, err)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = db.Close() })
	return &base{DB: db, dialect: d, dsn: dsn, table: newTable()}
}

// store is a Store on the test's table, which is there.
func (b *base) store(tb testing.TB) *sqlstore.Store {
	tb.Helper()
	s := b.bare(tb, nil)
	require.NoError(tb, s.Migrate(tb.Context()))
	return s
}

func (b *base) bare(tb testing.TB, o *sqlstore.Options) *sqlstore.Store {
	tb.Helper()
	if o == nil {
		o = &sqlstore.Options{}
	}
	if o.Table == "" {
		o.Table = b.table
	}
	s, err := sqlstore.New(b.DB, b.dialect, o)
	require.NoError(tb, err)
	return s
}

// exec runs a statement in which %s is the table.
func (b *base) exec(tb testing.TB, format string, args ...any) {
	tb.Helper()
	_, err := b.ExecContext(tb.Context(), fmt.Sprintf(format, b.table), args...)
	require.NoError(tb, err)
}

// eachBase runs f on every dialect that can be had.
func eachBase(t *testing.T, f func(t *testing.T, b *base)) {
	for name, open := range bases {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

var bases = map[string]func(tb testing.TB) *base{
	"sqlite":     openSQLite,
	"postgresql": openPostgreSQL,
	"mysql":      openMySQL,
}

// openPostgreSQL and openMySQL are the servers that all tests share.
func openPostgreSQL(tb testing.TB) *base {
	tb.Helper()
	return openDB(tb, sqlstore.PostgreSQL, "pgx", testenv.PostgreSQL(tb)).dropped(tb)
}

func openMySQL(tb testing.TB) *base {
	tb.Helper()
	return openDB(tb, sqlstore.MySQL, "mysql", testenv.MySQL(tb)).dropped(tb)
}

// dropped takes the table away after the test.
func (b *base) dropped(tb testing.TB) *base {
	tb.Cleanup(func() {
		_, _ = b.Exec("DROP TABLE IF EXISTS " + b.table)
		_, _ = b.Exec("DELETE FROM idemq_schema WHERE name = '" + b.table + "'")
	})
	return b
}

// ask is a claim of k that no test outlives.
func ask(k dedup.Key) dedup.ClaimRequest {
	return dedup.ClaimRequest{Key: k, Owner: newOwner(), Lease: time.Minute, Retention: time.Hour, Holder: "host/12345"}
}

func asks(n int) []dedup.ClaimRequest {
	in := make([]dedup.ClaimRequest, n)
	for i := range in {
		in[i] = ask(newKey())
	}
	return in
}

// claimAll claims in, requires that every item was answered and returns the answers.
func claimAll(tb testing.TB, s dedup.Store, in ...dedup.ClaimRequest) []dedup.Verdict {
	tb.Helper()
	out := make([]dedup.Verdict, len(in))
	require.NoError(tb, s.Claim(tb.Context(), in, out))
	for i := range out {
		require.NoError(tb, out[i].Err)
		require.NotZero(tb, out[i].State)
	}
	return out
}

func acquireAll(tb testing.TB, s dedup.Store, in ...dedup.ClaimRequest) []dedup.Held {
	tb.Helper()
	held := make([]dedup.Held, len(in))
	for i, v := range claimAll(tb, s, in...) {
		require.Equal(tb, dedup.Acquired, v.State)
		held[i] = heldOf(in[i], v)
	}
	return held
}

func ended(held []dedup.Held, state dedup.State) []dedup.FinishRequest {
	in := make([]dedup.FinishRequest, len(held))
	for i := range held {
		in[i] = dedup.FinishRequest{Held: held[i], State: state}
	}
	return in
}

// finishAll returns each item's answer.
func finishAll(tb testing.TB, s dedup.Store, held []dedup.Held, state dedup.State) []error {
	tb.Helper()
	errs := make([]error, len(held))
	require.NoError(tb, s.Finish(tb.Context(), ended(held, state), errs))
	return errs
}

func extendAll(tb testing.TB, s dedup.Store, held []dedup.Held) []error {
	tb.Helper()
	in, errs := make([]dedup.ExtendRequest, len(held)), make([]error, len(held))
	for i := range held {
		in[i].Held = held[i]
	}
	require.NoError(tb, s.Extend(tb.Context(), in, errs))
	return errs
}

func heldOf(q dedup.ClaimRequest, v dedup.Verdict) dedup.Held {
	h := dedup.Held{ClaimRequest: q, Epoch: v.Epoch, Attempt: v.Attempt, Crashes: v.Crashes, Condemned: v.State == dedup.Condemned, LastError: v.LastError}
	h.Redrive = v.Redrive
	return h
}

func newKey() (k dedup.Key) {
	rand.Read(k[:])
	return k
}

func newOwner() (o dedup.Owner) {
	rand.Read(o[:])
	return o
}
