package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func BenchmarkStore(b *testing.B) {
	deduptest.BenchmarkStore(b, config(realRedis(b)))
}

// BenchmarkBytesPerID reports what a server of its own needs for each of 1,000,000 remembered IDs,
// its tables of keys and of expiries included.
func BenchmarkBytesPerID(b *testing.B) {
	const n, size = 1_000_000, 1000
	for name, print := range map[string]dedup.Fingerprint{"plain": {}, "fingerprint": dedup.FingerprintOf([]byte("body"))} {
		b.Run(name, func(b *testing.B) {
			client := startRedis(b).client(b)
			store := open(client)
			used := func() float64 {
				_, text, _ := strings.Cut(client.Info(b.Context(), "memory").Val(), "used_memory:")
				text, _, _ = strings.Cut(text, "\r")
				bytes, err := strconv.ParseFloat(text, 64)
				require.NoError(b, err)
				return bytes
			}
			for b.Loop() {
				require.NoError(b, client.FlushAll(b.Context()).Err())
				acquireAll(b, store, asks(1)...)
				before := used()
				for range n / size {
					in := asks(size)
					for i := range in {
						in[i].Fingerprint = print
					}
					finishAll(b, store, acquireAll(b, store, in...), dedup.Done)
				}
				b.ReportMetric((used()-before)/n, "redis-B/ID")
			}
		})
	}
}

// BenchmarkBesideNaive has the usual SETNX loop, its pipelined form, and this store in one run.
// ns/op is per message; the naive forms only mark it as seen, idemq claims and finishes it.
func BenchmarkBesideNaive(b *testing.B) {
	const n = 128
	client := realRedis(b)
	b.Run("setnx one by one", func(b *testing.B) {
		for b.Loop() {
			k := newKey()
			require.NoError(b, client.SetNX(b.Context(), "naive:"+string(k[:]), 1, time.Minute).Err())
		}
	})
	perItem := func(b *testing.B, size int, batch func()) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += size {
			batch()
		}
	}
	b.Run(fmt.Sprintf("setnx pipelined by %d", n), func(b *testing.B) {
		perItem(b, n, func() {
			_, err := client.Pipelined(b.Context(), func(p redis.Pipeliner) error {
				for range n {
					k := newKey()
					p.SetNX(b.Context(), "naive:"+string(k[:]), 1, time.Minute)
				}
				return nil
			})
			require.NoError(b, err)
		})
	})
	store := open(client)
	for _, size := range []int{1, 16, 128, 1024} {
		in, out, errs := make([]dedup.ClaimRequest, size), make([]dedup.Verdict, size), make([]error, size)
		fin := make([]dedup.FinishRequest, size)
		claim := func(b *testing.B) {
			clear(out)
			for i := range in {
				in[i] = dedup.ClaimRequest{Key: newKey(), Owner: newOwner(), Lease: 30 * time.Second, Retention: time.Minute, Holder: "host/12345"}
			}
			require.NoError(b, store.Claim(b.Context(), in, out))
		}
		b.Run(fmt.Sprintf("idemq claim by %d", size), func(b *testing.B) {
			perItem(b, size, func() { claim(b) })
		})
		b.Run(fmt.Sprintf("idemq claim and finish by %d", size), func(b *testing.B) {
			perItem(b, size, func() {
				claim(b)
				for i := range in {
					fin[i] = dedup.FinishRequest{Held: heldOf(in[i], out[i]), State: dedup.Done}
				}
				require.NoError(b, store.Finish(b.Context(), fin, errs))
			})
		})
		b.Run(fmt.Sprintf("idemq duplicate by %d", size), func(b *testing.B) {
			perItem(b, size, func() {
				clear(out)
				require.NoError(b, store.Claim(b.Context(), in, out))
			})
		})
	}
}
