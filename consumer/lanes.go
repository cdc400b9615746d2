package consumer

import (
	"slices"
	"time"
)

// follow makes t wait for a twin that is on its way in this process, if there is one. It keeps
// its place in its lane until the twin has run. Lanes cannot wait for each other through that:
// a leader arrived before its followers, and so did everything before it in its lane.
func (e *engine) follow(t *task) bool {
	if t.unnamed {
		return false
	}
	k := t.twin()
	leader, ok := e.twins[k]
	if !ok {
		e.twins[k] = t
		return false
	}
	t.state, t.leader = following, leader
	leader.followers = append(leader.followers, t)
	return true
}

// pass lets the lanes of t and of its followers go on: t has run, or will not run any more.
func (e *engine) pass(t *task) {
	t.passed = true
	e.offLane(t)
	for _, f := range t.followers {
		e.offLane(f)
	}
}

func (e *engine) enter(t *task, l *lane) {
	t.lane = l
	if l.q == nil {
		l.q = l.room[:0]
	}
	l.q = append(l.q, t)
	switch {
	case t.state == following:
	case t.unnamed:
		e.setReady(t, time.Now())
	case l.held:
		t.state = parked
		return
	default:
		e.enqueue(t)
	}
	if l.head() == t {
		e.advance(l)
	}
}

// offLane takes t out of its lane, so that the lane goes on without it.
func (e *engine) offLane(t *task) {
	l := t.lane
	t.lane = nil
	if l != nil && l != &t.own {
		e.advance(l)
	}
}

// ownLane gives t a lane of its own: its place in the old one is passed.
func (e *engine) ownLane(t *task) {
	if t.lane != nil {
		return
	}
	l := &t.own
	l.q, l.busy, l.listed, l.held = append(l.room[:0], t), false, false, false
	t.lane = l
}

// advance looks at the head of l anew.
func (e *engine) advance(l *lane) {
	h := l.head()
	if h == nil {
		if l.name != "" && !l.busy && e.lanes[l.name] == l {
			delete(e.lanes, l.name)
		}
		return
	}
	switch h.state {
	case ready:
		e.unhold(l)
		if !l.busy && !l.listed {
			l.listed = true
			e.runnable = append(e.runnable, l)
		}
	case parked:
		if h.suspect {
			e.waitTurn(h)
			return
		}
		e.unhold(l)
	case following:
		e.hold(l)
	case waiting:
		e.hold(l)
		if !h.wakeAt.IsZero() && h.pause > 0 { // found in progress while others were before it
			e.timers.set(h, time.Now())
		}
	}
}

// hold stops claims behind a head that waits: two lanes could otherwise wait for each other's
// followers for ever, since beats keep both alive.
func (e *engine) hold(l *lane) {
	if l.held {
		return
	}
	l.held = true
	for _, t := range l.q[1:] {
		if t.lane != l {
			continue
		}
		switch t.state {
		case queued:
			t.state = parked
		case ready:
			if !t.unnamed { // that one holds no claim
				e.release(t, thenPark)
			}
		}
	}
	l.asked = slices.DeleteFunc(l.asked, func(t *task) bool { return t.state != queued })
}

// unhold lets the tasks behind the head be claimed again.
func (e *engine) unhold(l *lane) {
	if !l.held && (len(l.q) == 0 || l.q[0].state != parked) {
		return
	}
	l.held = false
	for _, t := range l.q {
		if t.lane == l && t.state == parked && !t.suspect {
			e.enqueue(t)
		}
	}
}
