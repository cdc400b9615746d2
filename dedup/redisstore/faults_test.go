package redisstore_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestForgottenScriptsAreSentAgain(t *testing.T) {
	server := startRedis(t)
	client := server.client(t)
	store := open(client)
	flush := func() { require.NoError(t, client.ScriptFlush(t.Context()).Err()) }
	q := ask(newKey())
	flush()
	held := acquireAll(t, store, q)
	flush()
	require.NoError(t, extendAll(t, store, held)[0])
	flush()
	require.NoError(t, finishAll(t, store, held, dedup.Done)[0])
	flush()
	_, err := store.Inspect(t.Context(), q.Key)
	require.NoError(t, err)
	flush()
	require.NoError(t, store.Forget(t.Context(), q.Key))
	require.Equal(t, dedup.Acquired, claimAll(t, store, ask(q.Key))[0].State)
}

func TestServerRestartedEmptyLosesClaimsNotVerdicts(t *testing.T) {
	server := startRedis(t)
	store := open(server.client(t))
	held := acquireAll(t, store, asks(20)...)
	server.kill()
	server.start(t)
	require.ErrorIs(t, extendAll(t, store, held[:10])[0], dedup.ErrRecordLost)
	for i, err := range finishAll(t, store, held, dedup.Done) {
		if i < 10 {
			require.NoError(t, err, "the beat had made it again")
		} else {
			require.ErrorIs(t, err, dedup.ErrRecordLost)
		}
	}
	for _, h := range held {
		require.Equal(t, dedup.Done, claimAll(t, store, ask(h.Key))[0].State)
	}
}

func TestFlushBetweenClaimAndFinish(t *testing.T) {
	server := startRedis(t)
	client := server.client(t)
	store := open(client)
	q := ask(newKey())
	q.Redrive, q.Fingerprint = 3, dedup.FingerprintOf([]byte("body"))
	held := acquireAll(t, store, q)
	require.NoError(t, client.FlushAll(t.Context()).Err())
	errs := make([]error, 1)
	in := []dedup.FinishRequest{{Held: held[0], State: dedup.Done, Result: []byte("result")}}
	require.NoError(t, store.Finish(t.Context(), in, errs))
	require.ErrorIs(t, errs[0], dedup.ErrRecordLost)
	v := claimAll(t, store, ask(q.Key))[0]
	require.Equal(t, dedup.Verdict{State: dedup.Done, Epoch: held[0].Epoch, Attempt: 1, Redrive: 3, Result: []byte("result"), Left: v.Left}, v)
	require.NoError(t, finishAll(t, store, held, dedup.Done)[0], "the same verdict again is there already")
}

// lossy drops the next reply after the server has sent it, once for each call of lose.
type lossy struct {
	addr string
	armed,
	lost atomic.Int64
}

func (l *lossy) client(tb testing.TB, retries int) *redis.Client {
	return closing(tb, redis.NewClient(&redis.Options{Addr: l.addr, MaxRetries: retries, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		return &lossyConn{c, l}, err
	}}))
}

