package tierstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/tierstore"
)

// front is a Front that a test scripts.
type front struct {
	calls                atomic.Int64
	lookup               func(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []tierstore.Token) error
	remember             func(ctx context.Context, in []dedup.FinishRequest) (int, error)
	forgetErr, pingError error
}

func (f *front) Lookup(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []tierstore.Token) error {
	f.calls.Add(1)
	if f.lookup == nil {
		for i := range tokens {
			tokens[i] = tierstore.Token{1}
		}
		return nil
	}
	return f.lookup(ctx, in, out, tokens)
}

func (f *front) Remember(ctx context.Context, in []dedup.FinishRequest, _ []tierstore.Token) (int, error) {
	f.calls.Add(1)
	if f.remember == nil {
		return len(in), nil
	}
	return f.remember(ctx, in)
}

func (f *front) Forget(context.Context, dedup.Key) error { return f.forgetErr }
func (f *front) Ping(context.Context) error              { return f.pingError }

func hang(ctx context.Context, _ []dedup.ClaimRequest, _ []dedup.Verdict, _ []tierstore.Token) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestSlowFrontHoldsUpAClaimForItsTimeoutOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &front{lookup: hang}
		s, begun := tierstore.New(newMemory(), f), time.Now()
		acquire(t, s, ask(newKey()))
		require.Equal(t, 100*time.Millisecond, time.Since(begun), "the default")

		s = tierstore.NewWithOptions(newMemory(), f, &tierstore.Options{Timeout: time.Second})
		begun = time.Now()
		acquire(t, s, ask(newKey()))
		require.Equal(t, time.Second, time.Since(begun))
	})
}

func TestSlowFrontHoldsUpAFinishForItsTimeoutOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &front{remember: func(ctx context.Context, _ []dedup.FinishRequest) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		s := tierstore.New(newMemory(), f)
		h, begun := acquire(t, s, ask(newKey())), time.Now()
		finish(t, s, h, dedup.Done)
		require.Equal(t, 100*time.Millisecond, time.Since(begun))
		require.Equal(t, tierstore.Stats{Asked: 1, Faults: 1}, s.Stats())
	})
}

func TestFrontThatFailsIsLeftAloneAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &front{lookup: hang}
		s := tierstore.NewWithOptions(newMemory(), f, &tierstore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 {
			acquire(t, s, ask(newKey()))
		}
		require.Contains(t, log.String(), "left alone")
		begun := time.Now()
		for range 100 {
			finish(t, s, acquire(t, s, ask(newKey())), dedup.Done)
		}
		require.Zero(t, time.Since(begun), "a front that is down costs nothing")
		require.Equal(t, int64(3), f.calls.Load())
		require.Equal(t, tierstore.Stats{Asked: 103, Faults: 3, Skipped: 100}, s.Stats())

		time.Sleep(time.Second) // virtual: the default pause
		begun = time.Now()
		acquire(t, s, ask(newKey()))
		acquire(t, s, ask(newKey()))
		require.Equal(t, 100*time.Millisecond, time.Since(begun), "one call tries; the next ones do not")
		require.Equal(t, int64(4), f.calls.Load())

		f.lookup = nil
		time.Sleep(time.Second)
		acquire(t, s, ask(newKey()))
		acquire(t, s, ask(newKey()))
		require.Equal(t, int64(6), f.calls.Load())
		require.Contains(t, log.String(), "answers again")
		require.Equal(t, 1, strings.Count(log.String(), "left alone"))
	})
}

func TestOneTriesAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &front{lookup: hang}
		s := tierstore.New(newMemory(), f)
		for range 3 {
			acquire(t, s, ask(newKey()))
		}
		time.Sleep(time.Second)
		for range 50 {
			go func() { claim(t, s, ask(newKey())) }()
		}
		synctest.Wait()
		require.Equal(t, int64(4), f.calls.Load())
		time.Sleep(time.Second)
	})
}

func TestCallerThatLeavesIsNoFaultOfTheFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tierstore.New(newMemory(), &front{lookup: hang})
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			require.Error(t, s.Claim(ctx, []dedup.ClaimRequest{ask(newKey())}, make([]dedup.Verdict, 1)))

			ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
			require.NoError(t, s.Claim(ctx, []dedup.ClaimRequest{ask(newKey())}, make([]dedup.Verdict, 1)), "one in a hurry")
			cancel()
		}
		require.Zero(t, s.Stats().Faults)
		require.Zero(t, s.Stats().Skipped)
	})
}

// Whatever Options.Timeout is: a Guard's claim has a quarter of its lease, or 5 s.
func TestHungFrontLeavesTheDeciderItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ lease, timeout time.Duration }{
			{30 * time.Second, 0}, {400 * time.Millisecond, 0}, {30 * time.Second, 5 * time.Second}, {10 * time.Second, time.Hour},
		} {
			s := tierstore.NewWithOptions(newMemory(), &front{lookup: hang}, &tierstore.Options{Timeout: c.timeout, Pause: time.Hour})
			g, err := dedup.New("app", s, &dedup.Options{Lease: c.lease})
			require.NoError(t, err)
			for i := range 5 {
				claim, err := g.Claim(t.Context(), dedup.Work{Scope: "s", ID: fmt.Sprint(i)})
				require.NoError(t, err)
				require.NoError(t, claim.Release(t.Context()))
			}
			require.Equal(t, tierstore.Stats{Asked: 5, Faults: 3, Skipped: 2}, s.Stats(), "it is left alone")
		}
	})
}

