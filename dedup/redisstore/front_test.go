package redisstore_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// onEveryServer runs f on an embedded server, a real one and a Cluster.
func onEveryServer(t *testing.T, f func(t *testing.T, c redis.UniversalClient)) {
	t.Run("miniredis", func(t *testing.T) { f(t, startMini(t).client(t)) })
	t.Run("redis", func(t *testing.T) { f(t, realRedis(t)) })
	t.Run("cluster", func(t *testing.T) { f(t, realCluster(t)) })
}

func frontName(k dedup.Key) string { return strings.Replace(keyName(k), "idemq:", "idemq:front:", 1) }

func lookup(tb testing.TB, s *redisstore.Store, in ...dedup.ClaimRequest) ([]dedup.Verdict, [][16]byte) {
	tb.Helper()
	out, tokens := make([]dedup.Verdict, len(in)), make([][16]byte, len(in))
	require.NoError(tb, s.Lookup(tb.Context(), in, out, tokens))
	return out, tokens
}

// place looks up what is not known and returns the token.
func place(tb testing.TB, s *redisstore.Store, q dedup.ClaimRequest) [16]byte {
	tb.Helper()
	out, tokens := lookup(tb, s, q)
	require.Zero(tb, out[0])
	require.NotZero(tb, tokens[0])
	return tokens[0]
}

// known looks up what is known.
func known(tb testing.TB, s *redisstore.Store, q dedup.ClaimRequest) dedup.Verdict {
	tb.Helper()
	out, tokens := lookup(tb, s, q)
	require.NoError(tb, out[0].Err)
	require.NotZero(tb, out[0].State)
	require.Zero(tb, tokens[0], "there is nothing to remember")
	return out[0]
}

func verdictOf(q dedup.ClaimRequest) dedup.FinishRequest {
	return dedup.FinishRequest{Held: dedup.Held{ClaimRequest: q, Epoch: 1 << 41}, State: dedup.Done, Result: []byte("result")}
}

// keep remembers q and returns whether it was kept.
func keep(tb testing.TB, s *redisstore.Store, q dedup.FinishRequest, token [16]byte) bool {
	tb.Helper()
	kept, err := s.Remember(tb.Context(), []dedup.FinishRequest{q}, [][16]byte{token})
	require.NoError(tb, err)
	return kept == 1
}

func TestCopyRepeatsTheVerdict(t *testing.T) {
	onEveryServer(t, func(t *testing.T, c redis.UniversalClient) {
		s := open(c)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for _, result := range [][]byte{nil, {0}, every, bytes.Repeat([]byte("x"), 1<<20)} {
			for _, redrive := range []int{0, 7, 1<<32 - 1} {
				f := verdictOf(ask(newKey()))
				f.Result, f.Redrive = result, redrive
				require.True(t, keep(t, s, f, place(t, s, f.ClaimRequest)))
				again := ask(f.Key)
				again.Redrive = 9 // what is done is never taken, whatever its number
				v := known(t, s, again)
				require.InDelta(t, time.Hour, v.Left, float64(5*time.Second))
				require.LessOrEqual(t, v.Left, time.Hour)
				v.Left = 0
				require.Equal(t, dedup.Verdict{State: dedup.Done, Epoch: f.Epoch, Attempt: 1, Redrive: redrive, Result: result}, v)
			}
		}
	})
}

func TestTokenServesOnceAndUntilTheNextAsker(t *testing.T) {
	onEveryServer(t, func(t *testing.T, c redis.UniversalClient) {
		s, q := open(c), ask(newKey())
		first := place(t, s, q)
		second := place(t, s, q) // the same asker, whose reply was lost, or another one
		require.NotEqual(t, first, second)
		require.False(t, keep(t, s, verdictOf(q), first), "another asker's token stands there")
		require.True(t, keep(t, s, verdictOf(q), second))
		require.False(t, keep(t, s, verdictOf(q), second), "a copy stands there")
		require.Equal(t, dedup.Done, known(t, s, q).State)
	})
}

func TestForgetRemovesCopyAndToken(t *testing.T) {
	onEveryServer(t, func(t *testing.T, c redis.UniversalClient) {
		s, q := open(c), ask(newKey())
		token := place(t, s, q)
		require.NoError(t, s.Forget(t.Context(), q.Key))
		require.False(t, keep(t, s, verdictOf(q), token), "a late one would bring the forgotten verdict back")
		require.True(t, keep(t, s, verdictOf(q), place(t, s, q)))
		require.NoError(t, s.Forget(t.Context(), q.Key))
		place(t, s, q)
	})
}