type lossyConn struct {
	net.Conn
	l *lossy
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.l.armed.Load() > 0 && c.l.armed.Add(-1) >= 0 {
		c.l.lost.Add(1)
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// Every call's reply is lost once, after the server has run it, and the call is made again: by
// the client library, which the caller does not see, or by the caller.
func TestLostRepliesChangeNothing(t *testing.T) {
	for name, retries := range map[string]int{"repeated by the client": 3, "repeated by the caller": -1} {
		t.Run(name, func(t *testing.T) {
			l := &lossy{addr: realRedis(t).Options().Addr}
			store := open(l.client(t, retries))
			acquireAll(t, store, asks(1)...) // connects
			losing := func(call func() error) {
				t.Helper()
				before := l.lost.Load()
				l.armed.Store(1)
				if err := call(); retries < 0 {
					require.Error(t, err)
					require.NoError(t, call())
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, before+1, l.lost.Load(), "no reply was lost")
			}
			in, out := asks(50), make([]dedup.Verdict, 50)
			losing(func() error { return store.Claim(t.Context(), in, out) })
			held := make([]dedup.Held, len(in))
			for i := range out {
				require.Equal(t, dedup.Verdict{State: dedup.Acquired, Epoch: out[i].Epoch, Attempt: 1}, out[i])
				held[i] = heldOf(in[i], out[i])
			}
			errs := make([]error, len(in))
			for _, state := range []dedup.State{dedup.Retryable, dedup.Done} {
				losing(func() error { return store.Finish(t.Context(), ended(held, state), errs) })
				for i := range errs {
					require.NoError(t, errs[i])
				}
				if state == dedup.Retryable {
					for i := range in {
						in[i].Owner = newOwner()
					}
					losing(func() error { return store.Claim(t.Context(), in, out) })
					for i := range out {
						require.Equal(t, 2, out[i].Attempt, "a failure whose reply was lost counts once")
						held[i] = heldOf(in[i], out[i])
					}
				}
			}
		})
	}
}

func TestFullServerRefusesWritesWhole(t *testing.T) {
	server := startRedis(t, "--maxmemory-policy", "noeviction")
	client := server.client(t)
	store := open(client)
	done := acquireAll(t, store, asks(10)...)
	finishAll(t, store, done, dedup.Done)
	running := acquireAll(t, store, asks(10)...)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())

	in := asks(10)
	out := make([]dedup.Verdict, len(in))
	err := store.Claim(t.Context(), in, out)
	require.ErrorContains(t, err, "OOM")
	require.Error(t, store.Finish(t.Context(), ended(running, dedup.Done), make([]error, len(running))))
	for _, q := range in {
		_, err := store.Inspect(t.Context(), q.Key)
		require.ErrorIs(t, err, dedup.ErrNotFound, "half a batch was written")
	}
	for _, h := range done { // what needs no memory is still answered
		require.Equal(t, dedup.Done, claimAll(t, store, ask(h.Key))[0].State)
	}
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	for _, err := range finishAll(t, store, running, dedup.Done) {
		require.NoError(t, err)
	}
	acquireAll(t, store, in...)
}

// What is no record is an error of its item, names the key, and stays as it is.
func TestForeignValuesAreErrorsAndLeftAlone(t *testing.T) {
	client := realRedis(t)
	store := open(client)
	good := func(k dedup.Key) string {
		finishAll(t, store, acquireAll(t, store, ask(k)), dedup.Retryable)
		return client.Get(t.Context(), keyName(k)).Val()
	}
	for name, value := range map[string]func(record string) string{
		"another type":                   nil,
		"empty":                          func(string) string { return "" },
		"text":                           func(string) string { return "the value of another application" },
		"truncated":                      func(r string) string { return r[:len(r)-1] },
		"later version":                  func(r string) string { return "\x02" + r[1:] },
		"unknown flag":                   func(r string) string { return r[:2] + "\xff" + r[3:] },
		"unknown state":                  func(r string) string { return r[:1] + "\x09" + r[2:] },
		"in progress without a deadline": func(r string) string { return r[:1] + "\x02" + r[2:] },
		"epoch beyond 53 bits":           func(r string) string { return r[:3] + "\xff" + r[4:] },
		"trailing bytes":                 func(r string) string { return r + "x" },
	} {
		t.Run(name, func(t *testing.T) {
			q := ask(newKey())
			q.Redrive = 9
			before := ""
			if value == nil {
				require.NoError(t, client.LPush(t.Context(), keyName(q.Key), "a").Err())
			} else {
				before = value(good(q.Key))
				require.NoError(t, client.Set(t.Context(), keyName(q.Key), before, time.Minute).Err())
			}
			requireForeign(t, store, q)
			if value != nil {
				require.Equal(t, before, client.Get(t.Context(), keyName(q.Key)).Val(), "it was overwritten")
			} else {
				require.Equal(t, "list", client.Type(t.Context(), keyName(q.Key)).Val(), "it was overwritten")
			}
			require.NoError(t, store.Forget(t.Context(), q.Key))
			require.Equal(t, dedup.Acquired, claimAll(t, store, ask(q.Key))[0].State)
		})
	}
}

// requireForeign makes every call on q's key, in a batch with a healthy one.
func requireForeign(t *testing.T, store interface {
	dedup.Store
	dedup.Admin
}, q dedup.ClaimRequest) {
	t.Helper()
	foreign := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, strings.ToLower(keyHex(q.Key)))
		require.NotErrorIs(t, err, dedup.ErrRecordLost)
		require.NotErrorIs(t, err, dedup.ErrSuperseded)
	}
	must := q
	must.MustExist = true
	for _, c := range []dedup.ClaimRequest{q, must} {
		out := make([]dedup.Verdict, 2)
		require.NoError(t, store.Claim(t.Context(), []dedup.ClaimRequest{c, ask(newKey())}, out))
		require.Zero(t, out[0].State)
		foreign(out[0].Err)
		require.Equal(t, dedup.Acquired, out[1].State)
	}
	held := []dedup.Held{{ClaimRequest: q, Epoch: uint64(time.Now().UnixMilli()) + 1e6, Attempt: 1}, acquireAll(t, store, ask(newKey()))[0]}
	errs := extendAll(t, store, held)
	foreign(errs[0])
	require.NoError(t, errs[1])
	for _, state := range []dedup.State{dedup.Condemned, dedup.Failed} {
		errs = finishAll(t, store, held, state)
		foreign(errs[0])
		require.NoError(t, errs[1])
	}
	_, err := store.Inspect(t.Context(), q.Key)
	foreign(err)
}

