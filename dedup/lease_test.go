package dedup_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestHeartbeatKeepsAClaimForLongerThanItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newGuard(t, s, nil), newGuard(t, s, nil)
		_, err := a.Do(t.Context(), work("slow"), func(ctx context.Context) error {
			for range 20 {
				time.Sleep(30 * time.Second)
				ran, err := b.Do(ctx, work("slow"), func(context.Context) error { return nil })
				require.ErrorIs(t, err, dedup.ErrInProgress)
				require.False(t, ran)
			}
			require.NoError(t, ctx.Err())
			return nil
		})
		require.NoError(t, err)
	})
}

func TestOneLostBeatDoesNotLoseTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats atomic.Int64
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			if call == "extend" {
				if beats.Add(1)%2 == 1 {
					return errBoom
				}
			}
			return nil
		}
		g := newGuard(t, f, nil)
		_, err := g.Do(t.Context(), work("slow"), func(ctx context.Context) error {
			time.Sleep(10 * time.Minute)
			return ctx.Err()
		})
		require.NoError(t, err)
		require.Greater(t, beats.Load(), int64(10))
	})
}

func TestLostLeaseCancelsTheWorkWithItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		f := &flaky{Store: memstore.New()}
		f.before = func(call string) error {
			if down.Load() {
				return errBoom
			}
			return nil
		}
		g := newGuard(t, f, nil)
		c, err := g.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		ctx, cancel := c.Context(t.Context())
		defer cancel()
		begun := time.Now()
		down.Store(true)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), dedup.ErrLeaseLost)
		require.InDelta(t, 30, time.Since(begun).Seconds(), 0.1, "by our own clock the lease ends when the store's does")
		require.False(t, c.Held())
		down.Store(false)
		require.NoError(t, c.Complete(t.Context(), nil), "nobody followed: the owner may still finish")
	})
}

func TestTakeoverFencesTheFirstOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var cut atomic.Bool
		f := &flaky{Store: s, before: func(call string) error {
			if cut.Load() {
				return errBoom
			}
			return nil
		}}
		a, b := newGuard(t, f, nil), newGuard(t, s, nil)
		ca, err := a.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		cut.Store(true)
		time.Sleep(31 * time.Second)
		cb, err := b.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, cb.State)
		require.Equal(t, 1, cb.Crashes)
		require.Greater(t, cb.Epoch, ca.Epoch)
		cut.Store(false)
		require.ErrorIs(t, ca.Complete(t.Context(), nil), dedup.ErrSuperseded)
		require.ErrorIs(t, ca.Fail(t.Context(), errBoom), dedup.ErrSuperseded)
		require.NoError(t, ca.Release(t.Context()))
		require.NoError(t, cb.Complete(t.Context(), []byte("b")))
		again, err := a.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, []byte("b"), again.Result)
	})
}

func TestClaimWhoseReplyIsLostIsFoundAgain(t *testing.T) {
	lose := true
	f := &flaky{Store: memstore.New(), after: func(call string) error {
		if call == "claim" && lose {
			return errBoom
		}
		return nil
	}}
	g := newGuard(t, f, nil)
	_, err := g.Claim(t.Context(), work("a"))
	require.ErrorIs(t, err, dedup.ErrUnavailable)
	lose = false
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, c.State, "under a new token it would wait for the lease of its own lost claim")
	require.Zero(t, c.Crashes)
	require.NoError(t, c.Complete(t.Context(), nil))
}

// partly loses the replies of some items only, as a store does that keeps its records in several places.
type partly struct {
	dedup.Store
	lose bool
}

func (p *partly) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	err := p.Store.Claim(ctx, in, out)
	if p.lose {
		out[0] = dedup.Verdict{Err: fmt.Errorf("%w: %w", dedup.ErrUnavailable, errBoom)}
	}
	return err
}

