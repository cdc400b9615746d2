package consumer

import (
	"errors"
	"time"

	"github.com/idemq/idemq/dedup"
)

// finish has the store take an outcome for t, and then does what follows.
func (e *engine) finish(t *task, state dedup.State, then next, cause error) {
	e.unready(t)
	t.state, t.then, t.answer, t.settled = ending, then, nil, false
	t.outcome = dedup.Outcome{Claim: t.claim, State: state, Cause: cause}
	switch {
	case t.claim != nil:
		e.outs = append(e.outs, t)
	case then == thenAck || then == thenAckDead: // unnamed: there is no record, only the broker
		e.calls.Go(func() {
			t.settled, t.answer = true, t.Ack(e.ctx)
			e.inbox.post(func() { e.conclude(t) })
		})
	default:
		e.conclude(t)
	}
}

// startFinishes writes the gathered outcomes. A second call at once must be worth its round trip.
func (e *engine) startFinishes(now time.Time) {
	for len(e.outs) > 0 && e.finishes < storeCalls && !now.Before(e.finishAfter) {
		if e.finishes > 0 && len(e.outs) < finishBatch/8 {
			return
		}
		n := min(len(e.outs), finishBatch)
		batch := e.outs[:n:n] // with no room behind it: that is the next call's
		if e.outs = e.outs[len(batch):]; len(e.outs) == 0 {
			e.outs = nil
		}
		e.finishes++
		e.calls.Go(func() { e.finishCall(batch) })
	}
}

// finishCall writes a batch and, for what is decided by that, tells the broker.
func (e *engine) finishCall(batch []*task) {
	outs, errs := make([]dedup.Outcome, len(batch)), make([]error, len(batch))
	for i, t := range batch {
		outs[i] = t.outcome
	}
	err := e.c.guard.FinishBatch(e.ctx, outs, errs)
	for i, t := range batch {
		if t.answer = errs[i]; err != nil {
			continue
		}
		switch t.then {
		case thenAck, thenAckDead:
			if t.answer == nil {
				t.settled, t.answer = true, t.Ack(e.ctx)
			}
		case thenGiveBack:
			t.settled, t.answer = true, t.GiveBack(e.ctx)
		}
	}
	e.inbox.post(func() { e.finished(batch, err) })
}

func (e *engine) finished(batch []*task, err error) {
	e.finishes--
	if err != nil {
		now := time.Now()
		e.storeDown(now, err)
		e.finishAfter = now.Add(e.storePause)
		e.outs = append(batch, e.outs...) // without an answer there is no ack
		return
	}
	e.storeUp()
	for _, t := range batch {
		e.conclude(t)
	}
}

// conclude does what follows an outcome that the store has answered.
func (e *engine) conclude(t *task) {
	if !t.settled && t.answer != nil {
		switch {
		case !errors.Is(t.answer, dedup.ErrSuperseded): // this record's own fault
			if unsaid, ok := e.quiet.allow("outcome"); ok {
				e.log.Error("consumer: outcome cannot be written, will try again", "scope", t.Scope, "id", short(t.work.ID), "outcome", t.outcome.State, "err", t.answer, "and_more", unsaid)
			}
			e.timers.set(t, time.Now().Add(time.Second))
			e.standAside(t)
			return
		case t.then != thenPark && t.then != thenGiveBack:
			e.askAgain(t) // never act on that: the record decides
			return
		}
	}
	if e.turn == t {
		e.nextTurn()
	}
	switch t.then {
	case thenAck:
		e.settledWith(t, "ack", &e.stats.Done)
		e.leave(t, true)
	case thenAckDead:
		e.settledWith(t, "dead_letter", &e.stats.DeadLettered)
		e.leave(t, true)
	case thenRetry:
		t.suspect = false
		t.claim = nil
		e.again(t)
	case thenBury:
		e.bury(t)
	case thenPark:
		e.park(t)
	case thenGiveBack:
		e.giveBack(t)
	}
}

// standAside lets everybody else go on while t's record, by itself, takes no outcome: that may last.
// Others want what is claimed behind t, and a suspect's turn would keep every handler from starting.
// A crash meanwhile may be counted as the suspect's own, which costs it one of MaxCrashes.
func (e *engine) standAside(t *task) {
	if t.lane != nil && t.lane.head() == t {
		e.hold(t.lane)
	}
	if e.turn == t {
		e.nextTurn()
	}
}

// again brings t back after its delay: from memory where the broker cannot postpone.
func (e *engine) again(t *task) {
	switch {
	case e.draining || t.isLost():
		e.giveBack(t)
	case e.plan.Hold < 0 || t.unnamed:
		e.wait(t, time.Now().Add(t.delay))
	default:
		cause := t.outcome.Cause
		if cause == nil { // it was not run
			cause = dedup.ErrInProgress
		}
		e.retryLater(t, t.delay, cause)
	}
}

