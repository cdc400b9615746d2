package testenv_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

func openSQL(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func quietMySQL(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func text(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	var s string
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&s))
	return s
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query)
	require.NoError(t, err)
}

func TestSharedDatabasesAreOursAndInUTC(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		db := openSQL(t, "pgx", testenv.PostgreSQL(t))
		require.Equal(t, "idemq", text(t, db, "SELECT current_database()"))
		require.Equal(t, "UTC", text(t, db, "SHOW timezone"))
		require.Equal(t, "on", text(t, db, "SHOW fsync"))
		require.Equal(t, "UTF8", text(t, db, "SHOW server_encoding"))
		require.Equal(t, "off", text(t, db, "SHOW is_superuser"))
	})
	t.Run("mysql", func(t *testing.T) {
		db := openSQL(t, "mysql", testenv.MySQL(t))
		require.Equal(t, "idemq", text(t, db, "SELECT DATABASE()"))
		require.Equal(t, "+00:00", text(t, db, "SELECT @@time_zone"))
		require.Equal(t, "utf8mb4", text(t, db, "SELECT @@character_set_database"))
		require.Equal(t, "1", text(t, db, "SELECT @@innodb_flush_log_at_trx_commit"))
	})
}

func TestOwnPostgreSQLKeepsWhatItCommittedOverAKill(t *testing.T) {
	t.Parallel()
	s := testenv.StartPostgreSQL(t, "max_connections=7")
	db := openSQL(t, "pgx", s.DSN)
	require.Equal(t, "7", text(t, db, "SHOW max_connections"), "its own settings")
	exec(t, db, "CREATE TABLE kept (a int)")
	for range 3 { // a backend that outlived its parent would keep the next one from starting
		asleep := startSleep(t, openSQL(t, "pgx", s.DSN), "SELECT pg_sleep(60)", "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'")
		s.Restart()
		require.Error(t, <-asleep)
		exec(t, openSQL(t, "pgx", s.DSN), "INSERT INTO kept VALUES (1)")
	}
	require.Equal(t, "3", text(t, openSQL(t, "pgx", s.DSN), "SELECT count(*) FROM kept"))
}

// startSleep runs a statement that takes its time and returns when the server is at it.
func startSleep(t *testing.T, db *sql.DB, query, count string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() {
		_, err := db.ExecContext(ctx, query)
		ended <- err
	}()
	require.Eventually(t, func() bool { return text(t, db, count) == "1" }, 20*time.Second, 5*time.Millisecond)
	return ended
}

func TestStopEndsPostgreSQLUnderItsClients(t *testing.T) {
	t.Parallel()
	s := testenv.StartPostgreSQL(t)
	db := openSQL(t, "pgx", s.DSN)
	exec(t, db, "CREATE TABLE kept (a int)")
	s.Stop()
	require.Error(t, db.PingContext(t.Context()))
	s.Start()
	exec(t, openSQL(t, "pgx", s.DSN), "INSERT INTO kept VALUES (1)")
}

func TestPausedPostgreSQLServesNobody(t *testing.T) {
	t.Parallel()
	s := testenv.StartPostgreSQL(t)
	proxy := testenv.NewProxy(t, s.Addr)
	db := openSQL(t, "pgx", s.Via(proxy.Addr))
	require.NoError(t, db.PingContext(t.Context())) // its backend is there before the pause
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, db.PingContext(ctx), context.DeadlineExceeded)
	s.Resume()
	require.NoError(t, db.PingContext(t.Context()))
}

func TestOwnMySQLKeepsWhatItCommittedOverAKill(t *testing.T) {
	t.Parallel()
	s := testenv.StartMySQL(t, "--max-connections=17")
	proxy := testenv.NewProxy(t, s.Addr)
	db := quietMySQL(t, s.Via(proxy.Addr))
	require.Equal(t, "17", text(t, db, "SELECT @@max_connections"), "its own settings")
	exec(t, db, "CREATE TABLE kept (a int)")
	exec(t, db, "INSERT INTO kept VALUES (1)")
	s.Restart()
	require.Equal(t, "1", text(t, quietMySQL(t, s.DSN), "SELECT count(*) FROM kept"))
	s.Stop()
	require.Error(t, db.PingContext(t.Context()))
	s.Start()
	require.Equal(t, "1", text(t, quietMySQL(t, s.DSN), "SELECT count(*) FROM kept"))
}

func TestAnAddressWithACommaIsOne(t *testing.T) {
	t.Setenv("IDEMQ_MYSQL_DSN", "u:a,b@tcp(h:1)/d")
	t.Setenv("IDEMQ_POSTGRES_DSN", "postgres://u:a,b@h:1/d")
	require.Equal(t, "u:a,b@tcp(h:1)/d", testenv.MySQL(t))
	require.Equal(t, "postgres://u:a,b@h:1/d", testenv.PostgreSQL(t))
}
