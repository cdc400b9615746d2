package consumer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/dedup"
)

const (
	claimBatch     = 512 // deliveries in one claim call
	finishBatch    = 512
	storeCalls     = 2                // of each kind at once: one works in the store while the other's answers are read
	pauseReceiving = 10 * time.Second // of store outage
	zombieGrace    = 5 * time.Second  // after HandlerTimeout, before a handler counts as a zombie
	zombieLook     = time.Second      // at most, until that is noticed
	headroom       = 15 * time.Second // between HandlerTimeout and the broker's limit: for a handler that does not end by itself, and to be claimed, to wait for its turn and to be settled
	overdueDelay   = time.Second      // before the broker brings back what had no time left to run
)

// longest is for how long a handler may run: after that it is a zombie, and others may have its message.
func (e *engine) longest() time.Duration { return e.policy.Room() }

// zombieLook is how often the loop looks for handlers that do not end.
func (e *engine) zombieLook() time.Duration {
	return max(min(e.policy.HandlerTimeout/4, zombieLook), time.Millisecond)
}

// engine is one Run: a single goroutine, loop, decides everything about tasks and lanes, so
// there are no locks between them. Whatever may block (the store, the broker, handlers) happens
// in goroutines that post what came of it into the inbox.
type engine struct {
	c      *Consumer
	plan   Plan
	policy *Policy
	log    *slog.Logger

	ctx      context.Context // of store and broker calls: outlives the drain
	handling context.Context // of handlers: ends with ErrDrained
	calls    sync.WaitGroup  // goroutines that end with ctx

	stopReceiving  context.CancelFunc
	cancelHandling context.CancelCauseFunc

	inbox     inbox
	gate      gate
	quiet     limiter
	exclusive atomic.Bool // workers start nothing more by themselves: a suspect is next, or the drain has begun

	// Below: the loop's own.
	live     taskList
	lanes    map[string]*lane
	twins    map[twin]*task
	ask      askers
	runnable []*lane
	outs     []*task
	timers   timers
	sessions map[<-chan struct{}]bool
	stints   map[*stint]bool
	zombies  int
	watched  time.Time // when handlers were last looked at
	fatal    error

	finishes    int       // calls in flight
	holding     int       // in progress elsewhere, held until that ends
	finishAfter time.Time // no call before: the store is down
	storePause  time.Duration
	probing     bool // a Ping is under way
	downSince   time.Time

	turn     *task // the suspect that may be held and run
	suspects []*task

	draining  bool
	received  bool // the receiver has ended
	drainedAt time.Time
	stats     Stats
}

// inbox is where goroutines leave what the loop must know.
type inbox struct {
	wake chan struct{} // buffered

	mu      sync.Mutex
	arrived []*task
	ran     []*task
	over    []*stint
	news    []func()
}

func (in *inbox) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// post has f called by the loop.
func (in *inbox) post(f func()) {
	in.mu.Lock()
	in.news = append(in.news, f)
	in.mu.Unlock()
	in.signal()
}

func newEngine(c *Consumer) *engine {
	e := &engine{
		c: c, plan: c.Plan(), log: c.guard.Logger(),
		lanes: make(map[string]*lane), twins: make(map[twin]*task), sessions: make(map[<-chan struct{}]bool),
		stints: make(map[*stint]bool),
	}
	e.policy = &e.plan.Policy
	e.ask.ahead = max(firstAhead, 2*e.policy.Concurrency)
	e.inbox.wake = make(chan struct{}, 1)
	return e
}

// loop runs until the drain is over.
func (e *engine) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	stop := ctx.Done()
	for {
		e.takeIn()
		now := time.Now()
		e.wakeUp(now)
		e.watchHandlers(now)
		e.schedule(now)
		e.publishStats()
		if e.draining && e.drained(now) {
			return
		}
		timer.Reset(e.nextLook(now))
		select {
		case <-e.inbox.wake:
		case <-timer.C:
		case <-stop:
			stop = nil
			e.drain(time.Now())
		}
	}
}

// takeIn handles everything that was posted.
func (e *engine) takeIn() {
	in := &e.inbox
	in.mu.Lock()
	arrived, ran, over, news := in.arrived, in.ran, in.over, in.news
	in.arrived, in.ran, in.over, in.news = nil, nil, nil, nil
	in.mu.Unlock()
	for _, f := range news {
		f()
	}
	for _, t := range ran {
		e.ran(t)
	}
	for _, s := range over {
		e.stintOver(s)
	}
	for _, t := range arrived {
		e.arrive(t)
	}
}

