package tierstore_test

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

// database opens a pool. A driver of MySQL would print what becomes of its connections when a server is stopped.
func database(tb testing.TB, d sqlstore.Dialect, dsn string) *sql.DB {
	tb.Helper()
	var db *sql.DB
	var err error
	switch d {
	case sqlstore.MySQL:
		config, e := mysql.ParseDSN(dsn)
		require.NoError(tb, e)
		config.Logger = &mysql.NopLogger{}
		connector, e := mysql.NewConnector(config)
		require.NoError(tb, e)
		db = sql.OpenDB(connector)
	case sqlstore.PostgreSQL:
		db, err = sql.Open("pgx", dsn)
	default:
		db, err = sql.Open("sqlite", dsn)
	}
	require.NoError(tb, err)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// table is a table of the test's own, which goes with it.
func table(tb testing.TB, db *sql.DB, d sqlstore.Dialect) (*sqlstore.Store, string) {
	tb.Helper()
	var b [6]byte
	rand.Read(b[:])
	name := "tier_" + hex.EncodeToString(b[:])
	s, err := sqlstore.New(db, d, &sqlstore.Options{Table: name})
	require.NoError(tb, err)
	require.NoError(tb, s.Migrate(tb.Context()))
	tb.Cleanup(func() {
		_, _ = db.Exec("DROP TABLE " + name)
		_, _ = db.Exec("DELETE FROM idemq_schema WHERE name = '" + name + "'")
	})
	return s, name
}

func sqlite(tb testing.TB) string {
	return "file:" + filepath.Join(tb.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(normal)"
}

// conformance is the suite's config for a database in front of which client is.
func conformance(tb testing.TB, d sqlstore.Dialect, dsn string, client redis.UniversalClient) deduptest.Config {
	tb.Cleanup(func() { _ = client.Close() })
	db := database(tb, d, dsn)
	decider, name := table(tb, db, d)
	id := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "$1", sqlstore.MySQL: "?", sqlstore.SQLite: "?"}[d]
	front := redisstore.New(client, nil)
	var answered atomic.Uint64
	tb.Cleanup(func() {
		require.True(tb, tb.Failed() || answered.Load() > 0, "the front has answered nothing")
	})
	return deduptest.Config{
		Open: func(tb testing.TB) dedup.Store {
			s := tierstore.NewWithOptions(decider, front, &tierstore.Options{Timeout: 10 * time.Second}) // the machine is not the point
			tb.Cleanup(func() { answered.Add(s.Stats().Answered) })
			return s
		},
		Corrupt: func(tb testing.TB, k dedup.Key) {
			require.NoError(tb, front.Forget(tb.Context(), k)) // a copy would still answer, rightly
			_, err := db.ExecContext(tb.Context(), "UPDATE "+name+" SET state = 99 WHERE k = "+id, k[:])
			require.NoError(tb, err)
		},
	}
}

func realRedis(tb testing.TB) redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: testenv.Redis(tb)})
}

func TestStoreOnSQLiteAndMiniredis(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	c := conformance(t, sqlstore.SQLite, sqlite(t), redis.NewClient(&redis.Options{Addr: mini.Addr()}))
	c.Advance = func(_ testing.TB, d time.Duration) {
		<-time.After(d)
		mini.FastForward(d)
	}
	t.Run("rules", func(t *testing.T) { deduptest.TestStore(t, c) })
	c.Lease = 20 * time.Millisecond
	t.Run("model", func(t *testing.T) { deduptest.CheckModel(t, c) })
}

func TestStoreOnPostgreSQLAndRedis(t *testing.T) {
	t.Parallel()
	deduptest.TestStore(t, conformance(t, sqlstore.PostgreSQL, testenv.PostgreSQL(t), realRedis(t)))
}

func TestStoreOnMariaDBAndRedis(t *testing.T) {
	t.Parallel()
	deduptest.TestStore(t, conformance(t, sqlstore.MySQL, testenv.MySQL(t), realRedis(t)))
}

func TestStoreOnPostgreSQLAndCluster(t *testing.T) {
	t.Parallel()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testenv.RedisCluster(t)})
	deduptest.TestStore(t, conformance(t, sqlstore.PostgreSQL, testenv.PostgreSQL(t), client))
}

func TestModelOnPostgreSQLAndRedis(t *testing.T) {
	t.Parallel()
	c := conformance(t, sqlstore.PostgreSQL, testenv.PostgreSQL(t), realRedis(t))
	c.Lease = 20 * time.Millisecond
	deduptest.CheckModel(t, c)
}

func TestModelOnMariaDBAndRedis(t *testing.T) {
	t.Parallel()
	c := conformance(t, sqlstore.MySQL, testenv.MySQL(t), realRedis(t))
	c.Lease = 20 * time.Millisecond
	deduptest.CheckModel(t, c)
}
