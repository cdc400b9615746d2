package deduptest

import (
	"errors"
	"sync"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

var rule01 = []testCase{
	{"TwoThousandClaimsOfANewKey", func(e *env) {
		e.race(ask(newKey()), 2_000)
	}},
	{"AfterALeaseIsOver", func(e *env) {
		q := ask(newKey())
		e.lapsed(q)
		e.race(q, 500)
	}},
	{"AfterEachFreeState", func(e *env) {
		e.each([]dedup.State{dedup.Retryable, dedup.Released}, func(e *env, s dedup.State) {
			q := ask(newKey())
			e.finished(q.Key, s)
			e.race(q, 500)
		})
	}},
	{"AcrossManyKeysAtOnce", func(e *env) {
		const keys, askers = 100, 16
		in := make([]dedup.ClaimRequest, keys)
		for i := range in {
			in[i] = ask(newKey())
		}
		acquired := make([]int, keys)
		for _, out := range e.together(askers, in) {
			for i := range out {
				if out[i].State == dedup.Acquired {
					acquired[i]++
				} else {
					require.Equal(e, dedup.InProgress, out[i].State, "key %d", i)
				}
			}
		}
		for i, n := range acquired {
			require.Equal(e, 1, n, "owners of key %d", i)
		}
	}},
}

// race sends n simultaneous claims like q, each of another owner, and requires one winner.
func (e *env) race(q dedup.ClaimRequest, n int) {
	e.Helper()
	const askers = 100
	acquired := 0
	for range n / askers {
		for _, out := range e.together(askers, []dedup.ClaimRequest{q}) {
			switch out[0].State {
			case dedup.Acquired:
				acquired++
			default:
				require.Equal(e, dedup.InProgress, out[0].State, "answer to a claim that came second")
			}
		}
	}
	require.Equal(e, 1, acquired, "how many of %d claims of one key acquired it", n)
}

// together makes the claims of in from n goroutines at once, under owners of their own, half of
// them through another Store on the same data, and returns all answers.
func (e *env) together(n int, in []dedup.ClaimRequest) [][]dedup.Verdict {
	e.Helper()
	outs, errs := make([][]dedup.Verdict, n), make([]error, n)
	start := make(chan struct{})
	var running sync.WaitGroup
	for i := range n {
		mine := make([]dedup.ClaimRequest, len(in))
		copy(mine, in)
		for j := range mine {
			mine[j].Owner = newOwner()
		}
		outs[i] = make([]dedup.Verdict, len(in))
		store := e.store
		if i%2 == 1 {
			store = e.other
		}
		running.Go(func() {
			<-start
			errs[i] = store.Claim(e.ctx, mine, outs[i])
		})
	}
	close(start)
	running.Wait()
	require.NoError(e, errors.Join(errs...), "Claim from many goroutines")
	return outs
}

var rule06 = []testCase{
	{"AfterALateFinish", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Failed}, func(e *env, s dedup.State) {
			q := ask(newKey())
			h := e.lapsed(q)
			require.NoError(e, e.finish(h, s))
			e.unchanged(q.Key, func() {
				require.Equal(e, s, e.claim(ask(q.Key)).State)
			})
		})
	}},
	{"AgainstAFinishAtTheSameTime", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Failed}, takeoverAgainstFinish)
	}},
}

// takeoverAgainstFinish lets a late owner and three successors meet on many keys: whoever comes
// first wins, and the others are told.
func takeoverAgainstFinish(e *env, s dedup.State) {
	const keys = 200
	claims, held := make([]dedup.ClaimRequest, keys), make([]dedup.FinishRequest, keys)
	for i := range claims {
		claims[i] = ask(newKey())
		claims[i].Lease = e.conf.Lease
	}
	for i, v := range e.claimAll(claims...) {
		require.Equal(e, dedup.Acquired, v.State)
		held[i] = finishOf(heldOf(claims[i], v), s)
		claims[i].Lease = long
	}
	e.pass()
	errs := make([]error, keys)
	var finisher sync.WaitGroup
	var err error
	finisher.Go(func() {
		for i := range held { // one by one, so that the claims come in between
			if err = e.other.Finish(e.ctx, held[i:i+1], errs[i:i+1]); err != nil {
				return
			}
		}
	})
	outs := make([][]dedup.Verdict, 0, keys)
	for i := keys - 1; i >= 0; i-- { // from the other end: they meet in the middle
		outs = append(outs, e.together(3, claims[i:i+1])...)
	}
	finisher.Wait()
	require.NoError(e, err, "Finish")
	for i := range keys {
		taken := 0
		for _, out := range outs[(keys-1-i)*3:][:3] {
			if out[0].State == dedup.Acquired {
				taken++
			}
		}
		if errs[i] == nil {
			require.Zero(e, taken, "key %d was taken over although its owner's %v was written", i, s)
			require.Equal(e, s, e.claim(ask(claims[i].Key)).State, "key %d after its owner's word was accepted", i)
		} else {
			e.superseded(errs[i], "late Finish of key %d", i)
			require.Equal(e, 1, taken, "successors of key %d", i)
		}
	}
}

var rule07 = []testCase{
	{"ForEveryKindOfAsker", func(e *env) {
		k := newKey()
		h := e.acquire(ask(k))
		e.inProgress(k)
		require.NoError(e, e.extend(h))
		e.inProgress(k)
		e.condemn(h)
		e.inProgress(k)
	}},
	{"AfterATakeover", func(e *env) {
		q := ask(newKey())
		e.lapsed(q)
		e.acquire(ask(q.Key))
		e.inProgress(q.Key)
	}},
	{"AfterALostRecordWasMadeAgain", func(e *env) {
		h := e.unknownHeld()
		e.recordLost(e.extend(h), "Extend of a missing record")
		e.inProgress(h.Key)
	}},
	{"LeftIsOfTheLease", func(e *env) {
		q := ask(newKey())
		e.acquire(q)
		v := e.refuse(ask(q.Key), dedup.InProgress)
		require.Positive(e, v.Left, "time left of the lease")
		require.LessOrEqual(e, v.Left, q.Lease, "time left of the lease")
		require.Greater(e, v.Left, q.Lease/2, "time left of the lease, just after the claim")
	}},
}

