package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/stretchr/testify/require"
)

// eachServer runs f on every dialect that has a server.
func eachServer(t *testing.T, f func(t *testing.T, b *base)) {
	for _, name := range []string{"postgresql", "mysql"} {
		t.Run(name, func(t *testing.T) { f(t, bases[name](t)) })
	}
}

// proxied is b through a proxy and a spy.
func (b *base) proxied(t *testing.T) (*base, *spy, *testenv.Proxy) {
	t.Helper()
	_, rest, _ := strings.Cut(b.dsn, map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "@", sqlstore.MySQL: "tcp("}[b.dialect])
	addr := rest[:strings.IndexAny(rest, "/)")]
	p := testenv.NewProxy(t, addr)
	far, spy := b.spied(t, strings.Replace(b.dsn, addr, p.Addr, 1))
	return far, spy, p
}

// briefly runs f under a context that ends soon.
func briefly(t *testing.T, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err := f(ctx)
	require.Less(t, time.Since(begun), 5*time.Second, "it did not return soon after its context ended")
	return err
}

// TestServerGoneAtEveryStatement breaks the connection before each statement of each call, or loses the
// answer to it, and then makes the call again, as its owner would: the end is as if nothing had happened.
func TestServerGoneAtEveryStatement(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		near := openShop(t, b, nil)
		far, spy, proxy := b.proxied(t)
		s := far.bare(t, nil)
		faults := map[string][2]func(){
			"cut":     {proxy.Cut, proxy.Mend},
			"no word": {proxy.DropAnswers, proxy.PassAnswers},
		}
		last := map[sqlstore.Dialect]int{sqlstore.PostgreSQL: 4, sqlstore.MySQL: 6}[b.dialect] // of InTx, which has most
		for fault, f := range faults {
			for n := 1; n <= last; n++ {
				c := &broken{t: t, near: near, far: s, n: n, begin: f[0], end: f[1], spy: spy}
				t.Run(fmt.Sprintf("%s at statement %d", fault, n), func(t *testing.T) {
					c.t = t
					c.claim()
					c.takeover()
					c.extend()
					c.finish()
					c.lostRecord()
					c.inTx()
				})
			}
		}
	})
}

// broken is a fault at the nth statement of a call.
type broken struct {
	t          *testing.T
	near       *shop
	far        *sqlstore.Store
	n          int
	begin, end func()
	spy        *spy
}

// call makes the call with the fault; there may be none if it has fewer statements.
func (c *broken) call(f func(ctx context.Context) error) error {
	c.t.Helper()
	var hit atomic.Bool
	c.spy.watch(func(n int, _ string) {
		if n == c.n && !hit.Swap(true) {
			c.begin()
		}
	})
	err := briefly(c.t, f)
	c.spy.watch(nil)
	if hit.Load() {
		c.end()
	}
	return err
}

func (c *broken) claim() {
	in := asks(3)
	_ = c.call(func(ctx context.Context) error { return c.far.Claim(ctx, in, make([]dedup.Verdict, 3)) })
	for _, v := range claimAll(c.t, c.far, in...) {
		require.Equal(c.t, dedup.Acquired, v.State)
		require.Equal(c.t, 1, v.Attempt)
		require.Zero(c.t, v.Crashes)
	}
	require.Equal(c.t, dedup.InProgress, claimAll(c.t, c.near.store, ask(in[0].Key))[0].State)
}

func (c *broken) takeover() {
	held := acquireAll(c.t, c.near.store, asks(3)...)
	finishAll(c.t, c.near.store, held, dedup.Retryable)
	in := []dedup.ClaimRequest{ask(held[0].Key), ask(held[1].Key), ask(held[2].Key)}
	_ = c.call(func(ctx context.Context) error { return c.far.Claim(ctx, in, make([]dedup.Verdict, 3)) })
	for _, v := range claimAll(c.t, c.far, in...) {
		require.Equal(c.t, dedup.Acquired, v.State)
		require.Equal(c.t, 2, v.Attempt)
	}
}

func (c *broken) extend() {
	held := acquireAll(c.t, c.near.store, asks(3)...)
	in := []dedup.ExtendRequest{{Held: held[0]}, {Held: held[1]}, {Held: held[2]}}
	_ = c.call(func(ctx context.Context) error { return c.far.Extend(ctx, in, make([]error, 3)) })
	for _, err := range extendAll(c.t, c.far, held) {
		require.NoError(c.t, err)
	}
}

