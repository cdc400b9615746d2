package consumer

import (
	"time"
)

// drainGrace is what handlers get to return once their contexts have ended.
const drainGrace = 2 * time.Second

// watchSession has the loop told when the session behind t is gone.
func (e *engine) watchSession(t *task) {
	lost := t.Lost
	if lost == nil || e.sessions[lost] {
		return
	}
	e.sessions[lost] = true
	e.calls.Go(func() {
		select {
		case <-lost:
			e.inbox.post(func() { e.sessionLost(lost) })
		case <-e.ctx.Done():
		}
	})
}

// sessionLost lets go of what was not begun. What runs keeps its lease and may finish: the
// delivery's next owner waits on its record.
func (e *engine) sessionLost(lost <-chan struct{}) {
	delete(e.sessions, lost)
	e.live.each(func(t *task) {
		if t.Lost == lost {
			e.letGo(t)
		}
	})
}

// letGo gives t back unless something is under way with it; then that asks for itself.
func (e *engine) letGo(t *task) {
	switch t.state {
	case queued, parked, waiting:
		e.timers.drop(t)
		e.giveBack(t)
	case ready:
		e.release(t, thenGiveBack)
	}
}

// drain stops everything that was not begun.
func (e *engine) drain(now time.Time) {
	if e.draining {
		return
	}
	e.draining = true
	e.drainedAt = now.Add(e.c.opts.DrainTimeout)
	e.exclusive.Store(true)
	e.stopReceiving()
	e.gate.open()
	e.log.Info("consumer: draining", "scope", e.plan.Scope, "running", len(e.stints), "held", e.live.n-len(e.stints), "for at most", e.c.opts.DrainTimeout)
	e.live.each(e.letGo)
}

// drained reports that nothing is left to wait for, or that the time is over.
func (e *engine) drained(now time.Time) bool {
	switch {
	case e.live.n == 0 && e.received:
		return true
	case now.Before(e.drainedAt):
		return false
	case e.handling.Err() == nil:
		e.log.Warn("consumer: drain timeout is over; contexts of running handlers end now", "scope", e.plan.Scope, "running", len(e.stints))
		e.cancelHandling(ErrDrained)
		e.drainedAt = now.Add(drainGrace)
		return false
	}
	e.log.Error("consumer: drain is given up; what is left comes again when its leases are over", "scope", e.plan.Scope, "left", e.live.n)
	return true
}

// fail ends Run with err, after a drain.
func (e *engine) fail(err error) {
	if e.fatal == nil {
		e.fatal = err
	}
	e.drain(time.Now())
}

// publishStats makes the loop's counters visible.
func (e *engine) publishStats() {
	s := e.stats
	s.Running, s.Zombies = int64(len(e.stints)), int64(e.zombies)
	s.Waiting = s.Received - s.Done - s.Duplicates - s.Retried - s.DeadLettered - s.GivenBack - s.Running
	s.Receiving = !e.draining && e.downSince.IsZero()
	e.c.mu.Lock()
	e.c.stats = s
	e.c.mu.Unlock()
}