// inProgress requires that others find k in progress, whatever they ask.
func (e *env) inProgress(k dedup.Key) {
	e.Helper()
	plain, existing, redriven := ask(k), ask(k), ask(k)
	existing.MustExist, redriven.Redrive = true, 3
	for _, q := range []dedup.ClaimRequest{plain, existing, redriven} {
		v := e.refuse(q, dedup.InProgress)
		require.Empty(e, v.Result, "result of work that is in progress")
	}
}

var rule12 = []testCase{
	{"WithEveryClaimThatAcquires", func(e *env) {
		k := newKey()
		last := e.acquire(ask(k))
		next := func(what string, want dedup.State, redrive int) {
			q := ask(k)
			q.Redrive = redrive
			h := e.take(q, want)
			require.Greater(e, h.Epoch, last.Epoch, "epoch of a claim after %s", what)
			last = h
		}
		require.NoError(e, e.finish(last, dedup.Released))
		next("a release", dedup.Acquired, 0)
		require.NoError(e, e.finish(last, dedup.Retryable))
		next("a failure", dedup.Acquired, 0)
		e.letLapse(last)
		next("a lease that ran out", dedup.Acquired, 0)
		last = e.condemn(last)
		require.NoError(e, e.finish(last, dedup.Released))
		next("the release of a condemned record", dedup.Condemned, 0)
		e.letLapse(last)
		next("a lease of a condemned record that ran out", dedup.Condemned, 0)
		require.NoError(e, e.finish(last, dedup.Failed))
		next("a redrive", dedup.Acquired, 1)
	}},
	{"AcrossRetention", func(e *env) {
		old := e.acquire(ask(newKey()))
		old.Retention = e.conf.Lease
		require.NoError(e, e.finish(old, dedup.Done))
		e.pass()
		require.Greater(e, e.acquire(ask(old.Key)).Epoch, old.Epoch, "epoch in the key's next life")
	}},
	{"AboveTheEpochOfAClaimMadeAgain", func(e *env) {
		h := e.unknownHeld()
		h.Epoch += 1 << 30 // as after a fail-over to a server whose clock is behind
		e.recordLost(e.extend(h), "Extend of a missing record")
		require.NoError(e, e.finish(h, dedup.Released))
		require.Greater(e, e.acquire(ask(h.Key)).Epoch, h.Epoch, "epoch of a claim after the lost one")
	}},
	{"InAnswersToTheSameOwner", func(e *env) {
		q := ask(newKey())
		require.Equal(e, e.acquire(q).Epoch, e.acquire(q).Epoch, "epoch of a claim that was repeated")
	}},
}

var claimCases = []testCase{
	{"FirstAnswerIsPlain", func(e *env) {
		v := e.claim(ask(newKey()))
		require.NotZero(e, v.Epoch)
		require.Equal(e, dedup.Verdict{State: dedup.Acquired, Epoch: v.Epoch, Attempt: 1}, v)
	}},
	{"MustExistFindsNothing", func(e *env) {
		q := ask(newKey())
		q.MustExist = true
		e.refuse(q, dedup.Absent)
		e.refuse(q, dedup.Absent) // the first one left nothing behind
		e.acquire(ask(q.Key))
	}},
	{"MustExistFindsARecord", func(e *env) {
		for s, want := range map[dedup.State]dedup.State{
			dedup.Released: dedup.Acquired, dedup.Retryable: dedup.Acquired, dedup.Done: dedup.Done, dedup.Failed: dedup.Failed,
		} {
			q := ask(newKey())
			q.MustExist = true
			e.finished(q.Key, s)
			require.Equal(e, want, e.claim(q).State, "claim of what must exist, on a record that is %v", s)
		}
	}},
	{"FingerprintDiffers", func(e *env) {
		e.each([]dedup.State{dedup.InProgress, dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned}, func(e *env, s dedup.State) {
			q, twin := ask(newKey()), dedup.FingerprintOf([]byte("twin"))
			q.Fingerprint = dedup.FingerprintOf([]byte("first"))
			h := e.acquire(q)
			if s != dedup.InProgress {
				require.NoError(e, e.finish(h, s))
			}
			e.unchanged(q.Key, func() {
				other := ask(q.Key)
				other.Fingerprint, other.Redrive = twin, 5
				e.refuse(other, dedup.Mismatch)
			})
		})
	}},
	{"FingerprintIsKeptThroughClaimsWithout", func(e *env) {
		q := ask(newKey())
		q.Fingerprint = dedup.FingerprintOf([]byte("first"))
		require.NoError(e, e.finish(e.acquire(q), dedup.Retryable))
		require.NoError(e, e.finish(e.acquire(ask(q.Key)), dedup.Retryable), "zero is not compared")
		other := ask(q.Key)
		other.Fingerprint = dedup.FingerprintOf([]byte("twin"))
		e.refuse(other, dedup.Mismatch)
	}},
	{"ZeroFingerprintIsNotStored", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		q := ask(k)
		q.Fingerprint = dedup.FingerprintOf([]byte("first"))
		require.NoError(e, e.finish(e.acquire(q), dedup.Retryable), "a record without a fingerprint takes any")
		q.Owner, q.Fingerprint = newOwner(), dedup.FingerprintOf([]byte("twin"))
		e.refuse(q, dedup.Mismatch)
	}},
}
