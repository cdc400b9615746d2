package bench

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/dedup/redisstore"
)

// BenchmarkHTTP is requests over HTTP/1.1 from 16 clients of this process to a handler that does nothing.
func BenchmarkHTTP(b *testing.B) {
	for b.Loop() {
		requests(b, full)
	}
}

// BenchmarkHTTPHandler is what the middleware costs without a server around it, and above its store.
func BenchmarkHTTPHandler(b *testing.B) {
	for b.Loop() {
		handlers(b, full)
	}
}

const clients = 16

func requests(tb testing.TB, s sizes) {
	all := sites()
	type result struct{ rate, p50, p99, cpu, asked []float64 }
	results := make([]result, len(all))
	for range s.rounds {
		for i := range all {
			m := all[i].measure(tb, s.requests)
			r := &results[i]
			r.rate, r.p50, r.p99 = append(r.rate, m.rate), append(r.p50, m.p50.Seconds()), append(r.p99, m.p99.Seconds())
			r.cpu, r.asked = append(r.cpu, m.cpu), append(r.asked, m.asked)
		}
	}
	t := newTable("POST, no-op handler", "requests a second", "p50", "p99", "CPU of this process a request", "Redis commands a request")
	for i := range all {
		r, asked := &results[i], "–"
		if x := median(r.asked); x > 0 {
			asked = fmt.Sprintf("%.1f", x)
		}
		seconds := func(xs []float64) string { return millis(time.Duration(median(xs) * float64(time.Second))) }
		t.add(all[i].name, spread(r.rate), seconds(r.p50), seconds(r.p99), fmt.Sprintf("%.0f µs", median(r.cpu)), asked)
	}
	t.print(fmt.Sprintf("%d clients in the server's process, whose CPU time is in the table, medians of %d rounds of %s requests:", clients, s.rounds, count(float64(s.requests))))
}

// measured is of one run; cpu, in µs, and asked are of one request.
type measured struct {
	rate, cpu, asked float64
	p50, p99         time.Duration
}

func (s *site) measure(tb testing.TB, n int) measured {
	rdb, commands := newRedis(tb)
	url, stop := s.serve(tb, rdb)
	defer stop()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	client, k := &http.Client{Transport: transport}, newKeys(s.replay)
	for range clients { // connections, scripts, and the answer to replay
		require.NoError(tb, post(client, url, k))
	}
	took := make([]time.Duration, n)
	var at atomic.Int64
	var all sync.WaitGroup
	asked, before, begun := commands.n.Load(), cpu(), time.Now()
	for range clients {
		all.Go(func() {
			for i := at.Add(1) - 1; i < int64(n); i = at.Add(1) - 1 {
				sent := time.Now()
				if err := post(client, url, k); err != nil {
					tb.Errorf("%s: %v", s.name, err)
					return
				}
				took[i] = time.Since(sent)
			}
		})
	}
	all.Wait()
	m := measured{rate: float64(n) / time.Since(begun).Seconds()}
	m.cpu = float64((cpu() - before).Microseconds()) / float64(n)
	m.asked = float64(commands.n.Load()-asked) / float64(n)
	slices.Sort(took)
	m.p50, m.p99 = took[n/2], took[n*99/100]
	return m
}

func post(client *http.Client, url string, k *keys) error {
	r, err := newRequest(url+"/orders", k.next())
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusCreated || string(body) != "created" || res.Header.Get("Location") != "/orders/1" {
		return fmt.Errorf("answer %s, %q", res.Status, body)
	}
	return nil
}

// handlers calls handlers one request after the other. What is above the store is measured on a store that costs
// nothing, and what the bare handler and its request cost is taken off.
func handlers(tb testing.TB, s sizes) {
	rdb, _ := newRedis(tb)
	fresh := func(s dedup.Store) http.Handler { return guarded(tb, s) }
	replayed := func(s *still) http.Handler {
		h := guarded(tb, s)
		serveOne(tb, h, newKeys(true))
		s.replay = true
		return h
	}
	all := []struct {
		name   string
		h      http.Handler
		replay bool
	}{
		{"bare handler", http.HandlerFunc(created), false},
		{"**above the store, new**", fresh(new(still)), false},
		{"**above the store, replay**", replayed(new(still)), true},
		{"on memory, new", fresh(memstore.New()), false},
		{"on memory, replay", fresh(memstore.New()), true},
		{"on Redis, new", fresh(redisstore.New(rdb, nil)), false},
		{"on Redis, replay", fresh(redisstore.New(rdb, nil)), true},
	}
	cpus, allocs, bytes := make([][]float64, len(all)), make([][]float64, len(all)), make([][]float64, len(all))
	for range s.rounds {
		for i := range all {
			m := handle(tb, all[i].h, all[i].replay, s.requests)
			cpus[i], allocs[i], bytes[i] = append(cpus[i], m.cpu), append(allocs[i], m.allocs), append(bytes[i], m.bytes)
		}
	}
	t := newTable("a request, without a server", "CPU", "allocations", "bytes")
	for i := range all {
		c, a, by := median(cpus[i]), median(allocs[i]), median(bytes[i])
		if i > 0 {
			c, a, by = c-median(cpus[0]), a-median(allocs[0]), by-median(bytes[0])
		}
		t.add(all[i].name, fmt.Sprintf("%.1f µs", c), fmt.Sprintf("%.0f", a), count(by))
	}
	t.print(fmt.Sprintf("What httpdedup adds to a handler, the bare one taken off, medians of %d rounds of %s requests:", s.rounds, count(float64(s.requests))))
}

// cost is that of one request; cpu is in µs.
type cost struct{ cpu, allocs, bytes float64 }

func handle(tb testing.TB, h http.Handler, replay bool, n int) cost {
	k := newKeys(replay)
	for range 10 { // the answer to replay, and scripts
		serveOne(tb, h, k)
	}
	var a, b runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&a)
	before := cpu()
	for range n {
		serveOne(tb, h, k)
	}
	spent := cpu() - before
	runtime.ReadMemStats(&b)
	each := func(x float64) float64 { return x / float64(n) }
	return cost{each(float64(spent.Nanoseconds()) / 1000), each(float64(b.Mallocs - a.Mallocs)), each(float64(b.TotalAlloc - a.TotalAlloc))}
}

func serveOne(tb testing.TB, h http.Handler, k *keys) {
	r, err := newRequest("/orders", k.next())
	if err != nil {
		tb.Fatal(err)
	}
	w := answer{header: make(http.Header)}
	h.ServeHTTP(&w, r)
	if w.status != http.StatusCreated {
		tb.Fatalf("answer %d", w.status)
	}
}

// answer is a ResponseWriter that costs nothing.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }
func (a *answer) WriteHeader(status int)      { a.status = status }
