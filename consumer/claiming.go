package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
)

// startClaims asks the store for the tasks at the front of claimQ.
func (e *engine) startClaims(now time.Time) {
	for e.claims < storeCalls && !now.Before(e.claimAfter) && !e.draining {
		var batch []*task
		if n := min(claimBatch, e.ahead-e.held); n > 0 {
			batch = e.nextClaims(n, now)
		} else if len(e.runnable) == 0 && len(e.stints) < e.policy.Concurrency {
			batch = e.nextHeads(now)
		}
		if len(batch) == 0 {
			return
		}
		e.claims++
		e.calls.Go(func() { e.claimCall(batch) })
	}
}

// nextClaims takes up to n tasks out of claimQ.
func (e *engine) nextClaims(n int, now time.Time) []*task {
	batch := make([]*task, 0, min(n, len(e.claimQ)))
	i := 0
	for ; i < len(e.claimQ) && len(batch) < n; i++ {
		t := e.claimQ[i]
		e.claimQ[i] = nil
		if t.state == queued && e.mayClaim(t, now) { // else it was parked, or left, since
			batch = append(batch, t)
		}
	}
	e.claimQ = e.claimQ[i:]
	if len(e.claimQ) == 0 {
		e.claimQ = nil
	}
	return batch
}

// nextHeads takes the heads of lanes out of claimQ, whatever is held already: what stands ready
// behind them may take all the room there is, and has to wait for them.
func (e *engine) nextHeads(now time.Time) (batch []*task) {
	for _, t := range e.claimQ {
		if len(batch) == claimBatch {
			break
		}
		if t.state == queued && t.lane.head() == t && e.mayClaim(t, now) {
			batch = append(batch, t) // its place in claimQ is passed over, as it is no longer queued
		}
	}
	return batch
}

// mayClaim takes t for a claim call, unless it is too late for it.
func (e *engine) mayClaim(t *task, now time.Time) bool {
	switch {
	case t.isLost():
		e.giveBack(t)
	case t.overdue(now, e.longest()):
		e.retryLater(t, overdueDelay, dedup.ErrInProgress)
	default:
		t.state = claiming
		e.held++ // as if acquired, until the answer is there
		return true
	}
	return false
}

// claimCall asks for a batch, and acknowledges at once what needs no more thought.
func (e *engine) claimCall(batch []*task) {
	works := make([]dedup.Work, len(batch))
	for i, t := range batch {
		works[i] = t.work
	}
	claims := make([]*dedup.Claim, len(batch))
	err := e.c.guard.ClaimBatch(e.ctx, works, claims)
	if err == nil {
		for i, t := range batch {
			t.claim = claims[i]
			if s := t.claim.State; t.claim.Err == nil && (s == dedup.Done || s == dedup.Failed) {
				t.settled = true
				t.answer = t.Ack(e.ctx)
			}
		}
	}
	e.inbox.post(func() { e.claimed(batch, err) })
}

func (e *engine) claimed(batch []*task, err error) {
	e.claims--
	e.held -= len(batch)
	now := time.Now()
	if err != nil {
		e.storeDown(now, err)
		e.claimAfter = now.Add(e.storePause)
		e.claimQ = append(batch, e.claimQ...)
		for _, t := range batch {
			if t.state = queued; e.draining { // nothing is claimed any more
				e.giveBack(t)
			}
		}
		return
	}
	e.storeUp()
	full := e.held+len(batch) >= e.ahead
	for _, t := range batch {
		e.answered(t, now)
	}
	if full && len(e.stints) < e.policy.Concurrency && e.ahead < maxAhead {
		e.ahead *= 2 // workers had nothing to do while deliveries were waiting
	}
}

// answered obeys the store's answer to one claim: the first truth table of the package doc.
func (e *engine) answered(t *task, now time.Time) {
	c := t.claim
	if e.turn == t && c.State != dedup.Acquired {
		e.nextTurn()
	}
	if c.Err != nil || c.State != dedup.InProgress {
		e.endHold(t)
	}
	if c.Err != nil {
		e.log.Error("consumer: record cannot be used; the message waits", "scope", t.Scope, "id", short(t.work.ID), "err", c.Err)
		e.askLater(t, now, time.Second)
		return
	}
	switch c.State {
	case dedup.Acquired:
		e.acquired(t, now)
	case dedup.Done:
		e.settledWith(t, "duplicate", &e.stats.Duplicates)
		e.leave(t, true)
	case dedup.Failed:
		e.settledWith(t, "dead_again", &e.stats.Duplicates)
		e.leave(t, true)
	case dedup.Condemned:
		t.outcome = dedup.Outcome{Claim: c, Cause: errors.New(c.LastError)}
		e.bury(t)
	case dedup.Mismatch:
		e.rekey(t)
	case dedup.InProgress:
		e.inProgress(t, now)
	default: // the token of a lost reply, which had ended meanwhile: ask anew
		e.claimAnew(t)
	}
}

