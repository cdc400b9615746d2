package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	fiberredis "github.com/gofiber/storage/redis/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
)

// site is a server whose handler does nothing but answer, with something around it.
type site struct {
	name   string
	replay bool // each request has been answered before
	serve  func(tb testing.TB, rdb *redis.Client) (url string, stop func())
}

// remembered is how long answers are: the servers go on when the benchmark is over.
const remembered = time.Minute

func sites() []site {
	memory := func(*redis.Client) dedup.Store { return memstore.New() }
	onRedis := func(rdb *redis.Client) dedup.Store { return redisstore.New(rdb, nil) }
	return []site{
		{"net/http alone", false, serve(func(testing.TB, *redis.Client) http.Handler { return http.HandlerFunc(created) })},
		{"**httpdedup, memory, new**", false, serve(idempotent(memory))},
		{"**httpdedup, memory, replay**", true, serve(idempotent(memory))},
		{"**httpdedup, Redis, new**", false, serve(idempotent(onRedis))},
		{"**httpdedup, Redis, replay**", true, serve(idempotent(onRedis))},
		{"fiber alone", false, serveFiber(false)},
		{"fiber's idempotency, Redis, new", false, serveFiber(true)},
		{"fiber's idempotency, Redis, replay", true, serveFiber(true)},
	}
}

func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "created")
}

func serve(handler func(testing.TB, *redis.Client) http.Handler) func(testing.TB, *redis.Client) (string, func()) {
	return func(tb testing.TB, rdb *redis.Client) (string, func()) {
		s := httptest.NewServer(handler(tb, rdb))
		return s.URL, s.Close
	}
}

func idempotent(store func(*redis.Client) dedup.Store) func(testing.TB, *redis.Client) http.Handler {
	return func(tb testing.TB, rdb *redis.Client) http.Handler { return guarded(tb, store(rdb)) }
}

func guarded(tb testing.TB, s dedup.Store) http.Handler {
	tb.Helper()
	g, err := dedup.New("bench", s, &dedup.Options{Retention: remembered, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(tb, err)
	wrap, err := httpdedup.Middleware(g, "orders", httpdedup.Everyone, nil)
	require.NoError(tb, err)
	return wrap(http.HandlerFunc(created))
}

// serveFiber has the middleware as its documentation shows it, with the storage for Redis on the same client as the
// others; its lock is the default, of this process. Keys come in the same header.
func serveFiber(guarded bool) func(testing.TB, *redis.Client) (string, func()) {
	return func(tb testing.TB, rdb *redis.Client) (string, func()) {
		app := fiber.New()
		if guarded {
			app.Use(idempotency.New(idempotency.Config{KeyHeader: "Idempotency-Key", Lifetime: remembered, Storage: fiberredis.NewFromConnection(rdb)}))
		}
		app.Post("/orders", func(c fiber.Ctx) error {
			c.Set("Location", "/orders/1")
			return c.Status(http.StatusCreated).SendString("created")
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(tb, err)
		ended := make(chan error, 1)
		go func() { ended <- app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
		return "http://" + l.Addr().String(), func() {
			require.NoError(tb, app.Shutdown())
			require.NoError(tb, <-ended)
		}
	}
}

// commands counts what a client asks Redis, a pipeline once.
type commands struct{ n atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

func newRedis(tb testing.TB) (*redis.Client, *commands) {
	tb.Helper()
	rdb, c := redis.NewClient(&redis.Options{Addr: testenv.Redis(tb)}), new(commands)
	rdb.AddHook(c)
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb, c
}

// keys are of the form of a UUID, which fiber's middleware wants, and no run has had them before.
type keys struct {
	fixed bool
	n     atomic.Int64
}

func newKeys(fixed bool) *keys {
	k := &keys{fixed: fixed}
	k.n.Store(time.Now().UnixNano() / 1000 % 1e12)
	return k
}

func (k *keys) next() string {
	n := k.n.Load()
	if !k.fixed {
		n = k.n.Add(1)
	}
	return fmt.Sprintf("8e03978e-40d5-43e8-bc93-%012d", n)
}

func newRequest(url, key string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"amount":1}`))
	if err != nil {
		return nil, err
	}
	r.Header["Content-Type"] = []string{"application/json"}
	r.Header["Idempotency-Key"] = []string{key}
	return r, nil
}

// still is a store that costs nothing: it answers at once, acquired, or with the last result where it replays.
type still struct {
	mu     sync.Mutex
	replay bool
	result []byte
}

func (s *still) Claim(_ context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range in {
		out[i] = dedup.Verdict{State: dedup.Acquired, Epoch: 1, Attempt: 1}
		if s.replay {
			out[i] = dedup.Verdict{State: dedup.Done, Result: s.result, Left: remembered}
		}
	}
	return nil
}

func (*still) Extend(context.Context, []dedup.ExtendRequest, []error) error { return nil }

func (s *still) Finish(_ context.Context, in []dedup.FinishRequest, _ []error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = append([]byte(nil), in[0].Result...)
	return nil
}
