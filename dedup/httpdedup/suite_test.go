package httpdedup_test

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
)

// scenario is a behaviour of the middleware or of tokens that must not depend on the store.
type scenario struct {
	name string
	run  func(e *env)
}

// testScenarios runs all of them on one kind of store. open is called once for each.
func testScenarios(t *testing.T, open func(tb testing.TB) dedup.Store) {
	for _, group := range []struct {
		name  string
		cases []scenario
	}{
		{"Key", keyCases}, {"Request", requestCases}, {"Replay", replayCases}, {"Headers", headerCases}, {"Policy", policyCases},
		{"Stream", streamCases}, {"Crash", crashCases}, {"Outage", outageCases}, {"Token", tokenCases},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(&env{T: t, store: open(t), app: rand.Text()})
				})
			}
		})
	}
}

// env is what one scenario has: a store, and an application of its own on it.
type env struct {
	*testing.T
	store dedup.Store
	app   string
}

// shortLease is that of scenarios in which an owner vanishes.
const shortLease = time.Second

func (e *env) guard(o *dedup.Options) *dedup.Guard { return e.guardOn(e.store, o) }

func (e *env) guardOn(s dedup.Store, o *dedup.Options) *dedup.Guard {
	e.Helper()
	g, err := dedup.New(e.app, s, o)
	require.NoError(e, err)
	return g
}

// site is a server with one guarded handler. The client's name is in its User header, and "ann"
// where there is none.
type site struct {
	*httptest.Server
	e    *env
	runs atomic.Int64
}

func user(r *http.Request) string {
	if u := r.Header.Get("User"); u != "" {
		return u
	}
	return "ann"
}

// site serves h under the scope "shop" of a Guard with the default options.
func (e *env) site(h http.HandlerFunc, o *httpdedup.Options) *site {
	e.Helper()
	return e.siteOf(e.guard(nil), "shop", h, o, nil)
}

// siteOf serves h; outside, if not nil, is put around the middleware.
func (e *env) siteOf(g *dedup.Guard, scope string, h http.HandlerFunc, o *httpdedup.Options, outside func(http.Handler) http.Handler) *site {
	e.Helper()
	s := &site{e: e}
	idempotent, err := httpdedup.Middleware(g, scope, user, o)
	require.NoError(e, err)
	handler := idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h(w, r)
	}))
	if outside != nil {
		handler = outside(handler)
	}
	s.Server = httptest.NewServer(handler)
	s.Config.ErrorLog = quiet
	e.Cleanup(s.Close)
	return s
}

// reply is an answer read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r *reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

type edit func(r *http.Request)

func with(name, value string) edit { return func(r *http.Request) { r.Header.Add(name, value) } }

// try sends a request, and returns an error where the connection ended instead of an answer.
func (s *site) try(ctx context.Context, method, path, key, body string, edits ...edit) (*reply, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, f := range edits {
		f(r)
	}
	res, err := s.Client().Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	return &reply{res.StatusCode, res.Header, string(b)}, nil
}

func (s *site) send(method, path, key, body string, edits ...edit) *reply {
	s.e.Helper()
	r, err := s.try(s.e.Context(), method, path, key, body, edits...)
	require.NoError(s.e, err)
	return r
}

// post is the usual request: POST /orders.
func (s *site) post(key, body string, edits ...edit) *reply {
	s.e.Helper()
	return s.send(http.MethodPost, "/orders", key, body, edits...)
}

// must posts and requires the status.
func (s *site) must(status int, key, body string, edits ...edit) *reply {
	s.e.Helper()
	r := s.post(key, body, edits...)
	require.Equal(s.e, status, r.status, r.body)
	return r
}

// ran requires how often the handler has begun.
func (s *site) ran(n int) {
	s.e.Helper()
	require.Equal(s.e, int64(n), s.runs.Load(), "runs of the handler")
}

// created is a handler that answers 201 with the number of its run.
func created(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Location", "/orders/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "created")
}

// gate is a handler that says when it has begun and waits until it is let go.
type gate struct {
	begun, open chan struct{}
	once        sync.Once
	over        <-chan struct{} // the test is
}

func newGate(e *env) *gate {
	return &gate{begun: make(chan struct{}, 100), open: make(chan struct{}), over: e.Context().Done()}
}

func (g *gate) letGo() { g.once.Do(func() { close(g.open) }) }

func (g *gate) wait() {
	g.begun <- struct{}{}
	select {
	case <-g.open:
	case <-g.over:
	}
}

func (g *gate) created(w http.ResponseWriter, r *http.Request) {
	g.wait()
	created(w, r)
}

// inBackground posts and hands the answer over once it is there; nil where the connection ended instead.
func (s *site) inBackground(ctx context.Context, key, body string) <-chan *reply {
	answer := make(chan *reply, 1)
	go func() {
		r, _ := s.try(ctx, http.MethodPost, "/orders", key, body)
		answer <- r
	}()
	return answer
}

// eventually posts until the status is another than 409, and returns that answer.
func (s *site) eventually(key, body string) *reply {
	s.e.Helper()
	var r *reply
	require.Eventually(s.e, func() bool {
		r = s.post(key, body)
		return r.status != http.StatusConflict
	}, 20*time.Second, 50*time.Millisecond)
	return r
}

// record is what the store remembers of ann's key under the scope "shop".
func (e *env) record(key string) (dedup.Record, error) {
	return e.guard(nil).Inspect(e.Context(), httpdedup.WorkOf("shop", "ann", key))
}

func (e *env) noRecord(key string) {
	e.Helper()
	_, err := e.record(key)
	require.ErrorIs(e, err, dedup.ErrNotFound)
}

// watch counts events by name and cause.
type watch struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *watch) observe(e dedup.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[e.Name+" "+e.Cause] += e.N
}

func (c *watch) count(event string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[event]
}