func TestImpossibleRequestsAreItemErrors(t *testing.T) {
	store := open(startMini(t).client(t))
	good := ask(newKey())
	long, redrive, negative := ask(newKey()), ask(newKey()), ask(newKey())
	long.Lease, redrive.Redrive, negative.Retention = 200*365*24*time.Hour, -1, -1
	in, out := []dedup.ClaimRequest{long, good, redrive, negative}, make([]dedup.Verdict, 4)
	require.NoError(t, store.Claim(t.Context(), in, out))
	require.ErrorContains(t, out[0].Err, "lease")
	require.Equal(t, dedup.Acquired, out[1].State)
	require.ErrorContains(t, out[2].Err, "redrive")
	require.ErrorContains(t, out[3].Err, "retention")

	h := heldOf(good, out[1])
	future, unfinished := h, h
	future.Epoch = 1 << 53
	errs := make([]error, 3)
	require.NoError(t, store.Finish(t.Context(), []dedup.FinishRequest{
		{Held: future, State: dedup.Done}, {Held: unfinished, State: dedup.InProgress}, {Held: h, State: dedup.Done},
	}, errs))
	require.ErrorContains(t, errs[0], "epoch")
	require.ErrorContains(t, errs[1], "in progress")
	require.NoError(t, errs[2])
}

// hang is a server that accepts and never answers.
func hang(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return l.Addr().String()
}

// The client library does not notice a cancelled context while it waits for a reply.
func TestCallsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	client := closing(t, redis.NewClient(&redis.Options{Addr: hang(t), ReadTimeout: 5 * time.Second, MaxRetries: -1}))
	store := open(client)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	begun := time.Now()
	require.ErrorIs(t, store.Claim(ctx, asks(1), make([]dedup.Verdict, 1)), context.Canceled)
	require.Less(t, time.Since(begun), 4*time.Second)
	require.ErrorIs(t, store.Claim(ctx, asks(1), make([]dedup.Verdict, 1)), context.Canceled, "already cancelled")
	require.ErrorIs(t, store.Ping(ctx), context.Canceled)
	_, err := store.Inspect(ctx, newKey())
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return client.PoolStats().TotalConns == client.PoolStats().IdleConns }, 20*time.Second, 10*time.Millisecond)
}

func TestServerDownIsAnErrorOfTheCall(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	store := open(server.client(t))
	server.kill()
	require.Error(t, store.Claim(t.Context(), asks(2), make([]dedup.Verdict, 2)))
	require.Error(t, store.Ping(t.Context()))
	server.start(t)
	require.NoError(t, store.Ping(t.Context()))
	acquireAll(t, store, asks(2)...)
}

// The owner's own record, damaged behind the part that names the owner.
func TestOwnersDamagedRecordIsAnError(t *testing.T) {
	m := startMini(t)
	store := open(m.client(t))
	for _, holder := range []string{"", "host/12345"} {
		for _, change := range []func(r string) string{
			func(r string) string { return r[:len(r)-1] },
			func(r string) string { return r + "x" },
		} {
			q := ask(newKey())
			q.Holder = holder
			held := acquireAll(t, store, q)
			good, err := m.Get(keyName(q.Key))
			require.NoError(t, err)
			bad := change(good)
			require.NoError(t, m.Set(keyName(q.Key), bad))
			require.ErrorContains(t, extendAll(t, store, held)[0], keyHex(q.Key))
			require.ErrorContains(t, finishAll(t, store, held, dedup.Done)[0], keyHex(q.Key))
			left, err := m.Get(keyName(q.Key))
			require.NoError(t, err)
			require.Equal(t, bad, left, "it was overwritten")
		}
	}
}
