package deduptest

import (
	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

var rule13 = []testCase{
	{"FailedIsTakenByAHigherNumberOnly", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Failed)
		e.refuse(ask(k), dedup.Failed)
		q := ask(k)
		q.Redrive = 1
		h := e.acquire(q)
		require.Equal(e, 1, h.Redrive)
		require.NoError(e, e.finish(h, dedup.Failed))
		for _, n := range []int{0, 1} {
			q := ask(k)
			q.Redrive = n
			e.refuse(q, dedup.Failed)
		}
		q = ask(k)
		q.Redrive = 7
		require.Equal(e, 7, e.acquire(q).Redrive)
	}},
	{"DoneIsNeverTaken", func(e *env) {
		q := ask(e.finished(newKey(), dedup.Done).Key)
		q.Redrive = 9
		e.unchanged(q.Key, func() {
			v := e.refuse(q, dedup.Done)
			require.Equal(e, []byte("result"), v.Result)
			require.Equal(e, 0, v.Redrive, "the record's number")
		})
	}},
	{"CondemnedIsTakenOnceItsLeaseIsOver", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		q := ask(h.Key)
		q.Redrive = 1
		e.refuse(q, dedup.InProgress)
		e.letLapse(h)
		next := e.acquire(q)
		require.Equal(e, 1, next.Redrive)
		e.refusedAll(h)
		require.NoError(e, e.finish(next, dedup.Done))
	}},
	{"CondemnedGivenBackIsTakenAtOnce", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		require.NoError(e, e.finish(h, dedup.Released))
		q := ask(h.Key)
		q.Redrive = 1
		require.NoError(e, e.finish(e.acquire(q), dedup.Done))
	}},
	{"EqualNumberFindsItCondemned", func(e *env) {
		q := ask(newKey())
		q.Redrive = 2
		require.NoError(e, e.finish(e.condemn(e.acquire(q)), dedup.Released))
		q.Owner = newOwner()
		require.Equal(e, 2, e.take(q, dedup.Condemned).Redrive)
	}},
	{"RunningWorkIsNotTaken", func(e *env) {
		h := e.acquire(ask(newKey()))
		q := ask(h.Key)
		q.Redrive = 3
		require.Equal(e, 0, e.refuse(q, dedup.InProgress).Redrive, "the record's number")
		require.NoError(e, e.finish(h, dedup.Done))
	}},
	{"NumberNeverFalls", func(e *env) {
		q := ask(newKey())
		q.Redrive = 4
		h := e.acquire(q)
		for _, s := range []dedup.State{dedup.Released, dedup.Retryable, dedup.InProgress} {
			if s == dedup.InProgress {
				e.letLapse(h)
			} else {
				require.NoError(e, e.finish(h, s))
			}
			h = e.acquire(ask(h.Key)) // an older copy, with number 0
			require.Equal(e, 4, h.Redrive, "the record's number, after an older copy took a record that was %v", s)
		}
		require.NoError(e, e.finish(h, dedup.Failed))
		require.Equal(e, 4, e.refuse(ask(h.Key), dedup.Failed).Redrive)
	}},
	{"HigherNumberIsTakenOverToo", func(e *env) {
		e.each([]dedup.State{dedup.Released, dedup.Retryable, dedup.InProgress}, func(e *env, s dedup.State) {
			h := e.acquire(ask(newKey()))
			if s == dedup.InProgress {
				e.letLapse(h)
			} else {
				require.NoError(e, e.finish(h, s))
			}
			q := ask(h.Key)
			q.Redrive = 2
			require.Equal(e, 2, e.acquire(q).Redrive)
			require.Equal(e, 2, e.refuse(ask(h.Key), dedup.InProgress).Redrive)
		})
	}},
	{"HigherNumberStartsCountsAnew", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		h := e.acquire(ask(k))
		e.counts(h, 2, 1)
		require.NoError(e, e.finish(h, dedup.Failed))
		q := ask(k)
		q.Redrive = 1
		e.counts(e.acquire(q), 1, 0)
	}},
	{"RedriveOfCondemnedStartsCountsAnew", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		require.NoError(e, e.finish(e.condemn(e.acquire(ask(k))), dedup.Released))
		q := ask(k)
		q.Redrive = 1
		e.counts(e.acquire(q), 1, 0)
	}},
}

