package httpdedup_test

import (
	"crypto/rand"
	"database/sql"
	"io"
	"log"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

var (
	quiet     = log.New(io.Discard, "", 0)
	quietSlog = slog.New(slog.DiscardHandler)
)

func TestScenariosOnMemory(t *testing.T) {
	t.Parallel()
	testScenarios(t, func(testing.TB) dedup.Store { return memstore.New() })
}

func TestScenariosOnRedis(t *testing.T) {
	t.Parallel()
	client := redisAt(t, testenv.Redis(t))
	testScenarios(t, func(testing.TB) dedup.Store { return redisstore.New(client, nil) })
}

func TestScenariosOnPostgreSQL(t *testing.T) {
	t.Parallel()
	s := table(t, sqlstore.PostgreSQL, "pgx", testenv.PostgreSQL(t))
	testScenarios(t, func(testing.TB) dedup.Store { return s })
}

func TestScenariosOnMySQL(t *testing.T) {
	t.Parallel()
	s := table(t, sqlstore.MySQL, "mysql", testenv.MySQL(t))
	testScenarios(t, func(testing.TB) dedup.Store { return s })
}

func TestScenariosOnSQLite(t *testing.T) {
	t.Parallel()
	s := sqlite(t)
	testScenarios(t, func(testing.TB) dedup.Store { return s })
}

func TestScenariosOnTwoLevels(t *testing.T) {
	t.Parallel()
	client := redisAt(t, testenv.Redis(t))
	s := table(t, sqlstore.PostgreSQL, "pgx", testenv.PostgreSQL(t))
	testScenarios(t, func(testing.TB) dedup.Store { return tierstore.New(s, redisstore.New(client, nil)) })
}

func redisAt(tb testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func mini(tb testing.TB) (*miniredis.Miniredis, *redis.Client) {
	m := miniredis.RunT(tb)
	return m, redisAt(tb, m.Addr())
}

func sqlite(tb testing.TB) *sqlstore.Store {
	tb.Helper()
	dsn := "file:" + filepath.Join(tb.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(normal)"
	return table(tb, sqlstore.SQLite, "sqlite", dsn)
}

// table is a store on a table of the test's own.
func table(tb testing.TB, d sqlstore.Dialect, driver, dsn string) *sqlstore.Store {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(tb, err)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = db.Close() })
	name := "http_" + rand.Text()[:10]
	s, err := sqlstore.New(db, d, &sqlstore.Options{Table: name})
	require.NoError(tb, err)
	require.NoError(tb, s.Migrate(tb.Context()))
	tb.Cleanup(func() {
		_, _ = db.Exec("DROP TABLE IF EXISTS " + name)
		_, _ = db.Exec("DELETE FROM idemq_schema WHERE name = '" + name + "'")
	})
	return s
}