func TestItemWhoseReplyIsLostIsFoundAgain(t *testing.T) {
	p := &partly{Store: memstore.New(), lose: true}
	g, claims := newGuard(t, p, nil), make([]*dedup.Claim, 2)
	require.NoError(t, g.ClaimBatch(t.Context(), []dedup.Work{work("a"), work("b")}, claims))
	require.ErrorIs(t, claims[0].Err, dedup.ErrUnavailable)
	require.NoError(t, claims[1].Complete(t.Context(), nil))
	p.lose = false
	c, err := g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, c.State, "under a new token it would wait for the lease of its own lost claim")
	require.Zero(t, c.Crashes)
	require.NoError(t, c.Complete(t.Context(), nil))
}

func TestClaimOfACallerThatLeftIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		f := &flaky{Store: memstore.New(), after: func(call string) error {
			if call == "claim" {
				<-hold
			}
			return nil
		}}
		g := newGuard(t, f, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		_, err := g.Claim(ctx, work("a"))
		require.ErrorIs(t, err, context.Canceled)
		close(hold)
		synctest.Wait()
		c, err := g.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, c.State)
		require.Zero(t, c.Crashes)
		require.NoError(t, c.Release(t.Context()))
	})
}

func TestStoreDownRunsNothingUnlessOpenIsChosen(t *testing.T) {
	f := &flaky{Store: memstore.New(), before: func(string) error { return errBoom }}
	ran, err := newGuard(t, f, nil).Do(t.Context(), work("a"), func(context.Context) error { return nil })
	require.False(t, ran)
	require.ErrorIs(t, err, dedup.ErrUnavailable)
	require.ErrorIs(t, err, errBoom)

	unprotected := 0
	g := newGuard(t, f, &dedup.Options{FailOpen: true, Observe: func(e dedup.Event) {
		if e.Cause == "unprotected" {
			unprotected += e.N
		}
	}})
	ran, err = g.Do(t.Context(), work("a"), func(ctx context.Context) error {
		require.True(t, dedup.ClaimFrom(ctx).Unprotected())
		return nil
	})
	require.NoError(t, err)
	require.True(t, ran)
	require.Equal(t, 1, unprotected)
}

func TestOutcomeIsWrittenThoughTheCallerLeft(t *testing.T) {
	g := newGuard(t, memstore.New(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ran, err := g.Do(ctx, work("a"), func(context.Context) error { cancel(); return nil })
	require.NoError(t, err)
	require.True(t, ran)
	r, err := g.Inspect(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Done, r.State)
}

// locked cannot extend one claim, as a table cannot whose row somebody has locked.
type locked struct {
	dedup.Store
	calls atomic.Int64
}

func (l *locked) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	l.calls.Add(1)
	for i := range in {
		out[i] = errBoom
	}
	return nil
}

func TestBeatThatFailsByItselfIsRepeatedAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &locked{Store: memstore.New()}
		g := newGuard(t, s, nil)
		c, err := g.Claim(t.Context(), work("a"))
		require.NoError(t, err)
		time.Sleep(g.Options().Lease - time.Second)
		require.Greater(t, s.calls.Load(), int64(2), "again within the lease")
		require.Less(t, s.calls.Load(), int64(15), "and not without a rest")
		require.True(t, c.Held())
		time.Sleep(time.Second)
		require.False(t, c.Held())
	})
}

// stuck is a log handler that does not return until released.
type stuck struct {
	slog.Handler
	reached, release chan struct{}
}

func (s *stuck) Handle(context.Context, slog.Record) error {
	select {
	case s.reached <- struct{}{}:
	default:
	}
	<-s.release
	return nil
}

