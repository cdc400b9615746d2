package tierstore_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/tierstore"
)

// Each race is one order of the steps of two processes, made by a hook between the calls of one.

// once runs f in the place of the first call only, and lets that call go on.
func once(f func()) func() error {
	var first sync.Once
	return func() error {
		first.Do(f)
		return nil
	}
}

// A asks SQL, which knows it done; an operator forgets it; A's copy comes late.
func TestCopyOfAnAnswerAfterForgetIsRefused(t *testing.T) {
	a := newTier(t)
	operator := a.twin()
	h := done(t, a, newKey())
	a.mini.FlushAll() // so that A asks SQL
	a.front.set(func(f *hooked) {
		f.remember = once(func() { require.NoError(t, operator.Forget(t.Context(), h.Key)) })
	})
	require.Equal(t, dedup.Done, claim(t, a, ask(h.Key)).State, "it was when SQL was asked")
	require.Equal(t, uint64(1), a.Stats().Refused)
	acquire(t, operator, ask(h.Key)) // the deliberate re-send runs
}

// The same, with a token that another asker has placed since.
func TestCopyOfAnAnswerAfterForgetAndAnotherAskerIsRefused(t *testing.T) {
	a := newTier(t)
	operator := a.twin()
	h := done(t, a, newKey())
	a.mini.FlushAll()
	a.front.set(func(f *hooked) {
		f.remember = once(func() {
			require.NoError(t, operator.Forget(t.Context(), h.Key))
			acquire(t, operator, ask(h.Key))
		})
	})
	require.Equal(t, dedup.Done, claim(t, a, ask(h.Key)).State)
	require.Equal(t, dedup.InProgress, claim(t, a, ask(h.Key)).State, "it runs again")
}

// The owner's verdict is committed; an operator forgets it; the owner's copy comes late.
func TestOwnersCopyAfterForgetIsRefused(t *testing.T) {
	for name, finished := range map[string]func(a *tier, h dedup.Held){
		"Finish": func(a *tier, h dedup.Held) { finish(t, a, h, dedup.Done) },
		"InTx": func(a *tier, h dedup.Held) {
			require.NoError(t, a.InTx(t.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, func(*sql.Tx) error { return nil }))
		},
	} {
		a := newTier(t)
		operator := a.twin()
		h := acquire(t, a, ask(newKey()))
		a.front.set(func(f *hooked) {
			f.remember = once(func() { require.NoError(t, operator.Forget(t.Context(), h.Key)) })
		})
		finished(a, h)
		require.Equal(t, uint64(1), a.Stats().Refused, name)
		acquire(t, operator, ask(h.Key))
	}
}

// Between the two halves of a Forget: a copy may still answer, which is as if the delivery had come
// before it; a claim that SQL grants then may not leave a copy of the old life.
func TestBetweenTheHalvesOfForget(t *testing.T) {
	a := newTier(t)
	b := a.twin()
	h := done(t, a, newKey())
	var second dedup.Held
	a.front.set(func(f *hooked) {
		f.forget = once(func() {
			require.Equal(t, dedup.Done, claim(t, b, ask(h.Key)).State, "by the copy")
			a.mini.FlushAll()
			second = acquire(t, b, ask(h.Key)) // a token is placed that the second half removes
		})
	})
	require.NoError(t, a.Forget(t.Context(), h.Key))
	finish(t, b, second, dedup.Done)
	require.Equal(t, uint64(1), b.Stats().Refused)
	require.Equal(t, dedup.Done, claim(t, a, ask(h.Key)).State, "by SQL: the new life is done")
	require.Equal(t, int64(0), a.asked(func() { claim(t, a, ask(h.Key)) }), "and now by its copy")
}

// A works; B's delivery of the same asks and places its own token; A's copy is refused, and the next
// duplicate makes up for it.
func TestTokenOfAnotherAskerRefusesTheOwnersCopy(t *testing.T) {
	a := newTier(t)
	b := a.twin()
	h := acquire(t, a, ask(newKey()))
	require.Equal(t, dedup.InProgress, claim(t, b, ask(h.Key)).State)
	finish(t, a, h, dedup.Done)
	require.Equal(t, tierstore.Stats{Asked: 1, Refused: 1}, a.Stats())
	require.Equal(t, int64(1), b.asked(func() { require.Equal(t, dedup.Done, claim(t, b, ask(h.Key)).State) }))
	require.Zero(t, a.asked(func() { require.Equal(t, dedup.Done, claim(t, a, ask(h.Key)).State) }))
}

// An owner of the first life of a key comes late to the second one, after a Forget.
func TestLateOwnerOfAForgottenLifeLeavesNoCopy(t *testing.T) {
	a := newTier(t)
	b := a.twin()
	q := ask(newKey())
	q.Lease = 1 // over at once
	late := acquire(t, a, q)
	require.NoError(t, b.Forget(t.Context(), q.Key))
	second := acquire(t, b, ask(q.Key))
	out := make([]error, 1)
	require.NoError(t, a.Finish(t.Context(), []dedup.FinishRequest{{Held: late, State: dedup.Done}}, out))
	require.ErrorIs(t, out[0], dedup.ErrSuperseded)
	require.Zero(t, a.Stats().Kept)
	require.Equal(t, dedup.InProgress, claim(t, a, ask(q.Key)).State)
	finish(t, b, second, dedup.Done)
}

