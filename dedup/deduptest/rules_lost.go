package deduptest

import (
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

// unknownHeld is a claim that its owner holds and of which the store knows nothing, as after a
// flush: a request carries all of a claim, so no record has to be destroyed for it.
func (e *env) unknownHeld() dedup.Held {
	e.Helper()
	probe := e.acquire(ask(newKey())) // an epoch as the store gives them now
	h := dedup.Held{ClaimRequest: ask(newKey()), Epoch: probe.Epoch, Attempt: 3, Crashes: 2, LastError: "the attempt before"}
	h.Redrive, h.Fingerprint = 2, dedup.FingerprintOf([]byte("content"))
	return h
}

var rule05 = []testCase{
	{"ExtendMakesTheClaimAgain", func(e *env) {
		h := e.unknownHeld()
		e.recordLost(e.extend(h), "Extend of a missing record")
		require.NoError(e, e.extend(h), "Extend once the record is there again")
		e.refuse(ask(h.Key), dedup.InProgress)
		twin := ask(h.Key)
		twin.Fingerprint = dedup.FingerprintOf([]byte("twin"))
		e.refuse(twin, dedup.Mismatch)
		again := e.claim(h.ClaimRequest)
		require.Equal(e, dedup.Verdict{
			State: dedup.Acquired, Epoch: h.Epoch, Attempt: 3, Crashes: 2, Redrive: 2, LastError: "the attempt before",
		}, again, "the claim as it was")
		require.NoError(e, e.finish(h, dedup.Done))
	}},
	{"ExtendAloneMakesThatToo", func(e *env) {
		h := e.unknownHeld()
		h.Lease = e.conf.Lease
		e.recordLost(e.extendAs(dedup.ExtendRequest{Held: h, Alone: true}), "Extend of a missing record")
		e.pass()
		require.Equal(e, 3, e.claim(ask(h.Key)).Crashes, "the crash of one who ran alone")
	}},
	{"ExtendMakesACondemnedRecordAgain", func(e *env) {
		h := e.unknownHeld()
		h.Condemned, h.LastError = true, "reason"
		e.recordLost(e.extend(h), "Extend of a missing record")
		e.refuse(ask(h.Key), dedup.InProgress)
		e.letLapse(h)
		require.Equal(e, "reason", e.take(ask(h.Key), dedup.Condemned).LastError)
	}},
	{"FinishIsWritten", func(e *env) {
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.unknownHeld()
			e.recordLost(e.finish(h, s), "Finish of a missing record")
			e.finishedAs(h, s)
		})
	}},
	{"FinishOfACondemnedClaim", func(e *env) {
		h := e.unknownHeld()
		h.Condemned, h.LastError = true, "reason"
		e.recordLost(e.finish(h, dedup.Failed), "Failed on a missing record")
		e.refuse(ask(h.Key), dedup.Failed)

		h = e.unknownHeld()
		h.Condemned, h.LastError = true, "reason"
		e.recordLost(e.finish(h, dedup.Released), "Released on a missing record")
		require.Equal(e, "reason", e.take(ask(h.Key), dedup.Condemned).LastError)
	}},
	{"ForbiddenFinishOfACondemnedClaimWritesNothing", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Retryable}, func(e *env, s dedup.State) {
			h := e.unknownHeld()
			h.Condemned = true
			e.superseded(e.finish(h, s), "Finish(%v) of a condemned claim whose record is missing", s)
			q := ask(h.Key)
			q.MustExist = true
			e.refuse(q, dedup.Absent)
		})
	}},
	{"RecordOfALowerEpochIsOverwritten", func(e *env) {
		states := []dedup.State{dedup.InProgress, dedup.Retryable, dedup.Released, dedup.Failed, dedup.Condemned}
		e.each(states, func(e *env, was dedup.State) {
			for _, s := range outcomes {
				h := e.ahead(was)
				e.recordLost(e.finish(h, s), "Finish(%v) on a record that went back to %v", s, was)
				e.finishedAs(h, s)
			}
			h := e.ahead(was)
			e.recordLost(e.extend(h), "Extend of a record that went back to %v", was)
			require.NoError(e, e.extend(h))
			e.refuse(ask(h.Key), dedup.InProgress)
			require.Equal(e, h.Epoch, e.claim(h.ClaimRequest).Epoch)
		})
	}},
	{"DoneOfALowerEpochStands", func(e *env) {
		h := e.ahead(dedup.Done)
		e.refusedAll(h)
		require.Equal(e, []byte("result"), e.refuse(ask(h.Key), dedup.Done).Result)
	}},
	{"RecordOfAHigherEpochSupersedes", func(e *env) {
		q := ask(newKey())
		old := e.lapsed(q)
		next := e.acquire(ask(q.Key))
		for range 2 {
			e.refusedAll(old)
			require.NoError(e, e.extend(next))
		}
		require.NoError(e, e.finish(next, dedup.Retryable))
		e.refusedAll(old)
	}},
}

// ahead is a claim of a key whose record went back to an earlier one, which is as given.
func (e *env) ahead(was dedup.State) dedup.Held {
	e.Helper()
	q := ask(newKey())
	h := e.acquire(q)
	if was != dedup.InProgress {
		require.NoError(e, e.finish(h, was))
	}
	h.Owner = newOwner()
	h.Epoch += uint64(time.Hour.Milliseconds())
	h.Attempt, h.Crashes, h.Redrive = 3, 2, 2
	return h
}

// finishedAs requires that the record of h says s, as h knows it, to whoever asks.
func (e *env) finishedAs(h dedup.Held, s dedup.State) {
	e.Helper()
	v := e.claim(ask(h.Key))
	require.Equal(e, h.Redrive, v.Redrive, "redrive number of a record that was written anew")
	switch s {
	case dedup.Done:
		require.Equal(e, dedup.Done, v.State)
		require.Equal(e, []byte("result"), v.Result)
	case dedup.Failed:
		require.Equal(e, dedup.Failed, v.State)
		require.Equal(e, "reason", v.LastError)
	case dedup.Condemned:
		require.Equal(e, dedup.InProgress, v.State)
		h.Condemned, h.LastError = true, "reason"
		require.NoError(e, e.finish(h, dedup.Released))
		require.Equal(e, "reason", e.take(ask(h.Key), dedup.Condemned).LastError)
	case dedup.Retryable:
		require.Equal(e, dedup.Acquired, v.State)
		require.Equal(e, []int{h.Attempt + 1, 0}, []int{v.Attempt, v.Crashes}, "attempt and crashes")
		require.Greater(e, v.Epoch, h.Epoch)
	case dedup.Released:
		require.Equal(e, dedup.Acquired, v.State)
		require.Equal(e, []int{h.Attempt, h.Crashes}, []int{v.Attempt, v.Crashes}, "attempt and crashes")
		require.Greater(e, v.Epoch, h.Epoch)
	}
}