func TestClaimsAndCopiesAreApart(t *testing.T) {
	onEveryServer(t, func(t *testing.T, c redis.UniversalClient) {
		s, q := open(c), ask(newKey())
		require.True(t, keep(t, s, verdictOf(q), place(t, s, q)))
		require.Equal(t, dedup.Acquired, claimAll(t, s, q)[0].State)
		require.Equal(t, int64(1), c.Exists(t.Context(), frontName(q.Key)).Val())
		require.ErrorIs(t, s.Forget(t.Context(), q.Key), dedup.ErrInProgress)
		require.Zero(t, c.Exists(t.Context(), frontName(q.Key)).Val(), "no copy outlives a Forget, whatever the claim")
		require.Equal(t, dedup.InProgress, claimAll(t, s, ask(q.Key))[0].State)
	})
}

func TestCopyTellsMismatchOnlyWhereItKnows(t *testing.T) {
	a, b, none := dedup.FingerprintOf([]byte("a")), dedup.FingerprintOf([]byte("b")), dedup.Fingerprint{}
	const ask1 dedup.State = 0 // the decider is to be asked
	for _, c := range []struct {
		name        string
		owner       bool // it is the owner's own verdict
		has, asks   dedup.Fingerprint
		want        dedup.State
		takesAToken bool
	}{
		{"the owner's, same", true, a, a, dedup.Done, false},
		{"the owner's, other", true, a, b, dedup.Mismatch, false},
		{"the owner's, asked without", true, a, none, dedup.Done, false},
		{"the owner had none: an owner before may have had", true, none, b, ask1, true},
		{"nobody had one", true, none, none, dedup.Done, false},
		{"learned, same", false, a, a, dedup.Done, false},
		{"learned, other: the record may have none", false, a, b, ask1, false},
		{"learned, asked without", false, a, none, dedup.Done, false},
		{"learned without: the record may have one", false, none, b, ask1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEveryServer(t, func(t *testing.T, client redis.UniversalClient) {
				s, q := open(client), ask(newKey())
				q.Fingerprint, q.Redrive = c.has, 5
				f := verdictOf(q)
				if !c.owner {
					f.Owner = dedup.Owner{}
				}
				require.True(t, keep(t, s, f, place(t, s, q)))
				again := ask(q.Key)
				again.Fingerprint = c.asks
				out, tokens := lookup(t, s, again)
				require.NoError(t, out[0].Err)
				require.Equal(t, c.want, out[0].State)
				require.Equal(t, c.takesAToken, tokens[0] != [16]byte{})
				if c.want != ask1 {
					require.Equal(t, 5, out[0].Redrive)
				}
			})
		})
	}
}

// A copy ends when the verdict does, which was written after the token was placed.
func TestCopyEndsItsRetentionAfterTheToken(t *testing.T) {
	m := startMini(t)
	s := open(m.client(t))
	q := ask(newKey())
	token := place(t, s, q)
	m.advance(9 * time.Minute) // the work takes its time, and so may the call
	require.True(t, keep(t, s, verdictOf(q), token))
	require.Equal(t, 51*time.Minute-time.Millisecond, known(t, s, q).Left)
	m.advance(51 * time.Minute)
	place(t, s, q)
}

func TestVerdictWhoseTimeIsOverIsNotKept(t *testing.T) {
	m := startMini(t)
	s := open(m.client(t))
	f := verdictOf(ask(newKey()))
	f.Retention = time.Second
	token := place(t, s, f.ClaimRequest)
	m.advance(time.Second)
	require.False(t, keep(t, s, f, token))
}

func TestClockThatIsSetBackGivesNoTime(t *testing.T) {
	m := startMini(t)
	s := open(m.client(t))
	f := verdictOf(ask(newKey()))
	token := place(t, s, f.ClaimRequest)
	m.now = m.now.Add(-24 * time.Hour)
	m.SetTime(m.now)
	require.True(t, keep(t, s, f, token))
	require.LessOrEqual(t, known(t, s, f.ClaimRequest).Left, time.Hour)
}

func TestTokenEnds(t *testing.T) {
	m := startMini(t)
	s := open(m.client(t))
	q := ask(newKey())
	token := place(t, s, q)
	m.advance(10 * time.Minute)
	require.False(t, m.Exists(frontName(q.Key)))
	require.False(t, keep(t, s, verdictOf(q), token))
}

