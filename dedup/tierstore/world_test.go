package tierstore_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

// world is a Redis and a database of one test's own, each behind a proxy.
type world struct {
	*testing.T
	redis     *testenv.RedisServer
	toRedis   *testenv.Proxy
	toSQL     *testenv.Proxy
	sql       server
	direct    *redis.Client // past the proxy
	client    *redis.Client
	front     *redisstore.Store
	database  tierstore.Decider
	sqlTables *sql.DB
}

type server interface {
	Start()
	Stop()
}

func newWorld(t *testing.T, d sqlstore.Dialect) *world {
	w := &world{T: t, redis: testenv.StartRedis(t)}
	w.toRedis = testenv.NewProxy(t, w.redis.Addr)
	var dsn string
	switch d {
	case sqlstore.PostgreSQL:
		s := testenv.StartPostgreSQL(t)
		w.sql, w.toSQL = s, testenv.NewProxy(t, s.Addr)
		dsn = s.Via(w.toSQL.Addr)
	default:
		s := testenv.StartMySQL(t)
		w.sql, w.toSQL = s, testenv.NewProxy(t, s.Addr)
		dsn = s.Via(w.toSQL.Addr)
	}
	w.sqlTables = database(t, d, dsn)
	store, err := sqlstore.New(w.sqlTables, d, nil)
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	w.database = store
	w.client = redis.NewClient(&redis.Options{
		Addr: w.toRedis.Addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second,
	})
	w.direct = redis.NewClient(&redis.Options{Addr: w.redis.Addr})
	t.Cleanup(func() { _, _ = w.client.Close(), w.direct.Close() })
	w.front = redisstore.New(w.client, nil)
	return w
}

// open is a process of its own on the two servers. Its front has all the time it wants.
func (w *world) open() *tier { return w.openWith(tierstore.Options{Timeout: 10 * time.Second}) }

func (w *world) openWith(o tierstore.Options) *tier {
	return openTier(&decider{Decider: w.database}, w.front, &o)
}

// returns waits until the database answers again.
func (w *world) returns() {
	w.Helper()
	require.Eventually(w, func() bool { return w.sqlTables.PingContext(w.Context()) == nil }, 30*time.Second, 20*time.Millisecond)
}

// answered requires that a duplicate of k is answered as want, and by which level.
func (w *world) answered(t *tier, q dedup.ClaimRequest, want dedup.State, byFront bool) dedup.Verdict {
	w.Helper()
	var v dedup.Verdict
	n := t.asked(func() { v = claim(w, t, q) })
	require.Equal(w, want, v.State)
	require.Equal(w, byFront, n == 0, "answered by the front")
	return v
}

func (w *world) stats(want tierstore.Stats, t *tier) {
	w.Helper()
	require.Equal(w, want, t.Stats())
}

func withPrint(q dedup.ClaimRequest, body string) dedup.ClaimRequest {
	q.Fingerprint = dedup.FingerprintOf([]byte(body))
	return q
}

func frontName(k dedup.Key) string { return fmt.Sprintf("idemq:front:{%02x}", k[0]%64) + string(k[:]) }

func (w *world) flush() {
	w.Helper()
	require.NoError(w, w.direct.FlushAll(w.Context()).Err())
}

func (w *world) evict(k dedup.Key) {
	w.Helper()
	require.NoError(w, w.direct.Del(w.Context(), frontName(k)).Err())
}

// reconnected waits until the client has got over what became of its connections.
func (w *world) reconnected() {
	w.Helper()
	require.Eventually(w, func() bool { return w.client.Ping(w.Context()).Err() == nil }, 20*time.Second, 10*time.Millisecond)
}

// snapshot has Redis write down what it knows; what it returns makes it go back to that.
func (w *world) snapshot() (back func()) {
	w.Helper()
	require.NoError(w, w.direct.Save(w.Context()).Err())
	return func() {
		w.Helper()
		w.redis.Restart()
		w.reconnected()
		folder, err := w.direct.ConfigGet(w.Context(), "dir").Result()
		require.NoError(w, err)
		w.Cleanup(func() { // or each start would go back again
			require.NoError(w, os.Remove(filepath.Join(folder["dir"], "dump.rdb")))
		})
	}
}

// healed: the front answers duplicates of k again.
func (w *world) healed(t *tier, k dedup.Key) {
	w.Helper()
	require.Eventually(w, func() bool {
		return t.asked(func() { require.Equal(w, dedup.Done, claim(w, t, ask(k)).State) }) == 0
	}, 20*time.Second, 10*time.Millisecond)
}

// mayBeHeldBy: q was asked of a database that did not answer. It may have been granted, and then is to its owner
// again; nobody else has it.
func (w *world) mayBeHeldBy(t *tier, q dedup.ClaimRequest) {
	w.Helper()
	require.Equal(w, dedup.Acquired, claim(w, t, q).State)
	require.Equal(w, dedup.InProgress, claim(w, t, ask(q.Key)).State)
}
