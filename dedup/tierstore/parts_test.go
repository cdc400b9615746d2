package tierstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeaksOfProxies()...) }

// decider counts what it is asked, and can be made to fail, to wait, and to lose replies.
type decider struct {
	tierstore.Decider
	items  atomic.Int64 // claims
	mu     sync.Mutex
	before func(ctx context.Context, method string) error
	after  func(method string) error
}

// newMemory decides in memory; its transactions are none.
func newMemory() *decider { return &decider{Decider: &memory{memstore.New()}} }

func (d *decider) setBefore(f func(ctx context.Context, method string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = f
}

func (d *decider) setAfter(f func(method string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = f
}

func (d *decider) call(ctx context.Context, method string, do func() error) error {
	d.mu.Lock()
	before, after := d.before, d.after
	d.mu.Unlock()
	if before != nil {
		if err := before(ctx, method); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if after != nil {
		return after(method)
	}
	return nil
}

func (d *decider) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	d.items.Add(int64(len(in)))
	return d.call(ctx, "Claim", func() error { return d.Decider.Claim(ctx, in, out) })
}

func (d *decider) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	return d.call(ctx, "Finish", func() error { return d.Decider.Finish(ctx, in, out) })
}

func (d *decider) InTx(ctx context.Context, f dedup.FinishRequest, work func(tx *sql.Tx) error) error {
	return d.call(ctx, "InTx", func() error { return d.Decider.InTx(ctx, f, work) })
}

func (d *decider) Forget(ctx context.Context, k dedup.Key) error {
	return d.call(ctx, "Forget", func() error { return d.Decider.Forget(ctx, k) })
}

// memory has the ports of a database.
type memory struct{ *memstore.Store }

func (m *memory) InTx(ctx context.Context, f dedup.FinishRequest, work func(tx *sql.Tx) error) error {
	if err := work(nil); err != nil {
		return err
	}
	out := make([]error, 1)
	if err := m.Finish(ctx, []dedup.FinishRequest{f}, out); err != nil {
		return err
	}
	return out[0]
}

func (m *memory) Ping(ctx context.Context) error              { return ctx.Err() }
func (m *memory) SweepBatch(ctx context.Context) (int, error) { return 0, ctx.Err() }

// hooked is a front with a hook between its calls and the server.
type hooked struct {
	tierstore.Front
	mu       sync.Mutex
	remember func() error // before Remember
	lookup   func() error
	forget   func() error
}

func (h *hooked) set(f func(h *hooked)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
}

func (h *hooked) run(which func(h *hooked) func() error) error {
	h.mu.Lock()
	f := which(h)
	h.mu.Unlock()
	if f == nil {
		return nil
	}
	return f()
}

func (h *hooked) Lookup(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []tierstore.Token) error {
	if err := h.run(func(h *hooked) func() error { return h.lookup }); err != nil {
		return err
	}
	return h.Front.Lookup(ctx, in, out, tokens)
}

func (h *hooked) Remember(ctx context.Context, in []dedup.FinishRequest, tokens []tierstore.Token) (int, error) {
	if err := h.run(func(h *hooked) func() error { return h.remember }); err != nil {
		return 0, err
	}
	return h.Front.Remember(ctx, in, tokens)
}

func (h *hooked) Forget(ctx context.Context, k dedup.Key) error {
	if err := h.run(func(h *hooked) func() error { return h.forget }); err != nil {
		return err
	}
	return h.Front.Forget(ctx, k)
}

// tier is a store with both its levels at hand.
type tier struct {
	*tierstore.Store
	decider *decider
	front   *hooked
	redis   *redisstore.Store
	mini    *miniredis.Miniredis
}

func newTier(tb testing.TB) *tier {
	tb.Helper()
	mini := miniredis.RunT(tb)
	client := redis.NewClient(&redis.Options{Addr: mini.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1})
	tb.Cleanup(func() { _ = client.Close() })
	t := openTier(newMemory(), redisstore.New(client, nil), nil)
	t.mini = mini
	return t
}

// openTier is patient by default: a machine that others use must not make a front look slow.
func openTier(d *decider, r *redisstore.Store, o *tierstore.Options) *tier {
	if o == nil {
		o = &tierstore.Options{Timeout: 10 * time.Second}
	}
	t := &tier{decider: d, redis: r, front: &hooked{Front: r}}
	t.Store = tierstore.NewWithOptions(t.decider, t.front, o)
	return t
}

// twin is another process on the same servers.
func (t *tier) twin() *tier {
	w := openTier(&decider{Decider: t.decider.Decider}, t.redis, nil)
	w.mini = t.mini
	return w
}

func newKey() (k dedup.Key) {
	rand.Read(k[:])
	return k
}

func ask(k dedup.Key) dedup.ClaimRequest {
	q := dedup.ClaimRequest{Key: k, Lease: time.Minute, Retention: time.Hour, Holder: "test"}
	rand.Read(q.Owner[:])
	return q
}

func claim(tb testing.TB, s dedup.Store, q dedup.ClaimRequest) dedup.Verdict {
	tb.Helper()
	out := make([]dedup.Verdict, 1)
	require.NoError(tb, s.Claim(tb.Context(), []dedup.ClaimRequest{q}, out))
	require.NoError(tb, out[0].Err)
	return out[0]
}

func acquire(tb testing.TB, s dedup.Store, q dedup.ClaimRequest) dedup.Held {
	tb.Helper()
	v := claim(tb, s, q)
	require.Equal(tb, dedup.Acquired, v.State)
	h := dedup.Held{ClaimRequest: q, Epoch: v.Epoch, Attempt: v.Attempt, Crashes: v.Crashes, LastError: v.LastError}
	h.Redrive = v.Redrive
	return h
}

func finish(tb testing.TB, s dedup.Store, h dedup.Held, state dedup.State) {
	tb.Helper()
	out := make([]error, 1)
	require.NoError(tb, s.Finish(tb.Context(), []dedup.FinishRequest{{Held: h, State: state, Result: []byte("result")}}, out))
	require.NoError(tb, out[0])
}

// done claims k and finishes it as done.
func done(tb testing.TB, s dedup.Store, k dedup.Key) dedup.Held {
	tb.Helper()
	h := acquire(tb, s, ask(k))
	finish(tb, s, h, dedup.Done)
	return h
}

// asked is how many claims f makes the decider answer.
func (t *tier) asked(f func()) int64 {
	before := t.decider.items.Load()
	f()
	return t.decider.items.Load() - before
}

var errDown = errors.New("down")
