package httpdedup_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
)

func TestNewRequestTakesTwoRoundTripsAndAReplayOne(t *testing.T) {
	e := onMemory(t)
	var calls atomic.Int64
	counted := &deduptest.Faulty{Store: e.store, Before: failing(func(string) error { calls.Add(1); return nil })}
	s := e.siteOf(e.guardOn(counted, nil), "shop", created, nil, nil)
	s.must(201, "abc", "order")
	require.Equal(t, int64(2), calls.Swap(0))
	require.True(t, s.must(201, "abc", "order").replayed())
	require.Equal(t, int64(1), calls.Swap(0))
	s.must(422, "abc", "other")
	require.Equal(t, int64(1), calls.Swap(0))
	s.must(400, "", "order")
	require.Zero(t, calls.Load())
}

func guardOn(tb testing.TB, s dedup.Store) *dedup.Guard {
	tb.Helper()
	g, err := dedup.New("test", s, nil)
	require.NoError(tb, err)
	return g
}

func wrap(tb testing.TB, g *dedup.Guard, h http.Handler) http.Handler {
	tb.Helper()
	idempotent, err := httpdedup.Middleware(g, "shop", httpdedup.Everyone, nil)
	require.NoError(tb, err)
	return idempotent(h)
}

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

func newRequest(n int64) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"amount":1}`))
	r.Header["Content-Type"] = []string{"application/json"}
	r.Header["Idempotency-Key"] = []string{keyOf(n)}
	return r
}
