package deduptest

import (
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

var rule08 = []testCase{
	{"Claim", func(e *env) {
		q := e.brief(newKey())
		e.acquire(q)
		e.expires(q.Key)
	}},
	{"Extend", func(e *env) {
		h := e.acquire(ask(newKey()))
		h.ClaimRequest = e.briefly(h.ClaimRequest)
		require.NoError(e, e.extend(h))
		e.expires(h.Key)
	}},
	{"Finish", func(e *env) {
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.acquire(ask(newKey()))
			h.ClaimRequest = e.briefly(h.ClaimRequest)
			require.NoError(e, e.finish(h, s))
			e.expires(h.Key)
		})
	}},
	{"FinishOfACondemnedRecord", func(e *env) {
		e.each([]dedup.State{dedup.Failed, dedup.Released}, func(e *env, s dedup.State) {
			h := e.finished(newKey(), dedup.Condemned)
			h.ClaimRequest = e.briefly(h.ClaimRequest)
			require.NoError(e, e.finish(h, s))
			e.expires(h.Key)
		})
	}},
	{"Takeover", func(e *env) {
		q := ask(newKey())
		e.lapsed(q)
		e.acquire(e.brief(q.Key))
		e.expires(q.Key)
	}},
	{"RecordMadeAgain", func(e *env) {
		h := e.unknownHeld()
		h.ClaimRequest = e.briefly(h.ClaimRequest)
		e.recordLost(e.extend(h), "Extend of a missing record")
		e.expires(h.Key)
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.unknownHeld()
			h.ClaimRequest = e.briefly(h.ClaimRequest)
			e.recordLost(e.finish(h, s), "Finish of a missing record")
			e.expires(h.Key)
		})
	}},
	{"RetentionOfTheVerdictCounts", func(e *env) {
		h := e.acquire(ask(newKey()))
		h.Retention = 4 * keep
		require.NoError(e, e.finish(h, dedup.Done))
		v := e.refuse(ask(h.Key), dedup.Done)
		require.Greater(e, v.Left, 3*keep, "time left of the retention that the Finish asked for")
		require.LessOrEqual(e, v.Left, 4*keep)
	}},
	{"RecordOutlivesItsLease", func(e *env) {
		h := e.lapsed(ask(newKey()))
		require.Equal(e, 1, e.claim(ask(h.Key)).Crashes, "the record was there to count the crash")
	}},
	{"GarbageIsAnError", func(e *env) {
		for _, s := range append([]dedup.State{dedup.InProgress}, outcomes...) {
			h := e.acquire(ask(newKey()))
			if s != dedup.InProgress {
				require.NoError(e, e.finish(h, s))
			}
			e.conf.Corrupt(e.TB, h.Key)
			e.garbage(h)
		}
	}},
}

// garbage requires that no call reads the undecodable record of h as anything.
func (e *env) garbage(h dedup.Held) {
	e.Helper()
	out := make([]dedup.Verdict, 1)
	err := e.store.Claim(e.ctx, []dedup.ClaimRequest{ask(h.Key)}, out)
	require.True(e, err != nil || out[0].Err != nil, "claim of a record that cannot be decoded was answered %v", out[0].State)
	for _, s := range outcomes {
		err := e.finish(h, s)
		require.Error(e, err, "Finish(%v) on a record that cannot be decoded", s)
		require.NotErrorIs(e, err, dedup.ErrSuperseded)
		require.NotErrorIs(e, err, dedup.ErrRecordLost)
	}
	err = e.extend(h)
	require.Error(e, err, "Extend of a record that cannot be decoded")
	require.NotErrorIs(e, err, dedup.ErrSuperseded)
	require.NotErrorIs(e, err, dedup.ErrRecordLost)
}

// brief is a claim of k whose lease and retention run out with pass.
func (e *env) brief(k dedup.Key) dedup.ClaimRequest { return e.briefly(ask(k)) }

func (e *env) briefly(q dedup.ClaimRequest) dedup.ClaimRequest {
	q.Lease, q.Retention = e.conf.Lease, e.conf.Lease
	return q
}

// expires requires that nothing is remembered of k once a brief retention is over.
func (e *env) expires(k dedup.Key) {
	e.Helper()
	e.pass()
	q := ask(k)
	q.MustExist = true
	require.Equal(e, dedup.Absent, e.claim(q).State, "the record outlived its retention")
}

