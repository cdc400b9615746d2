package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func config(c redis.UniversalClient) deduptest.Config {
	return deduptest.Config{
		Open: func(testing.TB) dedup.Store { return open(c) },
		Corrupt: func(tb testing.TB, k dedup.Key) {
			require.NoError(tb, c.Set(tb.Context(), keyName(k), "no record", time.Minute).Err())
		},
	}
}

func TestStoreOnMiniredis(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	c := config(m.client(t))
	c.Advance = func(_ testing.TB, d time.Duration) { m.advance(d) }
	deduptest.TestStore(t, c)
}

func TestStoreOnRedis(t *testing.T) {
	t.Parallel()
	deduptest.TestStore(t, config(realRedis(t)))
}

func TestStoreOnCluster(t *testing.T) {
	deduptest.TestStore(t, config(realCluster(t)))
}

func TestModelOnMiniredis(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	c := config(m.client(t))
	c.Advance = func(_ testing.TB, d time.Duration) { m.advance(d) }
	deduptest.CheckModel(t, c)
}

func TestModelOnRedis(t *testing.T) {
	t.Parallel()
	c := config(realRedis(t))
	c.Lease = 20 * time.Millisecond // each run waits for several
	deduptest.CheckModel(t, c)
}

func TestBatchIsOneRoundTrip(t *testing.T) {
	client, count := realRedis(t), &counter{}
	store := open(client)
	acquireAll(t, store, asks(1)...) // now the server knows the scripts
	finishAll(t, store, acquireAll(t, store, asks(1)...), dedup.Done)
	extendAll(t, store, acquireAll(t, store, asks(1)...))
	client.AddHook(count)
	for name, call := range map[string]func(held []dedup.Held){
		"claim":  func([]dedup.Held) {},
		"extend": func(held []dedup.Held) { extendAll(t, store, held) },
		"finish": func(held []dedup.Held) { finishAll(t, store, held, dedup.Done) },
	} {
		before, trips := count.commands.Load(), count.trips.Load()
		held := acquireAll(t, store, asks(1024)...)
		call(held)
		want := int64(2)
		if name == "claim" {
			want = 1
		}
		require.Equal(t, want, count.commands.Load()-before, name)
		require.Equal(t, want, count.trips.Load()-trips, name)
	}
}

func TestBatchBeyondTheScriptsLimitIsAnswered(t *testing.T) {
	store := open(realRedis(t))
	held := acquireAll(t, store, asks(9000)...)
	for _, err := range finishAll(t, store, held, dedup.Done) {
		require.NoError(t, err)
	}
}

// The whole batch is one argument list, so what its items do not share must not leak from one
// to the next.
func TestMixedBatchAnswersItemByItem(t *testing.T) {
	for name, store := range map[string]dedup.Store{"redis": open(realRedis(t)), "cluster": open(realCluster(t))} {
		in := asks(200)
		for i := range in {
			in[i].Lease += time.Duration(i%3) * time.Minute
			in[i].Redrive = i % 2
			if i%5 == 0 {
				in[i].Fingerprint = dedup.FingerprintOf([]byte{byte(i)})
			}
			if i%7 == 0 {
				in[i].MustExist = true
			}
			in[i].Holder = strings.Repeat("h", i%4)
		}
		out := claimAll(t, store, in...)
		var fin []dedup.FinishRequest
		for i, v := range out {
			if in[i].MustExist {
				require.Equal(t, dedup.Absent, v.State, "%s %d", name, i)
				continue
			}
			require.Equal(t, dedup.Verdict{State: dedup.Acquired, Epoch: v.Epoch, Attempt: 1, Redrive: i % 2}, v)
			f := dedup.FinishRequest{Held: heldOf(in[i], v), State: dedup.Done}
			switch i % 4 {
			case 0:
				f.Result = []byte(strings.Repeat("r", i))
			case 1:
				f.State, f.Reason = dedup.Failed, strings.Repeat("f", i)
			case 2:
				f.State = dedup.Failed
			}
			fin = append(fin, f)
		}
		errs := make([]error, len(fin))
		require.NoError(t, store.Finish(t.Context(), fin, errs))
		again := make([]dedup.ClaimRequest, len(fin))
		for i := range fin {
			require.NoError(t, errs[i])
			again[i] = ask(fin[i].Key)
			again[i].Redrive = fin[i].Redrive
		}
		for i, v := range claimAll(t, store, again...) {
			require.Equal(t, fin[i].State, v.State)
			require.Equal(t, string(fin[i].Result), string(v.Result))
			require.Equal(t, fin[i].Reason, v.LastError)
		}
	}
}

