package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
)

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
		if unsaid, ok := e.quiet.allow("record"); ok {
			e.log.Error("consumer: record cannot be used; the message waits", "scope", t.Scope, "id", short(t.work.ID), "err", c.Err, "and_more", unsaid)
		}
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
	case t.cutOffBy != nil:
		t.result, t.cutOff, t.cutOffBy = fmt.Errorf("consumer: %d transactions in a row were cut off: %w", t.cutOff, t.cutOffBy), 0, nil
		e.failed(t)
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
		e.ask.count(t)
	}
}

// unready ends what setReady began.
func (e *engine) unready(t *task) {
	if t.state == ready && !t.unnamed {
		e.ask.uncount(t)
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
