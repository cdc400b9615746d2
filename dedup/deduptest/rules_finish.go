package deduptest

import (
	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

var rule02 = []testCase{
	{"ClaimInProgress", func(e *env) {
		q := ask(newKey())
		first := e.claim(q)
		require.Equal(e, dedup.Acquired, first.State)
		for range 3 {
			require.Equal(e, first, e.claim(q), "the claim's reply was lost and it is repeated")
		}
	}},
	{"ClaimInProgressAfterTheLease", func(e *env) {
		q := ask(newKey())
		q.Lease = e.conf.Lease
		first := e.claim(q)
		e.pass()
		q.Lease = long
		require.Equal(e, first, e.claim(q), "the owner itself asks again after its lease")
		require.NoError(e, e.finish(heldOf(q, first), dedup.Done))
	}},
	{"ClaimCondemned", func(e *env) {
		k := newKey()
		require.NoError(e, e.finish(e.finished(k, dedup.Condemned), dedup.Released))
		q := ask(k)
		first := e.claim(q)
		require.Equal(e, dedup.Condemned, first.State)
		require.Equal(e, first, e.claim(q))

		q = ask(newKey())
		h := e.condemn(e.acquire(q))
		require.Equal(e, h.Epoch, e.refuse(q, dedup.Condemned).Epoch, "by the one who condemned it")
	}},
	{"ClaimFinished", func(e *env) {
		e.each(outcomes, func(e *env, s dedup.State) {
			q := ask(newKey())
			h := e.acquire(q)
			require.NoError(e, e.finish(h, s))
			e.unchanged(q.Key, func() {
				if s != dedup.Condemned { // which is not an end: its owner holds it and is beaten
					require.Equal(e, s, e.claim(q).State, "the owner's claim, repeated after its Finish")
				}
			})
		})
	}},
	{"ClaimOfACondemnedRecordGivenBack", func(e *env) {
		q := ask(newKey())
		h := e.condemn(e.acquire(q))
		require.NoError(e, e.finish(h, dedup.Released))
		e.refuse(q, dedup.Released)
		e.take(ask(q.Key), dedup.Condemned)
	}},
	{"ClaimDoneHasTheResult", func(e *env) {
		q := ask(newKey())
		require.NoError(e, e.finish(e.acquire(q), dedup.Done))
		require.Equal(e, []byte("result"), e.refuse(q, dedup.Done).Result)
	}},
	{"Finish", func(e *env) {
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.finished(newKey(), s)
			e.unchanged(h.Key, func() {
				require.NoError(e, e.finish(h, s), "Finish whose reply was lost")
			})
		})
	}},
	{"FinishAfterTheRecordWasLost", func(e *env) {
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.unknownHeld()
			e.recordLost(e.finish(h, s), "Finish of a missing record")
			require.NoError(e, e.finish(h, s), "the same Finish again")
		})
	}},
	{"FailureCountsOnce", func(e *env) {
		h := e.finished(newKey(), dedup.Retryable)
		require.NoError(e, e.finish(h, dedup.Retryable))
		require.Equal(e, 2, e.claim(ask(h.Key)).Attempt)
	}},
	{"Extend", func(e *env) {
		h := e.acquire(ask(newKey()))
		require.NoError(e, e.extend(h))
		require.NoError(e, e.extend(h))
		require.NoError(e, e.finish(h, dedup.Done))
	}},
}