// There is no client clock in a request: a lease is a duration, and the server adds its own time.
func TestClientClockIsNotAsked(t *testing.T) {
	m := startMini(t)
	m.now = m.now.Add(-24 * time.Hour)
	m.SetTime(m.now)
	store := open(m.client(t))
	q := ask(newKey())
	h := acquireAll(t, store, q)[0]
	require.Equal(t, uint64(m.now.UnixMilli()), h.Epoch, "the epoch is the server's clock")
	m.advance(q.Lease - time.Millisecond)
	require.Equal(t, dedup.Verdict{State: dedup.InProgress, Epoch: h.Epoch, Attempt: 1, Left: time.Millisecond}, claimAll(t, store, ask(q.Key))[0])
	m.advance(time.Millisecond)
	require.Equal(t, dedup.Acquired, claimAll(t, store, ask(q.Key))[0].State)
}

func TestPrefixesKeepApplicationsApart(t *testing.T) {
	m := startMini(t)
	client, k := m.client(t), newKey()
	acquireAll(t, open(client), ask(k))
	acquireAll(t, withPrefix(client, "other:"), ask(k))
	require.True(t, m.Exists(keyName(k)))
	require.True(t, m.Exists(strings.Replace(keyName(k), "idemq:", "other:", 1)))
}

func TestRecordIsSmall(t *testing.T) {
	client := startRedis(t).client(t) // a server gives values the larger buffers of scripts that others ran before
	store := open(client)
	for name, q := range map[string]dedup.ClaimRequest{"plain": ask(newKey()), "with fingerprint": ask(newKey())} {
		limit := int64(144)
		if name != "plain" {
			q.Fingerprint = dedup.FingerprintOf([]byte("body"))
			limit = 160
		}
		require.NoError(t, finishAll(t, store, acquireAll(t, store, q), dedup.Done)[0])
		got, err := client.MemoryUsage(t.Context(), keyName(q.Key)).Result()
		require.NoError(t, err)
		t.Logf("%s: %d bytes a done record by MEMORY USAGE", name, got)
		require.LessOrEqual(t, got, limit, name)
	}
}

// Neighbours that are alike but for their payload are told apart.
func TestNeighboursKeepTheirOwnPayload(t *testing.T) {
	store := open(startMini(t).client(t))
	held := acquireAll(t, store, asks(12)...)
	fin := ended(held, dedup.Failed)
	for i := range fin {
		if i%3 != 0 {
			fin[i].Reason = strings.Repeat("f", i)
		}
	}
	errs, again := make([]error, len(fin)), make([]dedup.ClaimRequest, len(fin))
	require.NoError(t, store.Finish(t.Context(), fin, errs))
	for i := range again {
		require.NoError(t, errs[i])
		again[i] = ask(held[i].Key)
	}
	for i, v := range claimAll(t, store, again...) {
		require.Equal(t, dedup.Failed, v.State)
		require.Equal(t, fin[i].Reason, v.LastError, "item %d", i)
	}
}

func TestRecordOutlivesALeaseBeyondItsRetention(t *testing.T) {
	m := startMini(t)
	store := open(m.client(t))
	q := ask(newKey())
	q.Lease, q.Retention = time.Minute, time.Second
	held := acquireAll(t, store, q)
	m.advance(30 * time.Second)
	require.Equal(t, dedup.InProgress, claimAll(t, store, ask(q.Key))[0].State)
	require.NoError(t, extendAll(t, store, held)[0])
	m.advance(30 * time.Second)
	require.NoError(t, finishAll(t, store, held, dedup.Done)[0])
}

// Redis refuses an expiry of 0 ms, and the record must be there still for whoever follows on a lease that is shorter.
func TestSpansBelowAMillisecondAreLeasesAndExpiries(t *testing.T) {
	m := startMini(t)
	store := open(m.client(t))
	for _, lease := range []time.Duration{time.Nanosecond, time.Microsecond, 500 * time.Microsecond} {
		k := newKey()
		brief := func() dedup.ClaimRequest {
			q := ask(k)
			q.Lease, q.Retention = lease, 0
			return q
		}
		ends := max(lease, time.Microsecond) // the server's clock is no finer
		acquireAll(t, store, brief())
		require.Equal(t, time.Millisecond, m.TTL(keyName(k)), "expiry of a claim with lease %v", lease)
		require.Equal(t, ends, claimAll(t, store, brief())[0].Left, "left of the lease of %v", lease)
		m.advance(ends)
		q := brief()
		v := claimAll(t, store, q)[0]
		require.Equal(t, dedup.Verdict{State: dedup.Acquired, Epoch: v.Epoch, Attempt: 1, Crashes: 1}, v, "after the lease of %v", lease)
		held := []dedup.Held{heldOf(q, v)}
		require.NoError(t, extendAll(t, store, held)[0])
		require.NoError(t, finishAll(t, store, held, dedup.Done)[0])
		require.Equal(t, time.Millisecond, m.TTL(keyName(k)), "expiry of a verdict without retention")
		m.advance(time.Millisecond)
		require.False(t, m.Exists(keyName(k)))
	}
}
