package httpdedup_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
)

// What a shop, a child process, is told by its environment.
const (
	shopRedis = "HTTPDEDUP_SHOP_REDIS"
	shopApp   = "HTTPDEDUP_SHOP_APP"
)

// runShop serves POST /orders, which counts its effects in Redis, until it is killed. An order "hang" never ends.
func runShop() int {
	client := redis.NewClient(&redis.Options{Addr: os.Getenv(shopRedis), ContextTimeoutEnabled: true})
	app := os.Getenv(shopApp)
	g, err := dedup.New(app, redisstore.New(client, nil), &dedup.Options{Lease: 2 * time.Second})
	if err != nil {
		return 1
	}
	idempotent, err := httpdedup.Middleware(g, "shop", user, nil)
	if err != nil {
		return 1
	}
	s := httptest.NewServer(idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		client.Incr(r.Context(), app+" effects")
		if string(body) == "hang" {
			select {}
		}
		created(w, r)
	})))
	fmt.Println(s.URL)
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
	return 0
}

// startShop starts this binary as a shop.
func (e *env) startShop(redisAddr string) (s *site, kill func()) {
	e.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), shopRedis+"="+redisAddr, shopApp+"="+e.app)
	_, err := cmd.StdinPipe()
	require.NoError(e, err)
	out, err := cmd.StdoutPipe()
	require.NoError(e, err)
	require.NoError(e, cmd.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	e.Cleanup(kill)
	url, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(e, err)
	server := httptest.NewServer(nil) // for its client only
	server.Close()
	server.URL = strings.TrimSpace(url)
	e.Cleanup(server.Client().CloseIdleConnections)
	return &site{Server: server, e: e}, kill
}

// onRedis is an env on the real server.
func onRedis(t *testing.T) (e *env, client *redis.Client, addr string) {
	addr = testenv.Redis(t)
	client = redisAt(t, addr)
	e = &env{T: t, store: redisstore.New(client, nil), app: t.Name() + time.Now().String()}
	t.Cleanup(func() { client.Del(t.Context(), e.app+" effects") })
	return e, client, addr
}

func (e *env) effects(client *redis.Client) int {
	e.Helper()
	n, err := client.Get(e.Context(), e.app+" effects").Int()
	require.NoError(e, err)
	return n
}

func TestHundredEqualRequestsToTwoProcessesRunOnce(t *testing.T) {
	e, client, addr := onRedis(t)
	a, _ := e.startShop(addr)
	b, _ := e.startShop(addr)
	var ran, replayed, conflicts atomic.Int64
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			<-start
			r, err := []*site{a, b}[i%2].try(t.Context(), http.MethodPost, "/orders", "abc", "order")
			switch {
			case err != nil:
			case r.status == 409 && r.header.Get("Retry-After") != "":
				conflicts.Add(1)
			case r.status == 201 && r.replayed():
				replayed.Add(1)
			case r.status == 201:
				ran.Add(1)
			}
		})
	}
	close(start)
	all.Wait()
	require.Equal(t, int64(1), ran.Load())
	require.Equal(t, int64(99), conflicts.Load()+replayed.Load())
	require.Equal(t, 1, e.effects(client))
	for _, s := range []*site{a, b} {
		require.True(t, s.must(201, "abc", "order").replayed())
	}
}

func TestProcessKilledInItsHandlerIsFollowedOnce(t *testing.T) {
	t.Parallel()
	e, client, addr := onRedis(t)
	a, kill := e.startShop(addr)
	b, _ := e.startShop(addr)
	first := a.inBackground(t.Context(), "abc", "order")
	require.Equal(t, 201, (<-first).status)
	hung := a.inBackground(t.Context(), "def", "hang")
	require.Eventually(t, func() bool { return e.effects(client) == 2 }, 20*time.Second, 10*time.Millisecond)
	kill()
	require.Nil(t, <-hung)
	killed := time.Now()

	require.True(t, b.must(201, "abc", "order").replayed(), "what was answered is remembered")
	var followed sync.WaitGroup
	begun := make(chan struct{})
	followed.Go(func() { // the follower hangs, too, until it is killed by the end of the test
		for {
			r, err := b.try(t.Context(), http.MethodPost, "/orders", "def", "hang")
			if err != nil || r.status != 409 {
				return
			}
			select {
			case <-begun:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	require.Eventually(t, func() bool { return e.effects(client) == 3 }, 30*time.Second, 10*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(killed), time.Second, "not before the lease has ended")
	for range 5 {
		b.mustProblem(409, "in-progress", "def", "hang")
	}
	require.Equal(t, 3, e.effects(client), "one takeover")
	close(begun)
	b.CloseClientConnections()
	t.Cleanup(followed.Wait)
}