// Whatever a front says but done and mismatch is no answer.
func TestFrontNeverGrantsAnything(t *testing.T) {
	for state := dedup.State(0); state <= dedup.Mismatch+1; state++ {
		d := newMemory()
		f := &front{lookup: func(_ context.Context, _ []dedup.ClaimRequest, out []dedup.Verdict, tokens []tierstore.Token) error {
			out[0], tokens[0] = dedup.Verdict{State: state, Epoch: 99}, tierstore.Token{1}
			return nil
		}}
		s := tierstore.New(d, f)
		v := claim(t, s, ask(newKey()))
		if state == dedup.Done || state == dedup.Mismatch {
			require.Equal(t, state, v.State)
			require.Zero(t, d.items.Load())
			continue
		}
		require.Equal(t, dedup.Acquired, v.State)
		require.NotEqual(t, uint64(99), v.Epoch)
		require.Equal(t, int64(1), d.items.Load())
	}
}

func TestAnswersOfAFrontThatThenFailsAreNone(t *testing.T) {
	f := &front{lookup: func(_ context.Context, _ []dedup.ClaimRequest, out []dedup.Verdict, tokens []tierstore.Token) error {
		out[0], tokens[0] = dedup.Verdict{State: dedup.Done}, tierstore.Token{1}
		return errDown
	}, remember: func(context.Context, []dedup.FinishRequest) (int, error) { panic("by a token of a call that failed") }}
	s := tierstore.New(newMemory(), f)
	finish(t, s, acquire(t, s, ask(newKey())), dedup.Done)
}

// mixed is a batch of which the front knows every third item.
func mixed(t *testing.T, tr *tier) (in []dedup.ClaimRequest, known map[int]bool) {
	t.Helper()
	known = map[int]bool{}
	for i := range 30 {
		q := ask(newKey())
		if i%3 == 0 {
			q = ask(done(t, tr, q.Key).Key)
			known[i] = true
		}
		in = append(in, q)
	}
	return in, known
}

func TestDeciderIsAskedForTheRestInOneBatch(t *testing.T) {
	tr := newTier(t)
	in, known := mixed(t, tr)
	out := make([]dedup.Verdict, len(in))
	calls := 0
	tr.decider.setBefore(func(context.Context, string) error { calls++; return nil })
	require.Equal(t, int64(20), tr.asked(func() { require.NoError(t, tr.Claim(t.Context(), in, out)) }))
	require.Equal(t, 1, calls)
	fin := []dedup.FinishRequest{}
	for i := range out {
		if known[i] {
			require.Equal(t, dedup.Done, out[i].State)
			continue
		}
		require.Equal(t, dedup.Acquired, out[i].State)
		fin = append(fin, dedup.FinishRequest{Held: dedup.Held{ClaimRequest: in[i], Epoch: out[i].Epoch, Attempt: 1}, State: dedup.Done, Result: fmt.Append(nil, i)})
	}
	require.NoError(t, tr.Finish(t.Context(), fin, make([]error, len(fin))))
	clear(out)
	for i := range in {
		in[i] = ask(in[i].Key)
	}
	require.Zero(t, tr.asked(func() { require.NoError(t, tr.Claim(t.Context(), in, out)) }))
	for i := range out {
		require.Equal(t, dedup.Done, out[i].State)
		if !known[i] {
			require.Equal(t, fmt.Append(nil, i), out[i].Result)
		}
	}
}

func TestDuplicatesAreAnsweredWhileTheDeciderIsDown(t *testing.T) {
	tr := newTier(t)
	in, known := mixed(t, tr)
	tr.decider.setBefore(func(context.Context, string) error { return errDown })
	out := make([]dedup.Verdict, len(in))
	require.NoError(t, tr.Claim(t.Context(), in, out))
	for i := range out {
		if known[i] {
			require.Equal(t, dedup.Done, out[i].State)
			continue
		}
		require.ErrorIs(t, out[i].Err, errDown)
		require.ErrorIs(t, out[i].Err, dedup.ErrUnavailable, "a guard asks again by the same owner, whose claim may have been granted")
		require.Zero(t, out[i].State)
	}
	require.ErrorIs(t, tr.Claim(t.Context(), []dedup.ClaimRequest{ask(newKey())}, make([]dedup.Verdict, 1)), errDown)
}