var rule09 = []testCase{
	{"AskersRetentionDoesNotMoveTheDeadline", func(e *env) {
		for _, retention := range []time.Duration{keep / 4, keep, keep * 4} {
			live, over := ask(newKey()), ask(newKey())
			e.acquire(live)
			e.lapsed(over)
			q := ask(live.Key)
			q.Retention = retention
			v := e.refuse(q, dedup.InProgress)
			require.InDelta(e, long.Seconds(), v.Left.Seconds(), long.Seconds()/4, "left of the lease, for an asker with retention %v", retention)
			q = ask(over.Key)
			q.Retention = retention
			e.acquire(q)
		}
	}},
	{"AskersLeaseDoesNotMoveTheDeadline", func(e *env) {
		live, over := ask(newKey()), ask(newKey())
		e.acquire(live)
		e.lapsed(over)
		q := ask(live.Key)
		q.Lease = e.conf.Lease
		v := e.refuse(q, dedup.InProgress)
		require.InDelta(e, long.Seconds(), v.Left.Seconds(), long.Seconds()/4, "left of the lease, for an asker with a shorter one")
		q = ask(over.Key)
		q.Lease = 10 * long
		e.acquire(q)
	}},
	{"StoresClockEndsTheLease", func(e *env) {
		q := ask(newKey())
		q.Lease = e.conf.Lease
		e.acquire(q)
		e.pass()
		out := make([]dedup.Verdict, 1) // through a Store that never saw the claim made
		require.NoError(e, e.other.Claim(e.ctx, []dedup.ClaimRequest{ask(q.Key)}, out))
		require.Equal(e, dedup.Acquired, out[0].State, "claim after the store's clock passed the deadline")
	}},
	{"BeatMovesTheDeadline", func(e *env) {
		q := ask(newKey())
		q.Lease = e.conf.Lease
		h := e.acquire(q)
		h.Lease = long
		require.NoError(e, e.extend(h))
		e.pass()
		e.refuse(ask(q.Key), dedup.InProgress)
		e.letLapse(h)
		e.acquire(ask(q.Key))
	}},
	{"AskingMovesNothing", func(e *env) {
		q := ask(newKey())
		e.acquire(q)
		e.unchanged(q.Key, func() {
			for range 3 {
				e.refuse(ask(q.Key), dedup.InProgress)
			}
		})
		left := e.refuse(ask(q.Key), dedup.InProgress).Left
		for range 2 { // a lease that is begun anew by an ask looks well to that ask, and to the next one
			left = e.shrinks(q.Key, dedup.InProgress, left)
		}
	}},
}

// shrinks lets the clock go on and requires that, of the time left of what k is answered, as much is gone: whoever
// asked before it did not move its end. It returns what is left.
func (e *env) shrinks(k dedup.Key, s dedup.State, left time.Duration) time.Duration {
	e.Helper()
	e.pass()
	now := e.refuse(ask(k), s).Left
	require.LessOrEqual(e, now, left-e.conf.Lease/2, "time left after %v went by, of %v", e.conf.Lease, left)
	return now
}

var rule11 = []testCase{
	{"KeyIsNewAgain", func(e *env) {
		e.each(append([]dedup.State{dedup.InProgress}, outcomes...), func(e *env, s dedup.State) {
			old := e.oldLife(s)
			q := ask(old.Key)
			q.Fingerprint = dedup.FingerprintOf([]byte("new content"))
			v := e.claim(q)
			require.Equal(e, dedup.Verdict{State: dedup.Acquired, Epoch: v.Epoch, Attempt: 1}, v, "first claim of the new life")
		})
	}},
	{"LateOwnerCannotTouchTheNewLife", func(e *env) {
		e.each(append([]dedup.State{dedup.InProgress}, outcomes...), func(e *env, s dedup.State) {
			old := e.oldLife(s)
			h := e.acquire(ask(old.Key))
			e.refusedAll(old)
			require.NoError(e, e.extend(h))
			require.NoError(e, e.finish(h, dedup.Done))
			e.refusedAll(old)
			require.Equal(e, []byte("result"), e.refuse(ask(old.Key), dedup.Done).Result)
		})
	}},
	{"NotBeforeRetentionIsOver", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Failed}, func(e *env, s dedup.State) {
			h := e.finished(newKey(), s)
			e.pass()
			v := e.refuse(ask(h.Key), s)
			require.Greater(e, v.Left, keep/2, "time left of the retention")
			require.LessOrEqual(e, v.Left, keep, "time left of the retention")
		})
	}},
	{"AskingDoesNotProlongIt", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Failed}, func(e *env, s dedup.State) {
			lasting, ending := e.finished(newKey(), s), e.acquire(ask(newKey()))
			ending.Retention = 2 * e.conf.Lease
			require.NoError(e, e.finish(ending, s))
			again := func() dedup.State { // which makes nothing new of it, however late it is
				q := ask(ending.Key)
				q.Retention, q.MustExist = ending.Retention, true
				return e.claim(q).State
			}
			left := e.refuse(ask(lasting.Key), s).Left
			for range 2 {
				left = e.shrinks(lasting.Key, s, left)
				again()
			}
			require.Equal(e, dedup.Absent, again(), "what was asked for all the time is still there, its retention being over")
		})
	}},
}

// oldLife is a claim that failed once and crashed once, whose record then ended as s and whose
// retention is over.
func (e *env) oldLife(s dedup.State) dedup.Held {
	e.Helper()
	k := newKey()
	e.finished(k, dedup.Retryable)
	e.lapsed(ask(k))
	q := ask(k)
	q.Redrive, q.Fingerprint = 1, dedup.FingerprintOf([]byte("old content"))
	h := e.acquire(q)
	h.ClaimRequest = e.briefly(h.ClaimRequest)
	if s == dedup.InProgress {
		require.NoError(e, e.extend(h))
	} else {
		require.NoError(e, e.finish(h, s))
	}
	e.pass()
	return h
}
