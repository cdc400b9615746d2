package redisstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A pool whose server is gone tries once a second, and notices that it was closed at the next try.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func open(c redis.UniversalClient) *redisstore.Store { return redisstore.New(c, nil) }

func withPrefix(c redis.UniversalClient, prefix string) *redisstore.Store {
	return redisstore.New(c, &redisstore.Options{Prefix: prefix})
}

func closing[C redis.UniversalClient](tb testing.TB, c C) C {
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// realRedis is a client of the server that all tests share.
func realRedis(tb testing.TB) *redis.Client {
	return closing(tb, redis.NewClient(&redis.Options{Addr: testenv.Redis(tb)}))
}

func realCluster(tb testing.TB) *redis.ClusterClient {
	return closing(tb, redis.NewClusterClient(&redis.ClusterOptions{Addrs: testenv.RedisCluster(tb)}))
}

// mini is an embedded server whose clock stands still but for advance.
type mini struct {
	*miniredis.Miniredis
	now time.Time
}

func startMini(tb testing.TB) *mini {
	m := &mini{miniredis.RunT(tb), time.Now().Truncate(time.Millisecond)}
	m.SetTime(m.now)
	return m
}

func (m *mini) client(tb testing.TB) *redis.Client {
	return closing(tb, redis.NewClient(&redis.Options{Addr: m.Addr()}))
}

func (m *mini) advance(d time.Duration) {
	m.now = m.now.Add(d)
	m.SetTime(m.now)
	m.FastForward(d)
}

// server is a Redis or Sentinel process of one test's own.
type server struct {
	addr, port, dir, binary string
	args                    []string
	cmd                     *exec.Cmd
}

// startServer starts binary on a free port. Without the binary the test is skipped, or fails
// where servers are required.
func startServer(tb testing.TB, binary string, args ...string) *server {
	tb.Helper()
	if _, err := exec.LookPath(binary); err != nil {
		testenv.Missing(tb, binary+" is not installed: scripts/services.sh start redis")
	}
	port := freePort(tb)
	s := &server{addr: "127.0.0.1:" + port, port: port, dir: tb.TempDir(), binary: binary, args: args}
	s.start(tb)
	tb.Cleanup(s.kill)
	return s
}

func startRedis(tb testing.TB, args ...string) *server {
	return startServer(tb, "redis-server", append([]string{"--save", "", "--appendonly", "no"}, args...)...)
}

func (s *server) start(tb testing.TB) {
	tb.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(tb, err)
	defer log.Close()
	s.cmd = exec.Command(s.binary, append(s.args, "--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	require.NoError(tb, s.cmd.Start())
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	up := func() bool { return c.Ping(context.Background()).Err() == nil }
	if !waitFor(20*time.Second, up) {
		text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		require.Fail(tb, s.binary+" does not answer", "%s", text)
	}
}

// kill is a crash: nothing is saved.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) client(tb testing.TB) *redis.Client {
	return closing(tb, redis.NewClient(&redis.Options{Addr: s.addr}))
}

// freePort returns a port that is free together with the one 10000 above it, on which a node of a Cluster listens, too.
// Both are below those that Linux gives to connections, so nobody is given one before the server has it.
func freePort(tb testing.TB) string {
	for range 100 {
		port := 21000 + mathrand.IntN(1700)
		if listens(port) && listens(port+10000) {
			return strconv.Itoa(port)
		}
	}
	require.Fail(tb, "no free port")
	return ""
}

func listens(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
	return err == nil && l.Close() == nil
}

// waitFor asks a real server until it says yes.
func waitFor(d time.Duration, yes func() bool) bool {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if yes() {
			return true
		}
		pause(20 * time.Millisecond)
	}
	return false
}

// pause lets a real server's clock go on.
func pause(d time.Duration) { <-time.After(d) }

// counter counts round trips and commands, those of scripts only.
type counter struct{ trips, commands atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}

func (c *counter) count(cmds ...redis.Cmder) {
	c.trips.Add(1)
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.commands.Add(1)
		}
	}
}

// keyName is the name of k's record, as the manual has it.
func keyName(k dedup.Key) string { return fmt.Sprintf("idemq:{%02x}", k[0]%64) + string(k[:]) }

func keyHex(k dedup.Key) string { return fmt.Sprintf("%x", k[:]) }

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