func TestLongResultsStayWithTheDecider(t *testing.T) {
	tr := newTier(t)
	for _, size := range []int{64 << 10, 64<<10 + 1} {
		h := acquire(t, tr, ask(newKey()))
		result := bytes.Repeat([]byte("r"), size)
		require.NoError(t, tr.Finish(t.Context(), []dedup.FinishRequest{{Held: h, State: dedup.Done, Result: result}}, make([]error, 1)))
		want := int64(0)
		if size > 64<<10 {
			want = 1
		}
		for range 2 {
			require.Equal(t, want, tr.asked(func() { require.Equal(t, result, claim(t, tr, ask(h.Key)).Result) }))
		}
	}
}

func TestOnlyDoneIsCopied(t *testing.T) {
	for _, state := range []dedup.State{dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned} {
		tr := newTier(t)
		h := acquire(t, tr, ask(newKey()))
		finish(t, tr, h, state)
		claim(t, tr, ask(h.Key))
		require.Equal(t, tierstore.Stats{Asked: 2}, tr.Stats(), state)
	}
}

func TestVerdictOfALostRecordIsCopied(t *testing.T) {
	tr := newTier(t)
	q := ask(newKey())
	q.Lease = 1 // over at once, or the record could not be removed
	h := acquire(t, tr, q)
	require.NoError(t, tr.decider.Forget(t.Context(), h.Key)) // as a restore would: the front knows nothing of it
	out := make([]error, 1)
	require.NoError(t, tr.Finish(t.Context(), []dedup.FinishRequest{{Held: h, State: dedup.Done}}, out))
	require.ErrorIs(t, out[0], dedup.ErrRecordLost)
	require.Zero(t, tr.asked(func() { require.Equal(t, h.Epoch, claim(t, tr, ask(h.Key)).Epoch) }))
}

func TestPingIsTheDecidersAndWhatCannotWork(t *testing.T) {
	ctx, f := t.Context(), &front{}
	var log bytes.Buffer
	s := tierstore.NewWithOptions(newMemory(), f, &tierstore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, s.Ping(ctx))
	require.Empty(t, log.String())
	f.pingError = errDown
	require.NoError(t, s.Ping(ctx), "a front that is down must not keep a consumer from starting")
	require.Contains(t, log.String(), errDown.Error())
	f.pingError = fmt.Errorf("%w: a Ring", dedup.ErrUnsafeStore)
	require.ErrorIs(t, s.Ping(ctx), dedup.ErrUnsafeStore)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, s.Ping(ended), context.Canceled)
}

func TestGuardRunsOnATier(t *testing.T) {
	tr := newTier(t)
	g, err := dedup.New("app", tr, nil)
	require.NoError(t, err)
	runs := 0
	for range 3 {
		_, err := g.Do(t.Context(), dedup.Work{Scope: "s", ID: "1"}, func(context.Context) error { runs++; return nil })
		require.NoError(t, err)
	}
	require.Equal(t, 1, runs)
	require.Equal(t, tierstore.Stats{Answered: 2, Asked: 1, Kept: 1}, tr.Stats())
	_, err = g.Do(t.Context(), dedup.Work{Scope: "s", ID: "2"}, func(context.Context) error { return errDown })
	require.ErrorIs(t, err, errDown)
	require.Equal(t, uint64(1), tr.Stats().Kept)
}

// What SQL says is left counts, not what the asker would like.
func TestCopyOfAnAnswerEndsWithTheRecord(t *testing.T) {
	tr := newTier(t)
	h := done(t, tr, newKey())
	tr.mini.FlushAll()
	q := ask(h.Key)
	q.Retention *= 1000
	claim(t, tr, q)
	require.Zero(t, tr.asked(func() { require.LessOrEqual(t, claim(t, tr, q).Left, time.Hour) }))
}

// The owner was overtaken by one who did not ask the front, so that its token still stands.
func TestVerdictThatIsSupersededIsNotCopied(t *testing.T) {
	tr := newTier(t)
	q := ask(newKey())
	q.Lease = 1
	h := acquire(t, tr, q)
	acquire(t, tr.decider, ask(q.Key))
	out := make([]error, 1)
	require.NoError(t, tr.Finish(t.Context(), []dedup.FinishRequest{{Held: h, State: dedup.Done}}, out))
	require.ErrorIs(t, out[0], dedup.ErrSuperseded)
	require.Equal(t, dedup.InProgress, claim(t, tr, ask(q.Key)).State)
}

func TestTokensGoWithTheirClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tierstore.New(newMemory(), &front{})
		for _, state := range []dedup.State{dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released} {
			h := acquire(t, s, ask(newKey()))
			require.Equal(t, 1, s.HeldTokens())
			finish(t, s, h, state)
			require.Zero(t, s.HeldTokens(), state)
		}
		h := acquire(t, s, ask(newKey()))
		require.NoError(t, s.InTx(t.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, func(*sql.Tx) error { return nil }))
		require.Zero(t, s.HeldTokens())

		for range 100 { // whose owners are never heard of again
			acquire(t, s, ask(newKey()))
		}
		for range 2 {
			time.Sleep(11 * time.Minute) // virtual
			acquire(t, s, ask(newKey()))
		}
		require.Equal(t, 2, s.HeldTokens())
	})
}