var rule03 = []testCase{
	{"StrangersAreRefused", func(e *env) {
		h := e.acquire(ask(newKey()))
		e.refusedAll(strangerTo(h))
		require.NoError(e, e.finish(h, dedup.Done))
	}},
	{"FinishedRecordsAreLeftAlone", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released}, func(e *env, was dedup.State) {
			h := e.finished(newKey(), was)
			e.refusedExcept(h, was)
			e.refusedAll(strangerTo(h))
			v := e.claim(ask(h.Key))
			if was == dedup.Retryable || was == dedup.Released {
				require.Equal(e, dedup.Acquired, v.State)
			} else {
				require.Equal(e, was, v.State)
			}
		})
	}},
	{"LateBeatRevivesNothing", func(e *env) {
		e.each([]dedup.State{dedup.Done, dedup.Failed}, func(e *env, s dedup.State) {
			h := e.finished(newKey(), s)
			e.superseded(e.extend(h), "beat after the end")
			e.superseded(e.extendAs(dedup.ExtendRequest{Held: h, Alone: true}), "beat after the end")
			e.refuse(ask(h.Key), s)
		})
		e.each([]dedup.State{dedup.Retryable, dedup.Released}, func(e *env, s dedup.State) {
			h := e.finished(newKey(), s)
			e.superseded(e.extend(h), "beat after the end")
			e.acquire(ask(h.Key))
		})
	}},
	{"FollowedOwnersAreRefused", func(e *env) {
		q := ask(newKey())
		old := e.lapsed(q)
		h := e.acquire(ask(q.Key))
		e.refusedAll(old)
		require.NoError(e, e.extend(h))
		require.NoError(e, e.finish(h, dedup.Done))
		e.refusedAll(old)
	}},
	{"OnlyFailedFinishesCondemned", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		e.unchanged(h.Key, func() {
			e.superseded(e.finish(h, dedup.Done), "Done on a condemned record")
			e.superseded(e.finish(h, dedup.Retryable), "Retryable on a condemned record")
		})
		e.refusedAll(strangerTo(h))
		require.NoError(e, e.extend(h))
		require.NoError(e, e.finish(h, dedup.Failed))
		e.refuse(ask(h.Key), dedup.Failed)
	}},
	{"ReleaseLeavesItCondemned", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		require.NoError(e, e.finish(h, dedup.Released))
		e.unchanged(h.Key, func() {
			e.superseded(e.extend(h), "beat of a condemned record after it was given back")
			e.superseded(e.finish(h, dedup.Failed), "Failed after the condemned record was given back")
			e.superseded(e.finish(h, dedup.Done), "Done after the condemned record was given back")
		})
		next := e.take(ask(h.Key), dedup.Condemned)
		require.Equal(e, "reason", next.LastError)
		e.refusedAll(h)
		require.NoError(e, e.finish(next, dedup.Failed))
	}},
	{"CondemnedIsSticky", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		e.letLapse(h)
		next := e.take(ask(h.Key), dedup.Condemned)
		require.Greater(e, next.Epoch, h.Epoch)
		require.Equal(e, "reason", next.LastError)
		e.refusedAll(h)
		e.superseded(e.finish(next, dedup.Done), "Done by the one who took over a condemned record")
		require.NoError(e, e.finish(next, dedup.Failed))
	}},
}

// strangerTo is a claim of the same key and epoch under a token that the store never saw.
func strangerTo(h dedup.Held) dedup.Held {
	h.Owner = newOwner()
	return h
}

// refusedAll requires that h may neither extend nor finish, and that its trying changes nothing.
func (e *env) refusedAll(h dedup.Held) {
	e.Helper()
	e.refusedExcept(h, 0)
}

func (e *env) refusedExcept(h dedup.Held, allowed dedup.State) {
	e.Helper()
	e.unchanged(h.Key, func() {
		e.Helper()
		e.superseded(e.extend(h), "Extend")
		for _, s := range outcomes {
			if s != allowed {
				e.superseded(e.finish(h, s), "Finish(%v)", s)
			}
		}
	})
}

var rule04 = []testCase{
	{"Finish", func(e *env) {
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.lapsed(ask(newKey()))
			require.NoError(e, e.finish(h, s), "Finish after the lease, with no successor")
			want := s
			if s == dedup.Retryable || s == dedup.Released {
				want = dedup.Acquired
			}
			if s != dedup.Condemned {
				require.Equal(e, want, e.claim(ask(h.Key)).State)
			}
		})
	}},
	{"FinishOfACondemnedRecord", func(e *env) {
		h := e.finished(newKey(), dedup.Condemned)
		e.letLapse(h)
		require.NoError(e, e.finish(h, dedup.Failed), "Failed after the lease, with no successor")
		e.refuse(ask(h.Key), dedup.Failed)
	}},
	{"Extend", func(e *env) {
		h := e.lapsed(ask(newKey()))
		h.Lease = long
		require.NoError(e, e.extend(h), "Extend after the lease, with no successor")
		e.refuse(ask(h.Key), dedup.InProgress)
	}},
	{"AfterTheSuccessorIsGoneToo", func(e *env) {
		q := ask(newKey())
		old := e.lapsed(q)
		require.NoError(e, e.finish(e.acquire(ask(q.Key)), dedup.Released))
		e.refusedAll(old) // it was followed, even though nobody holds the key now
	}},
}