// In real time, since a goroutine that waits for a mutex holds up the virtual one.
func TestLoggerThatHangsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	f := &flaky{Store: memstore.New(), before: func(call string) error {
		if call == "extend" {
			return errBoom
		}
		return nil
	}}
	log := &stuck{slog.NewTextHandler(io.Discard, nil), make(chan struct{}, 1), make(chan struct{})}
	c, err := newGuard(t, f, &dedup.Options{Lease: 100 * time.Millisecond, Logger: slog.New(log)}).Claim(t.Context(), work("a"))
	require.NoError(t, err)
	<-log.reached
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.Held()
	}()
	select {
	case <-answered:
	case <-time.After(20 * time.Second):
		t.Error("Held waits for the logger")
	}
	close(log.release)
	<-answered
	require.NoError(t, c.Release(t.Context()))
}

// lagging is a Store whose beats take long, as answer says for the first item of each.
type lagging struct {
	dedup.Store
	takes func(q *dedup.ExtendRequest) time.Duration
}

func (l *lagging) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	select {
	case <-time.After(l.takes(&in[0])):
		return l.Store.Extend(ctx, in, out)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shortLived is work with a lease below the Guard's, which is 30s.
func shortLived(id string) dedup.Work {
	w := work(id)
	w.Lease = 3 * time.Second
	return w
}

func TestShortLeaseOutlivesABeatThatHangs(t *testing.T) {
	for name, hangs := range map[string]func(q *dedup.ExtendRequest, n int64) bool{
		"its own":           func(_ *dedup.ExtendRequest, n int64) bool { return n == 2 },
		"of a longer lease": func(q *dedup.ExtendRequest, _ int64) bool { return q.Lease > 3*time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				g := newGuard(t, &lagging{Store: memstore.New(), takes: func(q *dedup.ExtendRequest) time.Duration {
					if hangs(q, n.Add(1)) {
						return time.Hour
					}
					return 0
				}}, nil)
				long, err := g.Claim(t.Context(), work("long"))
				require.NoError(t, err)
				short, err := g.Claim(t.Context(), shortLived("short"))
				require.NoError(t, err)
				time.Sleep(25 * time.Second)
				require.True(t, short.Held())
				require.NoError(t, short.Release(t.Context()))
				require.NoError(t, long.Release(t.Context()))
				time.Sleep(5 * time.Second) // the beat that hangs ends
			})
		})
	}
}

func TestLongLeaseIsGivenItsTimeBesideShortOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, &lagging{Store: memstore.New(), takes: func(*dedup.ExtendRequest) time.Duration { return 2 * time.Second }}, nil)
		long, err := g.Claim(t.Context(), work("long"))
		require.NoError(t, err)
		for i := range 60 { // each is beaten, in vain
			c, err := g.Claim(t.Context(), shortLived(fmt.Sprint(i)))
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
			require.NoError(t, c.Release(t.Context()))
		}
		require.True(t, long.Held())
		require.NoError(t, long.Release(t.Context()))
		time.Sleep(5 * time.Second) // the beats on their way end
	})
}

func TestClaimThatIsNotHeldIsNotMarkedAsRunningAlone(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*dedup.Claim) error // of a claim that was acquired; nil: of one that is absent
		want error
	}{
		"absent":   {},
		"done":     {func(c *dedup.Claim) error { return c.Complete(context.Background(), nil) }, dedup.ErrSuperseded},
		"released": {func(c *dedup.Claim) error { return c.Release(context.Background()) }, dedup.ErrSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			f := &flaky{Store: memstore.New()}
			g := newGuard(t, f, nil)
			w := work("a")
			w.MustExist = c.end == nil
			claim, err := g.Claim(t.Context(), w)
			require.NoError(t, err)
			if c.end != nil {
				require.NoError(t, c.end(claim))
			}
			empty := memstore.New()
			f.Store = empty // a record would be made anew
			require.Error(t, claim.Alone(t.Context()))
			if c.want != nil {
				require.ErrorIs(t, claim.Alone(t.Context()), c.want)
			}
			_, err = newGuard(t, empty, nil).Inspect(t.Context(), work("a"))
			require.ErrorIs(t, err, dedup.ErrNotFound)
		})
	}
}
