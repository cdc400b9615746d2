package bench

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

// BenchmarkClaims measures a claim and its verdict through a Guard, beside the SETNX that it replaces.
func BenchmarkClaims(b *testing.B) {
	e := newEnv(b)
	for b.Loop() {
		claimRates(b, e, 40_960, 5)
	}
}

func claimRates(tb testing.TB, e env, most, rounds int) {
	for _, size := range []int{1, 16, 128, 1024} {
		n := most
		if size == 1 {
			n /= 8
		}
		naive, pipe, guard := make([]float64, 0, rounds), make([]float64, 0, rounds), make([]float64, 0, rounds)
		for range rounds {
			naive = append(naive, rate(n/4, func() { setNXOneByOne(tb, e, n/4) }))
			pipe = append(pipe, rate(n, func() { setNXPipelined(tb, e, n, size) }))
			guard = append(guard, rate(n, func() { claimAndFinish(tb, e, n, size) }))
		}
		tb.Logf("batch %4d: SETNX one by one %7.0f/s, SETNX pipelined %7.0f/s, idemq claim + done %7.0f/s", size, median(naive), median(pipe), median(guard))
	}
}

func rate(n int, f func()) float64 {
	begun := time.Now()
	f()
	return float64(n) / time.Since(begun).Seconds()
}

func setNXOneByOne(tb testing.TB, e env, n int) {
	prefix := newName()
	for i := range n {
		require.NoError(tb, e.rdb.SetNX(context.Background(), prefix+strconv.Itoa(i), 1, time.Hour).Err())
	}
}

func setNXPipelined(tb testing.TB, e env, n, size int) {
	prefix := newName()
	for at := 0; at < n; at += size {
		_, err := e.rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			for i := range size {
				p.SetNX(context.Background(), prefix+strconv.Itoa(at+i), 1, time.Hour)
			}
			return nil
		})
		require.NoError(tb, err)
	}
}

func claimAndFinish(tb testing.TB, e env, n, size int) {
	g, err := dedup.New(newName(), redisstore.New(e.rdb, nil), nil)
	require.NoError(tb, err)
	works, claims := make([]dedup.Work, size), make([]*dedup.Claim, size)
	outs, errs := make([]dedup.Outcome, size), make([]error, size)
	for at := 0; at < n; at += size {
		for i := range works {
			works[i] = dedup.Work{Scope: "bench", ID: strconv.Itoa(at + i), Retention: time.Hour}
		}
		require.NoError(tb, g.ClaimBatch(context.Background(), works, claims))
		for i, c := range claims {
			outs[i] = dedup.Outcome{Claim: c, State: dedup.Done}
		}
		require.NoError(tb, g.FinishBatch(context.Background(), outs, errs))
	}
}

// BenchmarkMemory tells what a remembered ID costs in Redis, and that a long run costs the
// consumer nothing that stays.
func BenchmarkMemory(b *testing.B) {
	e := newEnv(b)
	for b.Loop() {
		storeMemory(b, e, 1_000_000)
		consumerMemory(b, e, 500_000, 4)
	}
}

func storeMemory(tb testing.TB, e env, ids int) {
	before := usedMemory(tb, e)
	claimAndFinish(tb, e, ids, 1000)
	tb.Logf("Redis: %d bytes per remembered ID, of %d", (usedMemory(tb, e)-before)/ids, ids)
}

// consumerMemory looks at the heap after one run of n messages, and again after some more of them.
func consumerMemory(tb testing.TB, e env, n, more int) {
	b := e.of("kafka")
	topic, drop := b.fill(tb, n, n)
	defer drop()
	e.idemq(b).time(tb, topic, n) // pools and caches are warm now
	heap, goroutines := resident(), runtime.NumGoroutine()
	for range more {
		e.idemq(b).time(tb, topic, n)
	}
	grown := int64(resident()) - int64(heap)
	tb.Logf("consumer: after %d messages the heap has grown by %d KiB and goroutines by %d", n*more, grown/1024, runtime.NumGoroutine()-goroutines)
	require.Less(tb, grown, int64(8<<20))
	require.LessOrEqual(tb, runtime.NumGoroutine(), goroutines+2)
}

func resident() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func usedMemory(tb testing.TB, e env) int {
	tb.Helper()
	info, err := e.rdb.Info(context.Background(), "memory").Result()
	require.NoError(tb, err)
	_, after, _ := strings.Cut(info, "used_memory:")
	var n int
	_, err = fmt.Sscan(after, &n)
	require.NoError(tb, err)
	return n
}
