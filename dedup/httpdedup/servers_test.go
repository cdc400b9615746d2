package httpdedup_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

// onOwnRedis is a site on a Redis of the test's own, and a gate in its handler.
func onOwnRedis(t *testing.T, w *watch, args ...string) (*testenv.RedisServer, *site, *gate) {
	server := testenv.StartRedis(t, args...)
	e := &env{T: t, store: redisstore.New(redisAt(t, server.Addr), nil), app: "test"}
	g := newGate(e)
	o := &dedup.Options{Lease: 3 * time.Second, Logger: quietSlog, Observe: w.observe}
	return server, e.siteOf(e.guardOn(e.store, o), "shop", g.created, nil, nil), g
}

func durable() []string { return []string{"--appendonly", "yes", "--appendfsync", "always"} }

func TestRedisDownBeforeTheHandler(t *testing.T) {
	server, s, g := onOwnRedis(t, &watch{}, durable()...)
	g.letGo()
	server.Kill()
	s.mustProblem(503, "unavailable", "abc", "order")
	s.ran(0)
	server.Start()
	require.Equal(t, 201, s.afterOutage("abc").status)
	server.Restart()
	require.True(t, s.afterOutage("abc").replayed(), "what was remembered outlives the server")
	s.ran(1)
}

// afterOutage posts until the client has found the server again.
func (s *site) afterOutage(key string) (r *reply) {
	s.e.Helper()
	require.Eventually(s.e, func() bool { r = s.post(key, "order"); return r.status != 503 }, 20*time.Second, 50*time.Millisecond)
	return r
}

func TestRedisRestartedDuringTheHandler(t *testing.T) {
	for name, args := range map[string][]string{"with its data": durable(), "empty": nil} {
		t.Run(name, func(t *testing.T) {
			server, s, g := onOwnRedis(t, &watch{}, args...)
			first := s.inBackground(t.Context(), "abc", "order")
			<-g.begun
			server.Restart()
			g.letGo()
			r := <-first
			require.Equal(t, 201, r.status)
			require.False(t, r.replayed())
			require.True(t, s.must(201, "abc", "order").replayed())
			s.ran(1)
		})
	}
}

func TestRedisDownAfterTheHandler(t *testing.T) {
	t.Parallel()
	var w watch
	server, s, g := onOwnRedis(t, &w, durable()...)
	first := s.inBackground(t.Context(), "abc", "order")
	<-g.begun
	server.Kill()
	g.letGo()
	require.Equal(t, 201, (<-first).status, "the client gets its answer")
	require.Equal(t, 1, w.count("request unsettled"))
	server.Start()
	r := s.eventuallyAnswered("abc")
	require.Equal(t, 201, r.status)
	if r.replayed() { // the last try to store the answer was under way for long enough to find the server again
		s.ran(1)
	} else {
		s.ran(2) // the named window
	}
	require.True(t, s.must(201, "abc", "order").replayed())
}

// eventuallyAnswered posts until neither the outage nor the lease is in the way.
func (s *site) eventuallyAnswered(key string) (r *reply) {
	s.e.Helper()
	require.Eventually(s.e, func() bool { r = s.post(key, "order"); return r.status != 503 && r.status != 409 }, 30*time.Second, 50*time.Millisecond)
	return r
}

// onTwoLevels is a site on SQLite with an embedded Redis in front, both of which can be out of reach.
func onTwoLevels(t *testing.T) (s *site, database *outage, lose, stop func()) {
	m, client := mini(t)
	e := &env{T: t, store: sqlite(t), app: "test"}
	database = e.outage("", false)
	tier := tierstore.New(&decider{e.store.(tierstore.Decider), &database.Faulty}, redisstore.New(client, nil))
	return e.siteOf(e.guardOn(tier, &dedup.Options{Logger: quietSlog}), "shop", created, nil, nil), database, m.FlushAll, m.Close
}

// decider has the ports of a database and the faults of an outage.
type decider struct {
	tierstore.Decider
	faulty *deduptest.Faulty
}

func (d *decider) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	return d.faulty.Claim(ctx, in, out)
}

func TestDatabaseRemembersWhatRedisHasLost(t *testing.T) {
	s, _, lose, _ := onTwoLevels(t)
	s.must(201, "abc", "order")
	lose()
	require.True(t, s.must(201, "abc", "order").replayed())
	s.must(422, "abc", "another order")
	s.ran(1)
}

func TestRedisInFrontIsNotNeeded(t *testing.T) {
	s, _, _, stop := onTwoLevels(t)
	s.must(201, "abc", "order")
	stop()
	require.True(t, s.must(201, "abc", "order").replayed())
	s.must(201, "def", "order")
	s.ran(2)
}

func TestRedisInFrontGrantsNothing(t *testing.T) {
	s, database, _, _ := onTwoLevels(t)
	s.must(201, "abc", "order")
	database.down.Store(true)
	s.mustProblem(503, "unavailable", "new", "order")
	s.ran(1)
	require.True(t, s.must(201, "abc", "order").replayed(), "it answers what the database has confirmed")
	s.must(422, "abc", "another order")
}

func TestKeysOfOneClientTakeMemoryForTheRetentionOnly(t *testing.T) {
	client := redisAt(t, testenv.StartRedis(t).Addr)
	e := &env{T: t, store: redisstore.New(client, nil), app: "test"}
	idempotent, err := httpdedup.Middleware(e.guard(nil), "shop", user, nil)
	require.NoError(t, err)
	handler := idempotent(http.HandlerFunc(created))
	keys := 2000
	if os.Getenv("IDEMQ_CHAOS_FULL") == "1" {
		keys = 1_000_000
	}
	var all sync.WaitGroup
	var next, refused atomic.Int64
	for range 64 {
		all.Go(func() {
			for i := next.Add(1); i <= int64(keys); i = next.Add(1) {
				w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("order"))
				r.Header.Set("Idempotency-Key", fmt.Sprint("key-", i))
				if handler.ServeHTTP(w, r); w.Code != 201 {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, refused.Load())
	space, err := client.Info(t.Context(), "keyspace").Result()
	require.NoError(t, err)
	require.Contains(t, space, fmt.Sprintf("db0:keys=%[1]d,expires=%[1]d,", keys), "one record for each key, nothing beside it, and none without an expiry")
	records, _, err := client.Scan(t.Context(), 0, "*", 1000).Result()
	require.NoError(t, err)
	for _, r := range records {
		left, err := client.PTTL(t.Context(), r).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, left, 24*time.Hour)
	}
	size, err := client.Info(t.Context(), "memory").Result()
	require.NoError(t, err)
	t.Logf("%d keys: %s", keys, strings.Fields(size)[2])
}
