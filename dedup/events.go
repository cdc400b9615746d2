package dedup

import "time"

// Event is one thing that happened. A metrics exporter needs no list of names: count N
// under Name with labels Scope and Cause, and record Took where it is not zero.
//
//	claim      cause: acquired, retry, takeover, duplicate, in_progress, failed, condemned, mismatch, absent, unprotected, fault
//	finish     cause: done, retryable, failed, condemned, released, superseded, late, record_lost, unprotected, fault,
//	           unknown (DoInTx: whether its transaction committed)
//	store      cause: claim, extend, finish; Took, Err     (one per round trip; N = batch size)
//	lease_lost
//	record_lost (by a heartbeat that made the record anew)
//	receive    (consumer)
//	handle     (consumer) cause: ok, error, timeout, cancelled; Took, Err
//	settle     (consumer) cause: ack, dead_letter, retry, give_back; or, acknowledged without running: duplicate (done before: the
//	           broker's copy or the producer's, which look alike), own_batch (copy of one that was on its way in this process),
//	           dead_again (failed for good before), redrive_elsewhere (redriven for another group). Err: the broker did not take it
//	request    (httpdedup) cause: remembered, replayed, not_remembered, answer_not_kept, unprotected, no_key, superseded, unsettled, or the
//	           reason of a problem that it answered: in-progress, key-reused, …
//	relay      (outbox) cause: sent, failed, parked, superseded, outage, swept; Took, Err
type Event struct {
	Name, Scope, Cause string
	N                  int
	Took               time.Duration
	Err                error
}

// Emit hands e to Options.Observe, for packages built on a Guard.
func (g *Guard) Emit(e Event) {
	if g.opts.Observe != nil {
		g.opts.Observe(e)
	}
}

// tally sums events of one batch, which nearly always differ in cause only.
type tally struct {
	name string
	sums []Event
}

func (t *tally) add(scope, cause string) {
	for i := range t.sums {
		if t.sums[i].Cause == cause && t.sums[i].Scope == scope {
			t.sums[i].N++
			return
		}
	}
	t.sums = append(t.sums, Event{Name: t.name, Scope: scope, Cause: cause, N: 1})
}

func (t *tally) emit(g *Guard) {
	for _, e := range t.sums {
		g.Emit(e)
	}
}

func claimCause(v *Verdict) string {
	switch v.State {
	case Acquired:
		switch {
		case v.Crashes > 0:
			return "takeover"
		case v.Attempt > 1:
			return "retry"
		}
		return "acquired"
	case InProgress:
		return "in_progress"
	case Done:
		return "duplicate"
	case Failed, Condemned, Mismatch, Absent:
		return v.State.String()
	default:
		return "fault"
	}
}
