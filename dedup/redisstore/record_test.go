package redisstore_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func FuzzDecode(f *testing.F) {
	m := startMini(f)
	store := open(m.client(f))
	for _, state := range []dedup.State{dedup.InProgress, dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned} {
		f.Add(stored(f, m, store, state, 2))
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, v string) {
		state, epoch, ok := redisstore.Decode(v)
		if !ok {
			require.Zero(t, state)
			return
		}
		require.GreaterOrEqual(t, len(v), 26)
		require.Contains(t, []dedup.State{dedup.InProgress, dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned}, state)
		require.Less(t, epoch, uint64(1)<<53)
		if state != dedup.Done { // a done record's result is whatever follows
			for n := range v {
				_, _, short := redisstore.Decode(v[:n])
				require.False(t, short, "%x cut to %d bytes", v, n)
			}
		}
	})
}

// stored is a record in the given state, as the scripts write it.
func stored(tb testing.TB, m *mini, s *redisstore.Store, state dedup.State, redrive int) string {
	q := ask(newKey())
	q.Redrive, q.Fingerprint = redrive, dedup.FingerprintOf([]byte("body"))
	held := acquireAll(tb, s, q)
	if state != dedup.InProgress {
		errs := make([]error, 1)
		require.NoError(tb, s.Finish(tb.Context(), []dedup.FinishRequest{{Held: held[0], State: state, Result: []byte("result"), Reason: "reason"}}, errs))
		require.NoError(tb, errs[0])
	}
	v, err := m.Get(keyName(q.Key))
	require.NoError(tb, err)
	return v
}

// The scripts and the Go code each have a decoder: what one refuses, the other must refuse.
func TestBothDecodersAgree(t *testing.T) {
	m := startMini(t)
	store := open(m.client(t))
	states := []dedup.State{dedup.InProgress, dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned}
	refused := 0
	rapid.Check(t, func(rt *rapid.T) {
		v := []byte(stored(t, m, store, rapid.SampledFrom(states).Draw(rt, "state"), rapid.IntRange(0, 1).Draw(rt, "redrive")))
		for range rapid.IntRange(0, 3).Draw(rt, "changes") {
			switch at := rapid.IntRange(0, len(v)-1).Draw(rt, "at"); rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				v = v[:max(at, 1)]
			case 1:
				v = append(v, byte(at))
			default:
				at = min(at, rapid.SampledFrom([]int{3, 60}).Draw(rt, "upto"))
				v[at] = rapid.Byte().Draw(rt, "byte")
			}
		}
		q := ask(newKey())
		require.NoError(t, m.Set(keyName(q.Key), string(v)))
		m.SetTTL(keyName(q.Key), time.Hour)
		_, _, ok := redisstore.Decode(string(v))
		out := make([]dedup.Verdict, 1)
		require.NoError(rt, store.Claim(t.Context(), []dedup.ClaimRequest{q}, out))
		require.Equal(rt, ok, out[0].Err == nil, "record %s: Go's decoder says %v, the script %+v", hex.EncodeToString(v), ok, out[0])
		if !ok {
			refused++
		}
	})
	t.Logf("%d records refused by both", refused)
	require.Positive(t, refused)
}

func TestJudgement(t *testing.T) {
	store := open(startMini(t).client(t))
	for _, c := range []struct{ info, unsafe string }{
		{"redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"redis_version:8.4.1\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n", ""},
		{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.0\r\nmaxmemory_policy:noeviction\r\n", ""},
		{"redis_version:6.2.14\r\nmaxmemory_policy:noeviction\r\n", "6.2.14 is below 7.0"},
		{"redis_version:7.0.0\r\nmaxmemory_policy:volatile-ttl\r\n", "volatile-ttl"},
		{"redis_version:7.0.0\r\nredis_mode:sentinel\r\n", "redis.NewFailoverClient"},
		{"redis_version:7.0.0\r\nredis_mode:cluster\r\n", "redis.NewClusterClient"},
	} {
		unknown, err := store.Judge(c.info)
		require.Empty(t, unknown, c.info)
		if c.unsafe == "" {
			require.NoError(t, err, c.info)
			continue
		}
		require.ErrorIs(t, err, dedup.ErrUnsafeStore)
		require.ErrorContains(t, err, c.unsafe)
	}
	for _, hidden := range []string{"", "redis_version:?\r\nmaxmemory_policy:noeviction", "redis_version:7.0.0"} {
		unknown, err := store.Judge(hidden)
		require.NoError(t, err)
		require.NotEmpty(t, unknown, hidden)
	}
}