// arrive takes a new delivery into its lane.
func (e *engine) arrive(t *task) {
	e.live.add(t)
	e.stats.Received++
	e.stats.LastReceived = time.Now()
	if e.draining {
		e.giveBack(t)
		return
	}
	e.watchSession(t)
	if e.elsewhere(t) {
		return
	}
	if t.unnamed && (t.outcome.Cause != nil || !e.c.opts.AllowNoID) {
		if t.outcome.Cause == nil {
			t.outcome.Cause = errNoID
		}
		e.bury(t)
		return
	}
	if !e.follow(t) || !t.leader.passed {
		e.enter(t, e.laneOf(t))
	}
}

// laneOf is the lane that t is to enter: who made it and did not would leave it behind for good.
func (e *engine) laneOf(t *task) *lane {
	if t.Lane == "" {
		return &t.own
	}
	l := e.lanes[t.Lane]
	if l == nil {
		l = &lane{name: t.Lane}
		e.lanes[t.Lane] = l
	}
	return l
}

// wait lets t rest until at, or until its deadline is near; its lane rests with it.
func (e *engine) wait(t *task, at time.Time) {
	if last := t.Deadline.Add(-e.longest()); !t.Deadline.IsZero() && at.After(last) {
		at = last
	}
	e.ownLane(t)
	t.state = waiting
	e.timers.set(t, at)
	if t.lane.head() == t {
		e.hold(t.lane)
	}
}

// wakeUp has those tasks asked for whose time has come.
func (e *engine) wakeUp(now time.Time) {
	for len(e.timers) > 0 && !e.timers[0].wakeAt.After(now) {
		t := e.timers[0]
		e.timers.drop(t)
		t.wakeAt = time.Time{}
		switch {
		case t.state == ending: // an outcome that the store could not take
			e.outs = append(e.outs, t)
		case t.isLost():
			e.giveBack(t)
		case e.outOfTime(t, now):
		case t.overdue(now, e.longest()):
			e.retryLater(t, overdueDelay, dedup.ErrInProgress)
		case t.unnamed:
			e.setReady(t, now)
			e.advance(t.lane)
		case t.suspect:
			e.waitTurn(t)
		default:
			e.enqueue(t)
		}
	}
}

// nextLook is how long the loop may sleep.
func (e *engine) nextLook(now time.Time) time.Duration {
	d := time.Hour
	soon := func(at time.Time) { d = min(d, max(at.Sub(now), time.Millisecond)) }
	if len(e.timers) > 0 {
		soon(e.timers[0].wakeAt)
	}
	if len(e.ask.ring) > 0 && e.ask.calls == 0 && e.ask.after.After(now) {
		soon(e.ask.after)
	}
	if len(e.outs) > 0 && e.finishAfter.After(now) {
		soon(e.finishAfter)
	}
	if !e.downSince.IsZero() && e.ask.after.After(now) {
		soon(e.ask.after)
	}
	if len(e.stints) > 0 {
		d = min(d, e.zombieLook())
	}
	if e.draining {
		soon(e.drainedAt)
	}
	return d
}

// schedule starts what can be started.
func (e *engine) schedule(now time.Time) {
	e.startClaims(now)
	e.startWork(now)
	e.startFinishes(now)
	e.probe(now)
}

// leave ends t's way through the engine; done says that its work is known to have happened.
func (e *engine) leave(t *task, done bool) {
	e.drop(t)
	if len(t.followers) == 0 {
		return
	}
	followers := t.followers
	t.followers = nil
	if done {
		e.ackDuplicates("own_batch", followers...) // their twin in this process was done
		return
	}
	for _, f := range followers { // the first one leads from now on
		e.regroup(f)
	}
}

// regroup sends a follower on its own way.
func (e *engine) regroup(f *task) {
	f.leader = nil
	switch {
	case e.draining || f.isLost():
		e.giveBack(f)
	case e.follow(f):
		if f.leader.passed {
			e.offLane(f)
		}
	default:
		e.ownLane(f)
		e.claimInTurn(f)
	}
}

// claimInTurn has t claimed now, or when the head of its lane no longer waits.
func (e *engine) claimInTurn(t *task) {
	if t.lane.held && t.lane.head() != t {
		t.state = parked
		return
	}
	e.claimAnew(t)
}

// claimAnew has t claimed once more. At the head of its lane it is a head that waits: what is held
// behind it could otherwise take all the room there is for claims, and t would get none.
func (e *engine) claimAnew(t *task) {
	if t.lane.head() == t {
		e.hold(t.lane)
	}
	e.enqueue(t)
}

// drop forgets t.
func (e *engine) drop(t *task) {
	e.unready(t)
	e.endHold(t)
	t.state = gone
	e.timers.drop(t)
	e.live.remove(t)
	if !t.unnamed && e.twins[t.twin()] == t {
		delete(e.twins, t.twin())
	}
	if e.turn == t {
		e.nextTurn()
	}
	e.offLane(t)
}
