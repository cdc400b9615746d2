package httpdedup_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
)

func keyOf(n int64) string { return fmt.Sprintf("8e03978e-40d5-43e8-bc93-%012d", n) }

// BenchmarkHandler is the cost of the middleware itself, without a server around it.
func BenchmarkHandler(b *testing.B) {
	for _, s := range benchSubjects() {
		b.Run(s.name, func(b *testing.B) {
			h, next := s.handler(b), s.keys()
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				h.ServeHTTP(discard{header: make(http.Header)}, newRequest(next()))
			}
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
		})
	}
}

// cpu is what this process has used: on a machine that others use, too, it tells more than the time that passed.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type benchSubject struct {
	name   string
	store  func(tb testing.TB) dedup.Store // nil: the bare handler
	replay bool
}

func benchSubjects() []benchSubject {
	memory := func(testing.TB) dedup.Store { return memstore.New() }
	onRedis := func(tb testing.TB) dedup.Store { return redisstore.New(redisAt(tb, testenv.Redis(tb)), nil) }
	return []benchSubject{
		{name: "bare"},
		{"memory/new", memory, false}, {"memory/replay", memory, true},
		{"redis/new", onRedis, false}, {"redis/replay", onRedis, true},
	}
}

func (s *benchSubject) handler(tb testing.TB) http.Handler {
	if s.store == nil {
		return http.HandlerFunc(created)
	}
	g, err := dedup.New("bench", s.store(tb), &dedup.Options{Retention: time.Minute})
	require.NoError(tb, err)
	h := wrap(tb, g, http.HandlerFunc(created))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, newRequest(0))
	require.Equal(tb, http.StatusCreated, w.Code)
	return h
}

// keys makes names of requests: that of the one already answered, or one that no run has had before.
func (s *benchSubject) keys() func() int64 {
	if s.replay {
		return func() int64 { return 0 }
	}
	var n atomic.Int64
	n.Store(time.Now().UnixNano() / 1000 % 1e12)
	return func() int64 { return n.Add(1) }
}