func (c *broken) finish() {
	held := acquireAll(c.t, c.near.store, asks(3)...)
	_ = c.call(func(ctx context.Context) error {
		return c.far.Finish(ctx, ended(held, dedup.Retryable), make([]error, 3))
	})
	for i, err := range finishAll(c.t, c.far, held, dedup.Retryable) {
		require.NoError(c.t, err)
		require.Equal(c.t, 2, claimAll(c.t, c.near.store, ask(held[i].Key))[0].Attempt, "the failure counts once")
	}
}

func (c *broken) lostRecord() {
	h := acquireAll(c.t, c.near.store, ask(newKey()))[0]
	require.NoError(c.t, finishAll(c.t, c.near.store, []dedup.Held{h}, dedup.Released)[0])
	require.NoError(c.t, c.near.store.Forget(c.t.Context(), h.Key))
	_ = c.call(func(ctx context.Context) error {
		return c.far.Finish(ctx, ended([]dedup.Held{h}, dedup.Done), make([]error, 1))
	})
	err := finishAll(c.t, c.far, []dedup.Held{h}, dedup.Done)[0]
	if err != nil {
		require.ErrorIs(c.t, err, dedup.ErrRecordLost)
	}
	require.Equal(c.t, dedup.Done, claimAll(c.t, c.near.store, ask(h.Key))[0].State)
}

// inTx: effect and verdict are both there or both not, and the same owner's next claim tells which.
func (c *broken) inTx() {
	c.near.exec(c.t, "DELETE FROM %s_orders")
	h := c.near.claim(c.t)
	err := c.call(func(ctx context.Context) error { return c.far.InTx(ctx, done(h), c.near.insertUnder(ctx, 1)) })
	v := claimAll(c.t, c.near.store, h.ClaimRequest)[0]
	switch v.State {
	case dedup.Done:
		require.Equal(c.t, 1, c.near.orders(c.t))
		if err != nil {
			require.ErrorIs(c.t, err, dedup.ErrUnavailable)
		}
	case dedup.Acquired:
		require.Zero(c.t, c.near.orders(c.t))
		require.Error(c.t, err)
	default:
		require.Fail(c.t, "the owner was answered", v.State)
	}
}

func TestCommitWhoseReplyIsLostIsFound(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		far, spy, proxy := b.proxied(t)
		h := s.claim(t)
		spy.watch(func(_ int, text string) {
			if text == "COMMIT" {
				proxy.DropAnswers()
			}
		})
		err := briefly(t, func(ctx context.Context) error { return far.bare(t, nil).InTx(ctx, done(h), s.insertUnder(ctx, 1)) })
		require.ErrorIs(t, err, dedup.ErrUnavailable, "it may have happened")
		require.Equal(t, dedup.Done, claimAll(t, s.store, h.ClaimRequest)[0].State, "it has")
		require.Equal(t, 1, s.orders(t))
		spy.watch(nil)
		proxy.PassAnswers()
	})
}

// A database that went away in the middle is not the work's own failure; any other lost connection is.
func TestConnectionLostInWork(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		far, _, proxy := b.proxied(t)
		h := s.claim(t)
		store := far.bare(t, nil)
		err := store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
			proxy.Cut()
			if err := s.insertUnder(t.Context(), 1)(tx); err != nil {
				return fmt.Errorf("%w: %w", errWork, err)
			}
			return nil
		})
		require.ErrorIs(t, err, dedup.ErrUnavailable)
		require.ErrorIs(t, err, errWork)
		proxy.Mend()
		other := &net.OpError{Op: "dial", Err: errWork}
		require.Equal(t, other, store.InTx(t.Context(), done(h), func(*sql.Tx) error { return other }))
		require.NoError(t, store.InTx(t.Context(), done(h), s.insertUnder(t.Context(), 1)))
		require.Equal(t, 1, s.orders(t))
	})
}

// The owner of a transaction that is still committing asks, and waits for it.
func TestClaimOfTheOwnerWaitsForItsCommit(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		far, spy := b.spied(t, b.dsn)
		h := s.claim(t)
		committing, commit, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		spy.watch(func(_ int, text string) {
			if text == "COMMIT" {
				close(committing)
				<-commit
			}
		})
		go func() { over <- far.bare(t, nil).InTx(t.Context(), done(h), s.insert(1)) }()
		<-committing
		answer := make(chan dedup.Verdict, 1)
		go func() { answer <- claimAll(t, s.store, h.ClaimRequest)[0] }()
		select {
		case v := <-answer:
			require.Fail(t, "it was answered before the commit", v.State)
		case <-time.After(300 * time.Millisecond):
		}
		close(commit)
		require.NoError(t, <-over)
		require.Equal(t, dedup.Done, (<-answer).State)
	})
}