// acquired decides whether t may be held, and run.
func (e *engine) acquired(t *task, now time.Time) {
	c := t.claim
	t.pause = 0
	head := t.lane.head() == t
	switch {
	case t.isLost() || e.draining:
		e.release(t, thenGiveBack)
	case t.rekeyed && c.Redrive == 0:
		e.finish(t, dedup.Condemned, thenBury, fmt.Errorf("%w as %q: run under its ID and content only if redriven", dedup.ErrMismatch, short(t.Message.ID)))
	case c.Crashes > e.policy.MaxCrashes:
		e.finish(t, dedup.Condemned, thenBury, fmt.Errorf("consumer: %d owners in a row vanished while they held it (MaxCrashes %d)%s", c.Crashes, e.policy.MaxCrashes, lastError(c)))
	case c.Attempt > e.policy.MaxAttempts:
		e.finish(t, dedup.Condemned, thenBury, fmt.Errorf("consumer: %d attempts failed (MaxAttempts %d)%s", c.Attempt-1, e.policy.MaxAttempts, lastError(c)))
	case c.Crashes > 0 && !(head && (e.turn == nil || e.turn == t)):
		t.suspect = true
		e.release(t, thenPark)
	case !head && t.lane.held:
		e.release(t, thenPark)
	default:
		if t.suspect = c.Crashes > 0; t.suspect {
			e.turn = t
			e.exclusive.Store(true)
		} else if e.turn == t {
			e.nextTurn()
		}
		e.setReady(t, now)
		if head {
			e.advance(t.lane)
		}
	}
}

func lastError(c *dedup.Claim) string {
	if c.LastError == "" {
		return ""
	}
	return "; last error: " + c.LastError
}

func (e *engine) setReady(t *task, now time.Time) {
	t.state, t.readyAt = ready, now
	if !t.unnamed {
		e.held++
	}
}

// unready ends what setReady began.
func (e *engine) unready(t *task) {
	if t.state == ready && !t.unnamed {
		e.held--
	}
}

// inProgress holds t in memory and asks again: another owner's work is not a duplicate. Where
// the broker can postpone it, it is held for Plan.Hold, and in a quarter of the slots: what
// the broker lets this process have unsettled is for messages that can run.
func (e *engine) inProgress(t *task, now time.Time) {
	full := t.heldSince.IsZero() && e.holding >= max(e.policy.Concurrency/4, 1)
	if e.plan.Hold >= 0 && (full || !t.heldSince.IsZero() && now.Sub(t.heldSince) >= e.plan.Hold) {
		e.retryLater(t, max(min(t.claim.Left, e.c.guard.Options().Lease), time.Second), dedup.ErrInProgress)
		return
	}
	if t.heldSince.IsZero() {
		t.heldSince = now
		e.holding++
	}
	t.pause = min(max(2*t.pause, 50*time.Millisecond), time.Second)
	e.askLater(t, now, min(t.pause, max(t.claim.Left, 10*time.Millisecond)))
}

func (e *engine) endHold(t *task) {
	if !t.heldSince.IsZero() {
		t.heldSince = time.Time{}
		e.holding--
	}
}

// askLater has t claimed again after d. Not at the head of its lane, it waits for that first.
func (e *engine) askLater(t *task, now time.Time, d time.Duration) {
	if e.draining || t.isLost() {
		e.giveBack(t)
		return
	}
	t.claim = nil
	e.wait(t, now.Add(d))
}

// askAgain has t claimed again now: its word did not count.
func (e *engine) askAgain(t *task) {
	t.claim, t.outcome, t.then = nil, dedup.Outcome{}, 0
	if e.turn == t {
		e.nextTurn()
	}
	if e.draining || t.isLost() {
		e.giveBack(t)
		return
	}
	e.ownLane(t)
	e.claimAnew(t)
}

// rekey gives a message whose ID stands for other content a record of its own, under ID and
// content. There it is dead-lettered once, or, if an operator redrove it, run.
func (e *engine) rekey(t *task) {
	if e.twins[t.twin()] == t {
		delete(e.twins, t.twin())
	}
	t.rekeyed = true
	t.work.ID += "#" + hexPrint(t.work.Fingerprint)
	t.work.Fingerprint = dedup.Fingerprint{}
	if !e.follow(t) {
		e.claimAnew(t)
		return
	}
	e.offLane(t) // its leader may have arrived after it, so no lane may wait for it
}

// release gives t's claim back, uncounted.
func (e *engine) release(t *task, then next) {
	e.finish(t, dedup.Released, then, nil)
}

// waitTurn puts a suspect at the head of its lane into line.
func (e *engine) waitTurn(t *task) {
	if e.draining || t.isLost() {
		e.giveBack(t)
		return
	}
	t.state, t.wakeAt = waiting, time.Time{}
	e.hold(t.lane)
	e.suspects = append(e.suspects, t)
	if e.turn == nil {
		e.nextTurn()
	}
}

// nextTurn ends a turn and lets the next suspect in line be asked for.
func (e *engine) nextTurn() {
	e.turn = nil
	for len(e.suspects) > 0 {
		t := e.suspects[0]
		e.suspects[0] = nil
		e.suspects = e.suspects[1:]
		if t.state == waiting && t.suspect && t.wakeAt.IsZero() {
			e.turn = t
			e.enqueue(t)
			break
		}
	}
	e.exclusive.Store(e.draining)
}

// short is id as a log line can hold it.
func short(id string) string {
	if len(id) > 128 {
		return id[:128] + "…"
	}
	return id
}