// A claim of the first life of a key is repeated so late that it begins the second one, and the word of the first comes
// after it: the decider takes it for the owner's, and the copy must not say that it is the first life's.
func TestWordOfAnEarlierLifeOfTheSameOwnerLeavesNoCopy(t *testing.T) {
	a := newTier(t)
	q := ask(newKey())
	q.Lease = 1 // over at once, but nobody else asks
	first := acquire(t, a, q)
	require.NoError(t, a.Forget(t.Context(), q.Key))
	q.Redrive = 2
	second := acquire(t, a, q)
	require.Greater(t, second.Epoch, first.Epoch)
	finish(t, a, first, dedup.Done)
	require.Zero(t, a.Stats().Kept)
	require.Equal(t, second.Epoch, claim(t, a, ask(q.Key)).Epoch)
}

// The server does twice what the client library sent twice. Only the token of the last time counts.
func TestRepeatedLookupLeavesOneToken(t *testing.T) {
	a := newTier(t)
	q := ask(newKey())
	acquire(t, a, q)
	h := acquire(t, a, q) // the same owner again: its reply was lost
	finish(t, a, h, dedup.Done)
	require.Equal(t, uint64(1), a.Stats().Kept)
}

func TestNothingIsCopiedBeforeTheCommit(t *testing.T) {
	a := newTier(t)
	nothing := func(h dedup.Held) {
		out, tokens := make([]dedup.Verdict, 1), make([]tierstore.Token, 1)
		require.NoError(t, a.redis.Lookup(t.Context(), []dedup.ClaimRequest{ask(h.Key)}, out, tokens))
		require.Zero(t, out[0])
	}
	h := acquire(t, a, ask(newKey()))
	f := dedup.FinishRequest{Held: h, State: dedup.Done, Result: []byte("result")}
	for _, failure := range []error{errDown, dedup.ErrConflict, dedup.ErrTxEnded} {
		require.ErrorIs(t, a.InTx(t.Context(), f, func(*sql.Tx) error { return failure }), failure)
		nothing(h)
	}
	// The commit has happened and its reply is lost.
	a.decider.setAfter(func(string) error { return dedup.ErrUnavailable })
	require.ErrorIs(t, a.InTx(t.Context(), f, func(*sql.Tx) error { return nil }), dedup.ErrUnavailable)
	nothing(h)
	a.decider.setAfter(nil)
	require.Equal(t, dedup.Done, claim(t, a, h.ClaimRequest).State)
	require.Zero(t, a.asked(func() { require.Equal(t, []byte("result"), claim(t, a, ask(h.Key)).Result) }))
}

func TestCopyAppearsWithTheCommit(t *testing.T) {
	a := newTier(t)
	h := acquire(t, a, ask(newKey()))
	during := func(*sql.Tx) error {
		require.Zero(t, a.Stats().Kept)
		return nil
	}
	require.NoError(t, a.InTx(t.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, during))
	require.Equal(t, uint64(1), a.Stats().Kept)
	require.Zero(t, a.asked(func() { require.Equal(t, dedup.Done, claim(t, a, ask(h.Key)).State) }))
}

// A Finish whose reply is lost is repeated, and then leaves the copy.
func TestRepeatedFinishLeavesTheCopy(t *testing.T) {
	a := newTier(t)
	h := acquire(t, a, ask(newKey()))
	f, out := []dedup.FinishRequest{{Held: h, State: dedup.Done}}, make([]error, 1)
	a.decider.setAfter(func(string) error { return errDown })
	require.ErrorIs(t, a.Finish(t.Context(), f, out), errDown)
	require.Zero(t, a.Stats().Kept)
	a.decider.setAfter(nil)
	require.NoError(t, a.Finish(t.Context(), f, out))
	require.NoError(t, out[0])
	require.Equal(t, uint64(1), a.Stats().Kept)
}

func TestForgetThatReachesOnlySQLSaysSo(t *testing.T) {
	a := newTier(t)
	h := done(t, a, newKey())
	a.front.set(func(f *hooked) { f.forget = func() error { return errDown } })
	err := a.Forget(t.Context(), h.Key)
	require.ErrorIs(t, err, errDown)
	require.ErrorContains(t, err, "repeat")
	a.front.set(func(f *hooked) { f.forget = nil })
	require.NoError(t, a.Forget(t.Context(), h.Key))
	acquire(t, a, ask(h.Key))
}

func TestForgetThatSQLRefusesLeavesTheFrontAlone(t *testing.T) {
	a := newTier(t)
	h := done(t, a, newKey())
	a.decider.setBefore(func(_ context.Context, method string) error {
		if method == "Forget" {
			return errDown
		}
		return nil
	})
	require.ErrorIs(t, a.Forget(t.Context(), h.Key), errDown)
	require.Zero(t, a.asked(func() { require.Equal(t, dedup.Done, claim(t, a, ask(h.Key)).State) }))
}
