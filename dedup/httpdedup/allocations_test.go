//go:build !race

package httpdedup_test

// The race detector allocates, so what is in this file is run without it, by a line of its own of make test.

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/memstore"
)

// maxAllocs is what the middleware and the Guard may add to a handler, in allocations; memstoreAllocs, the record and
// its result, is the store's.
const (
	maxAllocs      = 40
	memstoreAllocs = 2
)

func TestAllocationsOfARequest(t *testing.T) {
	var key atomic.Int64
	run := func(h http.Handler, fresh bool) float64 {
		return testing.AllocsPerRun(500, func() {
			if fresh {
				key.Add(1)
			}
			h.ServeHTTP(discard{header: make(http.Header)}, newRequest(key.Load()))
		})
	}
	bare := run(http.HandlerFunc(created), true)
	g := guardOn(t, memstore.New())
	h := wrap(t, g, http.HandlerFunc(created))
	fresh := run(h, true) - bare
	replay := run(h, false) - bare
	t.Logf("allocations beside the bare handler's %v: new %v, replay %v", bare, fresh, replay)
	require.LessOrEqual(t, fresh-memstoreAllocs, float64(maxAllocs))
	require.LessOrEqual(t, replay, float64(maxAllocs))
}
