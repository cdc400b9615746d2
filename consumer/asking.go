package consumer

import (
	"time"

	"github.com/idemq/idemq/dedup"
)

const (
	firstAhead = 32 // how many tasks may stand claimed, to begin with, and at least
	maxAhead   = 4096
	laneAhead  = 8 // of one lane, however many there are

	// aheadFor is for how long a claimed task should stand ready, at most: what is claimed when the
	// process dies is suspect afterwards, and suspects run one by one.
	aheadFor = 100 * time.Millisecond
)

// askers are the lanes with tasks to be claimed, in turn: the backlog of one lane would otherwise
// take all the room there is for claims, and workers of the others stand idle.
type askers struct {
	ring   []*lane
	after  time.Time // no call before: the store is down
	calls  int       // in flight
	held   int       // tasks claimed, or being claimed, and not yet given to a worker
	ahead  int       // how many those may be
	took   time.Duration
	shrunk time.Time
}

// enqueue has t claimed with one of the next calls.
func (e *engine) enqueue(t *task) {
	if e.draining {
		e.giveBack(t)
		return
	}
	t.state = queued
	l := t.lane
	if l.asked == nil {
		l.asked = l.askedRoom[:0]
	}
	l.asked = append(l.asked, t)
	e.ask.join(l)
}

func (a *askers) join(l *lane) {
	if !l.asking {
		l.asking = true
		a.ring = append(a.ring, l)
	}
}

// startClaims asks the store for tasks.
func (e *engine) startClaims(now time.Time) {
	a := &e.ask
	for a.calls < storeCalls && !now.Before(a.after) && !e.draining {
		var batch []*task
		if n := min(claimBatch, a.ahead-a.held); n > 0 {
			batch = e.nextClaims(n, now)
		} else if idle := e.policy.Concurrency - len(e.stints); idle > 0 && len(e.runnable) == 0 && a.calls == 0 {
			batch = e.nextHeads(idle, now)
		}
		if len(batch) == 0 {
			return
		}
		more := len(a.ring) > 0
		a.calls++
		e.calls.Go(func() { e.claimCall(batch, more) })
	}
}

// nextClaims takes up to n tasks that wait to be claimed, from each lane in turn no more than its share.
func (e *engine) nextClaims(n int, now time.Time) (batch []*task) {
	a := &e.ask
	share := max(laneAhead, a.ahead/max(len(e.lanes), 1))
	for range len(a.ring) {
		if len(batch) == n {
			break
		}
		l := a.ring[0]
		a.ring[0] = nil
		a.ring = a.ring[1:]
		l.asking = false
		at := 0
		for ; at < len(l.asked) && l.claimed < share && len(batch) < n; at++ {
			t := l.asked[at]
			l.asked[at] = nil
			if t.state == queued && e.mayClaim(t, now) { // else it was parked, or left, since
				batch = append(batch, t)
			}
		}
		if l.asked = l.asked[at:]; len(l.asked) == 0 {
			l.asked = nil
			continue
		}
		a.join(l)
	}
	if len(a.ring) == 0 {
		a.ring = nil
	}
	return batch
}

// nextHeads takes up to n heads of lanes, whatever is held already: what stands ready in lanes that
// are busy may take all the room there is.
func (e *engine) nextHeads(n int, now time.Time) (batch []*task) {
	for _, l := range e.ask.ring {
		if len(batch) == n {
			break
		}
		if t := l.head(); t != nil && t.state == queued && e.mayClaim(t, now) {
			batch = append(batch, t) // its place in asked is passed over, as it is no longer queued
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
		e.ask.count(t) // as if acquired, until the answer is there
		return true
	}
	return false
}

// claimCall asks for a batch, and acknowledges at once what needs no more thought. more: there were
// tasks for which there was no room.
func (e *engine) claimCall(batch []*task, more bool) {
	works := make([]dedup.Work, len(batch))
	for i, t := range batch {
		works[i] = t.work
	}
	claims := make([]*dedup.Claim, len(batch))
	begun := time.Now()
	err := e.c.guard.ClaimBatch(e.ctx, works, claims)
	took := time.Since(begun)
	if err == nil {
		for i, t := range batch {
			t.claim = claims[i]
			if s := t.claim.State; t.claim.Err == nil && (s == dedup.Done || s == dedup.Failed) {
				t.settled = true
				t.answer = t.Ack(e.ctx)
			}
		}
	}
	e.inbox.post(func() { e.claimed(batch, more, took, err) })
}

func (e *engine) claimed(batch []*task, more bool, took time.Duration, err error) {
	a := &e.ask
	a.calls--
	for _, t := range batch {
		a.uncount(t)
	}
	now := time.Now()
	if err != nil {
		e.storeDown(now, err)
		a.after = now.Add(e.storePause)
		e.askedInVain(batch)
		return
	}
	e.storeUp()
	a.took = took
	useful := 0
	for _, t := range batch {
		if s := t.claim.State; s == dedup.Acquired && t.claim.Crashes == 0 || s == dedup.Done {
			useful++
		}
		e.answered(t, now)
	}
	if more && useful > len(batch)/2 && len(e.stints) < e.policy.Concurrency {
		a.ahead = min(2*a.ahead, maxAhead) // workers had nothing to do while deliveries were waiting
	}
}

// askedInVain puts what the store did not answer for back to where it was.
func (e *engine) askedInVain(batch []*task) {
	back := make(map[*lane][]*task)
	for _, t := range batch {
		if t.state = queued; e.draining { // nothing is claimed any more
			e.giveBack(t)
			continue
		}
		back[t.lane] = append(back[t.lane], t)
	}
	for l, ts := range back {
		l.asked = append(ts, l.asked...)
		e.ask.join(l)
	}
}

// count notes that t takes a place among those claimed ahead.
func (a *askers) count(t *task) {
	t.countedIn = t.lane
	t.countedIn.claimed++
	a.held++
}

func (a *askers) uncount(t *task) {
	t.countedIn.claimed--
	t.countedIn = nil
	a.held--
}

// waited takes in for how long a task stood ready before a worker had time for it.
func (a *askers) waited(d time.Duration, now time.Time) {
	most := min(max(aheadFor, 4*a.took), time.Second) // a slow store's batches last that long
	if d > most && now.Sub(a.shrunk) > most {
		a.ahead, a.shrunk = max(a.ahead/2, firstAhead), now
	}
}