func TestFrontBatchIsOneRoundTripAndAnswersItemByItem(t *testing.T) {
	client, count := realRedis(t), &counter{}
	s := open(client)
	place(t, s, ask(newKey()))
	require.False(t, keep(t, s, verdictOf(ask(newKey())), [16]byte{1})) // now the server knows the scripts
	client.AddHook(count)
	in := asks(1024)
	_, tokens := lookup(t, s, in...)
	require.Equal(t, int64(1), count.trips.Load())
	var some []dedup.FinishRequest
	var of [][16]byte
	for i := 0; i < len(in); i += 2 {
		f := verdictOf(in[i])
		f.Result = bytes.Repeat([]byte{byte(i)}, i)
		some, of = append(some, f), append(of, tokens[i])
	}
	of[0] = [16]byte{}
	kept, err := s.Remember(t.Context(), some, of)
	require.NoError(t, err)
	require.Equal(t, len(some)-1, kept)
	require.Equal(t, int64(2), count.trips.Load())
	out, tokens := lookup(t, s, in...)
	require.Equal(t, int64(3), count.trips.Load())
	for i := range out {
		if i%2 == 1 || i == 0 {
			require.Zero(t, out[i])
			require.NotZero(t, tokens[i])
			continue
		}
		require.Equal(t, dedup.Done, out[i].State)
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i)}, i), out[i].Result))
		require.Zero(t, tokens[i])
	}
}

func TestFrontBatchBeyondTheScriptsLimit(t *testing.T) {
	for name, c := range map[string]redis.UniversalClient{"redis": realRedis(t), "cluster": realCluster(t)} {
		s, in := open(c), asks(9000)
		_, tokens := lookup(t, s, in...)
		f := make([]dedup.FinishRequest, len(in))
		for i := range in {
			f[i] = verdictOf(in[i])
		}
		kept, err := s.Remember(t.Context(), f, tokens)
		require.NoError(t, err, name)
		require.Equal(t, len(in), kept, name)
		out, _ := lookup(t, s, in...)
		for i := range out {
			require.Equal(t, dedup.Done, out[i].State, name)
		}
	}
}

func TestFrontLeavesWhatIsNotItsOwnAlone(t *testing.T) {
	onEveryServer(t, func(t *testing.T, c redis.UniversalClient) {
		s := open(c)
		for name, value := range map[string]string{
			"a later version": "\x02\x02", "a claim": "\x01\x03\x00" + strings.Repeat("x", 23), "short": "\x01\x02\x00",
			"empty": "", "a short token": "\x01\x01xx", "unknown parts": "\x01\x02\xff\x00\x00\x00\x00\x00\x00\x01",
			"a cut copy": "\x01\x02\x01\x00\x00\x00\x00\x00\x00\x01abc",
		} {
			q := ask(newKey())
			require.NoError(t, c.Set(t.Context(), frontName(q.Key), value, time.Minute).Err())
			out, tokens := lookup(t, s, q)
			require.ErrorContains(t, out[0].Err, keyHex(q.Key), name)
			require.Zero(t, out[0].State)
			require.Zero(t, tokens[0])
			require.False(t, keep(t, s, verdictOf(q), [16]byte{}))
			require.Equal(t, value, c.Get(t.Context(), frontName(q.Key)).Val(), name)
			require.NoError(t, s.Forget(t.Context(), q.Key))
			place(t, s, q)
		}
		q, other := ask(newKey()), ask(newKey())
		require.NoError(t, c.RPush(t.Context(), frontName(q.Key), "a list").Err())
		out, tokens := lookup(t, s, q, other)
		require.ErrorContains(t, out[0].Err, keyHex(q.Key))
		require.Zero(t, tokens[0])
		require.NoError(t, out[1].Err)
		require.NotZero(t, tokens[1])
		require.False(t, keep(t, s, verdictOf(q), [16]byte{}))
		require.NoError(t, s.Forget(t.Context(), q.Key))
	})
}

func TestOnlyWhatIsDoneIsRemembered(t *testing.T) {
	s := open(startMini(t).client(t))
	for _, state := range []dedup.State{0, dedup.InProgress, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned} {
		bad, good := verdictOf(ask(newKey())), verdictOf(ask(newKey()))
		bad.State = state
		_, tokens := lookup(t, s, bad.ClaimRequest, good.ClaimRequest)
		kept, err := s.Remember(t.Context(), []dedup.FinishRequest{bad, good}, tokens)
		require.ErrorContains(t, err, "not remembered")
		require.Equal(t, 1, kept)
		place(t, s, bad.ClaimRequest)
	}
}