// park lets t, released, be asked for when it may be held.
func (e *engine) park(t *task) {
	t.claim = nil
	if e.draining || t.isLost() {
		e.giveBack(t)
		return
	}
	e.ownLane(t)
	switch head := t.lane.head() == t; {
	case head && t.suspect:
		e.waitTurn(t)
	case t.suspect:
		t.state = parked
	default:
		e.claimInTurn(t)
	}
}

// retryLater hands t back to the broker, to come again after d. Its lane goes on, however long
// the broker takes.
func (e *engine) retryLater(t *task, d time.Duration, cause error) {
	if e.plan.Hold < 0 { // this one cannot postpone
		e.handIn(t)
		return
	}
	t.state = ending
	e.offLane(t)
	e.calls.Go(func() {
		err := e.persist(t, "retry", func() error { return t.Retry(e.ctx, d, cause) })
		e.inbox.post(func() {
			if t.answer = err; err != nil {
				e.giveBack(t)
				return
			}
			t.settled = true
			e.settledWith(t, "retry", &e.stats.Retried)
			e.leave(t, false)
		})
	})
}

// handIn gives t back whose deadline is near, where the order is kept: the source then ends the session. Until that is over
// t keeps its place; what comes after it in its lane would run before it, in this session or as the first of the next.
func (e *engine) handIn(t *task) {
	if t.settled { // the deadline is past, and the session still there
		e.giveBack(t)
		return
	}
	if e.turn == t {
		e.nextTurn()
	}
	e.ownLane(t)
	t.state, t.pause = ending, 0
	e.calls.Go(func() {
		err := t.GiveBack(e.ctx)
		e.inbox.post(func() {
			t.settled, t.answer = true, err
			if e.draining || t.isLost() {
				e.giveBack(t)
				return
			}
			t.state = waiting
			e.timers.set(t, t.Deadline)
			if t.lane.head() == t {
				e.hold(t.lane)
			}
		})
	})
}

// bury sends t's dead letter and, once that is confirmed, lets its record say so. Its lane goes on.
func (e *engine) bury(t *task) {
	t.state = ending
	e.pass(t)
	cause, number := t.outcome.Cause, t.Redrive+1
	if t.claim != nil {
		number = t.claim.Redrive + 1
	}
	e.log.Error("consumer: message is given up, and will be dead-lettered", "scope", t.Scope, "id", short(t.Message.ID), "redrive", number, "cause", cause)
	e.calls.Go(func() {
		err := e.persist(t, "dead letter", func() error { return t.DeadLetter(e.ctx, number, cause) })
		e.inbox.post(func() {
			switch {
			case err == nil:
				e.finish(t, dedup.Failed, thenAckDead, cause)
			case e.draining || t.isLost() || t.unnamed:
				e.release(t, thenGiveBack) // its record stays condemned
			default: // its deadline is near
				t.delay = e.policy.backoff(e.policy.MaxAttempts)
				e.release(t, thenRetry)
			}
		})
	})
}

// persist repeats what the broker has to confirm until it does, the session is lost, the
// delivery's deadline is near or the drain is over.
func (e *engine) persist(t *task, what string, do func() error) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := do()
		if err == nil {
			return nil
		}
		if t.overdue(time.Now(), pause) || e.ctx.Err() != nil {
			return err
		}
		if unsaid, ok := e.quiet.allow(what); ok {
			e.log.Warn("consumer: broker did not take a "+what+", will try again", "scope", t.Scope, "id", short(t.Message.ID), "in", pause, "err", err, "and_more", unsaid)
		}
		select {
		case <-time.After(pause):
		case <-t.Lost:
			return err
		case <-e.handling.Done():
			return err
		}
	}
}

// giveBack hands t, which holds no claim, back for others.
func (e *engine) giveBack(t *task) {
	if !t.settled {
		t.state = ending
		e.calls.Go(func() {
			err := t.GiveBack(e.ctx)
			e.inbox.post(func() {
				t.settled, t.answer = true, err
				e.giveBack(t)
			})
		})
		return
	}
	e.settledWith(t, "give_back", &e.stats.GivenBack)
	e.leave(t, false)
}

// ackDuplicates acknowledges deliveries that must not run.
func (e *engine) ackDuplicates(cause string, ts ...*task) {
	for _, t := range ts {
		t.state = ending
	}
	e.calls.Go(func() {
		for _, t := range ts {
			t.answer = t.Ack(e.ctx)
		}
		e.inbox.post(func() {
			for _, t := range ts {
				t.settled = true
				e.settledWith(t, cause, &e.stats.Duplicates)
				e.leave(t, true)
			}
		})
	})
}

// settledWith counts the last word on t.
func (e *engine) settledWith(t *task, cause string, counter *int64) {
	*counter++
	if t.answer != nil && e.ctx.Err() == nil {
		e.log.Warn("consumer: broker did not take the last word; it will bring the message again", "scope", t.Scope, "id", short(t.Message.ID), "word", cause, "err", t.answer)
	}
	if e.c.guard.Options().Observe != nil {
		e.c.guard.Emit(dedup.Event{Name: "settle", Scope: t.Scope, Cause: cause, N: 1, Err: t.answer})
	}
}