// counts requires the attempt and crashes that a claim was answered.
func (e *env) counts(h dedup.Held, attempt, crashes int) {
	e.Helper()
	require.Equal(e, attempt, h.Attempt, "Attempt")
	require.Equal(e, crashes, h.Crashes, "Crashes")
}

var rule14 = []testCase{
	{"FailureCountsAnAttempt", func(e *env) {
		k := newKey()
		for n := 1; n <= 5; n++ {
			h := e.acquire(ask(k))
			e.counts(h, n, 0)
			require.NoError(e, e.finish(h, dedup.Retryable))
		}
	}},
	{"ReleaseCountsNothing", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		for range 3 {
			h := e.acquire(ask(k))
			e.counts(h, 2, 1)
			require.NoError(e, e.finish(h, dedup.Released))
		}
	}},
	{"FirstCrashAlwaysCounts", func(e *env) {
		k := newKey()
		e.lapsed(ask(k))
		e.counts(e.acquire(ask(k)), 1, 1)
	}},
	{"LaterCrashCountsOnlyAlone", func(e *env) {
		k := newKey()
		e.lapsed(ask(k))
		for range 2 {
			h := e.lapsed(ask(k))
			e.counts(h, 1, 1)
		}
		h := e.acquire(ask(k))
		e.counts(h, 1, 1)
		require.NoError(e, e.extendAs(dedup.ExtendRequest{Held: h, Alone: true}))
		e.letLapse(h) // by a beat that does not say so again: the mark is sticky
		h = e.acquire(ask(k))
		e.counts(h, 1, 2)
		e.letLapse(h) // the mark was the owner's before
		e.counts(e.acquire(ask(k)), 1, 2)
	}},
	{"CrashAfterALateReleaseIsNone", func(e *env) {
		e.each([]dedup.State{dedup.Released, dedup.Retryable}, func(e *env, s dedup.State) {
			h := e.lapsed(ask(newKey()))
			require.NoError(e, e.finish(h, s))
			require.Zero(e, e.claim(ask(h.Key)).Crashes, "the owner gave its word, if late")
		})
	}},
	{"OwnClaimAgainIsNoCrash", func(e *env) {
		q := ask(newKey())
		e.lapsed(q)
		e.counts(e.acquire(q), 1, 0)
	}},
	{"CondemnedTakeoverIsNoCrash", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		e.letLapse(h)
		e.counts(e.take(ask(h.Key), dedup.Condemned), 1, 0)
	}},
	{"FailureStartsCrashesAnew", func(e *env) {
		k := newKey()
		e.lapsed(ask(k))
		h := e.acquire(ask(k))
		e.counts(h, 1, 1)
		require.NoError(e, e.finish(h, dedup.Retryable))
		h = e.acquire(ask(k))
		e.counts(h, 2, 0)
		e.letLapse(h)
		e.counts(e.acquire(ask(k)), 2, 1) // again the first
	}},
	{"BeatStartsNothingAnew", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		h := e.acquire(ask(k))
		require.NoError(e, e.extend(h))
		require.NoError(e, e.finish(h, dedup.Released))
		e.counts(e.acquire(ask(k)), 2, 1)
	}},
	{"DoneStartsBothAnew", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		require.NoError(e, e.finish(e.acquire(ask(k)), dedup.Done))
		v := e.refuse(ask(k), dedup.Done)
		require.Equal(e, []int{1, 0}, []int{v.Attempt, v.Crashes}, "attempt and crashes of a record that is done")
	}},
	{"CondemnKeepsCounts", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		require.NoError(e, e.finish(e.condemn(e.acquire(ask(k))), dedup.Released))
		e.counts(e.take(ask(k), dedup.Condemned), 2, 1)
	}},
}
