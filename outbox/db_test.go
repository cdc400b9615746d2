package outbox_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
	"github.com/idemq/idemq/outbox/outboxtest"
)

func TestDB(t *testing.T) {
	for d, opener := range databases {
		t.Run(string(d), func(t *testing.T) { outboxtest.TestDB(t, d, opener(t)) })
	}
}

// databases open pools: all of one opener are of one database.
var databases = map[outbox.Dialect]func(tb testing.TB) func(tb testing.TB) *sql.DB{
	outbox.SQLite: func(tb testing.TB) func(tb testing.TB) *sql.DB {
		dsn := "file:" + filepath.Join(tb.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(20000)&_pragma=synchronous(normal)&_txlock=immediate"
		return opener("sqlite", dsn)
	},
	outbox.PostgreSQL: func(tb testing.TB) func(tb testing.TB) *sql.DB { return opener("pgx", testenv.PostgreSQL(tb)) },
	outbox.MySQL:      func(tb testing.TB) func(tb testing.TB) *sql.DB { return opener("mysql", testenv.MySQL(tb)) },
}

func opener(driver, dsn string) func(tb testing.TB) *sql.DB {
	return func(tb testing.TB) *sql.DB {
		db, err := sql.Open(driver, dsn)
		require.NoError(tb, err)
		db.SetMaxOpenConns(16)
		db.SetMaxIdleConns(16)
		return db
	}
}