func TestFlushFrontRemovesCopiesAndTokensOnly(t *testing.T) {
	onEveryServer(t, func(t *testing.T, c redis.UniversalClient) {
		key := newKey()
		s := withPrefix(c, "flush-[*]?\\"+keyHex(key)+":") // a pattern would match others, or not itself
		neighbour := withPrefix(c, "flush-*x"+keyHex(key)+":")
		for range 3 {
			q := ask(newKey())
			require.True(t, keep(t, s, verdictOf(q), place(t, s, q)))
			require.True(t, keep(t, neighbour, verdictOf(q), place(t, neighbour, q)))
		}
		token, q := ask(newKey()), ask(newKey())
		late := place(t, s, token)
		acquireAll(t, s, q)
		n, err := s.FlushFront(t.Context())
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.False(t, keep(t, s, verdictOf(token), late))
		require.Equal(t, dedup.InProgress, claimAll(t, s, ask(q.Key))[0].State)
		n, err = neighbour.FlushFront(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, n)
		n, err = s.FlushFront(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

func TestCopyIsSmall(t *testing.T) {
	client := startRedis(t).client(t) // a server gives values the larger buffers of scripts that others ran before
	s := open(client)
	for name, limit := range map[string]int64{"": 136, "with a fingerprint": 152} {
		q := ask(newKey())
		if name != "" {
			q.Fingerprint = dedup.FingerprintOf([]byte("body"))
		}
		size := func() int64 { return client.MemoryUsage(t.Context(), frontName(q.Key)).Val() }
		token := place(t, s, q)
		require.LessOrEqual(t, size(), int64(136), "a token")
		t.Logf("%d bytes a token by MEMORY USAGE", size())
		f := verdictOf(q)
		f.Result = nil
		require.True(t, keep(t, s, f, token))
		t.Logf("%d bytes a copy %s by MEMORY USAGE", size(), name)
		require.LessOrEqual(t, size(), limit, name)
	}
}

func TestFrontOfAnUnfitClientRefuses(t *testing.T) {
	s := open(nil)
	require.ErrorIs(t, s.Lookup(t.Context(), asks(1), make([]dedup.Verdict, 1), make([][16]byte, 1)), dedup.ErrUnsafeStore)
	_, err := s.Remember(t.Context(), []dedup.FinishRequest{verdictOf(ask(newKey()))}, make([][16]byte, 1))
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	_, err = s.FlushFront(t.Context())
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	require.ErrorIs(t, s.Forget(t.Context(), newKey()), dedup.ErrUnsafeStore)
}

func FuzzCopy(f *testing.F) {
	f.Add("\x01\x02\x07\x00\x00\x00\x00\x00\x00\x01" + strings.Repeat("f", 16) + "\x00\x00\x00\x01result")
	f.Fuzz(func(t *testing.T, v string) {
		d, err := redisstore.DecodeCopy(v)
		if err == nil {
			require.Equal(t, dedup.Done, d.State)
			require.LessOrEqual(t, len(d.Result), len(v)-10)
		}
	})
}

// BenchmarkFront measures the three calls that a front makes for a message: looking up what is new, remembering it, and
// looking up what is known. ns/op is per message.
func BenchmarkFront(b *testing.B) {
	s := open(realRedis(b))
	for _, size := range []int{1, 16, 128, 1024} {
		in, out, tokens := asks(size), make([]dedup.Verdict, size), make([][16]byte, size)
		fin := make([]dedup.FinishRequest, size)
		for name, call := range map[string]func() error{
			"new":   func() error { return s.Lookup(b.Context(), in, out, tokens) },
			"known": func() error { return s.Lookup(b.Context(), in, out, tokens) },
			"remember": func() error {
				_, err := s.Remember(b.Context(), fin, tokens)
				return err
			},
		} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; i < b.N; i += size {
					b.StopTimer()
					for j := range in {
						in[j].Key = newKey()
						fin[j] = verdictOf(in[j])
					}
					clear(out)
					if name != "new" {
						require.NoError(b, s.Lookup(b.Context(), in, out, tokens))
					}
					if name == "known" {
						_, err := s.Remember(b.Context(), fin, tokens)
						require.NoError(b, err)
					}
					b.StartTimer()
					require.NoError(b, call())
				}
			})
		}
	}
}
