package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/idemq/idemq/dedup"
)

// stint is what one worker goroutine does: consecutive tasks of one lane, one after the other.
type stint struct {
	lane  *lane
	tasks []*task

	// Guarded by inbox.mu.
	next    int
	current *task
	begun   time.Time // of current
	zombie  bool      // given up: its slot is free, its word comes late
}

// stintTime is for how long a worker goes on by itself before others get their turn.
const stintTime = 20 * time.Millisecond

var errGoexit = errors.New("consumer: handler ended its goroutine (runtime.Goexit)")

// startWork gives ready tasks to workers, up to Concurrency at once.
func (e *engine) startWork(now time.Time) {
	if e.turn != nil && e.turn.state == ready {
		if len(e.stints) == 0 {
			e.startSuspect(e.turn)
		}
		return // nothing else starts while a suspect waits for the others to end
	}
	if e.turn != nil && (e.turn.state == running || e.turn.state == ending) {
		return
	}
	for len(e.runnable) > 0 && len(e.stints) < e.policy.Concurrency && !e.draining {
		l := e.runnable[0]
		e.runnable[0] = nil
		e.runnable = e.runnable[1:]
		l.listed = false
		if h := l.head(); h == nil || h.state != ready || l.busy {
			continue
		}
		e.startStint(l, now)
	}
}

// startStint has a worker run the tasks at the front of l that are ready.
func (e *engine) startStint(l *lane, now time.Time) {
	const most = 64
	s := &stint{lane: l}
	e.ask.waited(now.Sub(l.q[0].readyAt), now)
	for _, t := range l.q {
		if t.lane != l {
			continue
		}
		if t.state != ready || t.suspect || len(s.tasks) == most {
			break
		}
		e.unready(t)
		t.state = running
		s.tasks = append(s.tasks, t)
	}
	e.launch(s)
}

func (e *engine) launch(s *stint) {
	s.lane.busy = true
	e.stints[s] = true
	go e.work(s)
}

// startSuspect runs t with no other live handler beside it. That a crash from now on is its own
// is written down first, unless a zombie could be the one that crashes.
func (e *engine) startSuspect(t *task) {
	e.unready(t)
	t.state = running
	s := &stint{lane: t.lane, tasks: []*task{t}}
	if e.zombies > 0 {
		e.launch(s)
		return
	}
	s.lane.busy = true
	e.stints[s] = true
	e.calls.Go(func() {
		err := t.claim.Alone(e.ctx)
		e.inbox.post(func() {
			if err == nil {
				go e.work(s)
				return
			}
			// Superseded, or the store is down: it must not run on that.
			e.inbox.mu.Lock()
			t.result, t.started, s.next = err, false, 1
			e.inbox.ran, e.inbox.over = append(e.inbox.ran, t), append(e.inbox.over, s)
			e.inbox.mu.Unlock()
			e.inbox.signal()
		})
	})
}

// work is a worker. A handler that never returns keeps its goroutine; everything else ends.
func (e *engine) work(s *stint) {
	orderly := false
	defer func() {
		if !orderly { // the handler called runtime.Goexit
			s.current.result = errGoexit
			e.report(s, s.current, true)
		}
	}()
	begun := time.Now()
	var done *task
	for {
		t := e.report(s, done, e.exclusive.Load() || time.Since(begun) > stintTime)
		if t == nil {
			break
		}
		t.result = nil
		if t.started = e.mayStart(t); t.started {
			e.handle(t)
		}
		done = t
	}
	orderly = true
}

// mayStart looks once more, right before the handler: time has passed since the claim.
func (e *engine) mayStart(t *task) bool {
	return !t.isLost() && (t.unnamed || t.claim.Held()) && !t.overdue(time.Now(), e.longest())
}

// report tells the loop of a task that is over and returns the next one to run, or nil when
// the stint ends: at stop, at its end, and after a failure, because then the lane waits.
func (e *engine) report(s *stint, done *task, stop bool) *task {
	in := &e.inbox
	in.mu.Lock()
	defer in.signal()
	defer in.mu.Unlock()
	if done != nil {
		s.current = nil
		if s.zombie {
			in.news = append(in.news, func() { e.zombieReturned(done) })
			return nil
		}
		in.ran = append(in.ran, done)
		stop = stop || done.result != nil || !done.started
	}
	if (stop && done != nil) || s.next == len(s.tasks) {
		in.over = append(in.over, s)
		return nil
	}
	t := s.tasks[s.next]
	s.next++
	s.current, s.begun = t, time.Now()
	return t
}

// handle calls the handler. It leaves what it said, and whether its context had ended, in t.
func (e *engine) handle(t *task) {
	ctx, cancel := e.handling, context.CancelFunc(func() {})
	if !t.unnamed {
		ctx, cancel = t.claim.Context(ctx)
	}
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, e.policy.HandlerTimeout)
	defer cancelTimeout()
	begun := time.Now()
	defer func() { t.took, t.ended = time.Since(begun), context.Cause(ctx) }() // after runtime.Goexit, too
	t.result = e.callHandler(ctx, t.forHandler())
}

// callHandler turns a panic into an error.
func (e *engine) callHandler(ctx context.Context, m *Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.log.Error("consumer: handler panicked", "scope", m.Scope, "id", short(m.ID), "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("consumer: handler panicked: %v", p)
		}
	}()
	return e.c.handler(ctx, m)
}

// forHandler is a copy for the handler to keep and change: the original is still needed for
// another attempt, or as a dead letter.
func (t *task) forHandler() *Message {
	m := t.Message.clone()
	m.Attempt = t.tries + 1
	if c := t.claim; c != nil {
		m.Attempt, m.Epoch = c.Attempt, c.Epoch
	}
	return m
}

// ran takes in what a handler said: the second truth table of the package doc.
func (e *engine) ran(t *task) {
	if e.c.guard.Options().Observe != nil && t.started {
		e.c.guard.Emit(dedup.Event{Name: "handle", Scope: t.Scope, Cause: handleCause(t), N: 1, Took: t.took, Err: t.result})
	}
	if t.claim != nil && !t.claim.Undecided() {
		t.cutOff = 0 // not in a row any more
	}
	switch {
	case !t.started:
		e.notStarted(t)
	case t.result == nil: // in a transaction it is written already, which finish knows
		e.pass(t)
		e.finish(t, dedup.Done, thenAck, nil)
	case t.claim != nil && t.claim.Undecided():
		e.undecided(t)
	case errors.Is(t.ended, dedup.ErrLeaseLost) || errors.Is(t.ended, ErrDrained): // we made it fail
		e.release(t, thenPark)
	default:
		e.failed(t)
	}
}

func (e *engine) failed(t *task) {
	attempt := t.tries + 1
	if t.claim != nil {
		attempt = t.claim.Attempt
	}
	t.tries = attempt
	var permanent permanentError
	var after retryAfterError
	switch {
	case errors.As(t.result, &permanent), attempt >= e.policy.MaxAttempts:
		e.finish(t, dedup.Condemned, thenBury, t.result)
	default:
		t.delay = e.policy.backoff(attempt)
		if errors.As(t.result, &after) {
			t.delay = e.afterAt(t, after.after)
		}
		t.delay = e.namelessDelay(t, t.delay, time.Now())
		e.log.Warn("consumer: handler failed, will try again", "scope", t.Scope, "id", short(t.Message.ID), "attempt", attempt, "of", e.policy.MaxAttempts, "in", t.delay, "err", t.result)
		e.finish(t, dedup.Retryable, thenRetry, t.result)
	}
}

// afterAt is the delay that a handler gets which asked for d. Where messages wait in memory they hold the position, and what
// is done behind them comes again when the process ends: the window that it is remembered for has room for this much.
func (e *engine) afterAt(t *task, d time.Duration) time.Duration {
	longest := e.policy.longestBackoff()
	if e.plan.Hold >= 0 || d <= longest {
		return d
	}
	if unsaid, ok := e.quiet.allow("after"); ok {
		e.log.Warn("consumer: RetryAfter asks for more than the longest of Policy.Backoff, which it gets: messages of this source wait in memory and hold its position; a longer delay in Policy.Backoff allows more",
			"scope", t.Scope, "id", short(t.Message.ID), "asked", d, "got", longest, "and_more", unsaid)
	}
	return longest
}

// notStarted sends back a task that could not be begun.
func (e *engine) notStarted(t *task) {
	switch {
	case !t.isLost() && !e.draining && e.outOfTime(t, time.Now()):
	case t.unnamed && e.plan.Hold < 0 && !t.isLost() && !e.draining:
		e.handIn(t)
	case t.unnamed || t.isLost() || e.draining:
		e.release(t, thenGiveBack)
	case t.overdue(time.Now(), e.longest()):
		t.delay = overdueDelay
		e.release(t, thenRetry)
	case t.result != nil: // a suspect that could not be marked as alone: at once that would only fail again
		t.delay = time.Second
		e.release(t, thenRetry)
	default: // the lease was lost while it waited
		e.release(t, thenPark)
	}
}

func handleCause(t *task) string {
	switch {
	case t.result == nil:
		return "ok"
	case errors.Is(t.ended, context.DeadlineExceeded):
		return "timeout"
	case t.ended != nil:
		return "cancelled"
	}
	return "error"
}

// stintOver frees a slot. What the worker did not begin is ready again.
func (e *engine) stintOver(s *stint) {
	delete(e.stints, s)
	s.lane.busy = false
	for _, t := range s.tasks[s.next:] {
		e.setReady(t, time.Now())
		if e.draining {
			e.release(t, thenGiveBack)
		} else if t.lane.held && !t.unnamed {
			e.release(t, thenPark)
		}
	}
	e.advance(s.lane)
}

// watchHandlers finds handlers that do not end although their context has.
func (e *engine) watchHandlers(now time.Time) {
	if len(e.stints) == 0 || now.Sub(e.watched) < e.zombieLook()/2 {
		return
	}
	e.watched = now
	var dead map[*stint]*task
	e.inbox.mu.Lock()
	for s := range e.stints {
		if s.current != nil && now.Sub(s.begun) > e.policy.HandlerTimeout+zombieGrace {
			s.zombie = true
			if dead == nil {
				dead = make(map[*stint]*task)
			}
			dead[s] = s.current
		}
	}
	e.inbox.mu.Unlock()
	for s, t := range dead {
		e.becomeZombie(s, t)
	}
}

// becomeZombie frees the slot of a handler that hangs. Its message is asked for again; the
// handler's own late word is fenced by its owner token.
func (e *engine) becomeZombie(s *stint, t *task) {
	e.zombies++
	e.log.Error("consumer: handler does not end; its slot is freed and its message will be taken over", "scope", t.Scope, "id", short(t.Message.ID), "timeout", e.policy.HandlerTimeout, "zombies", e.zombies)
	if old := t.claim; old != nil {
		e.calls.Go(func() {
			_ = old.Alone(e.ctx) // a crash from now on is its own; without it none is counted
			old.Abandon()
		})
	}
	if e.zombies >= e.policy.Concurrency {
		e.fail(fmt.Errorf("consumer: %d handlers of %s do not end, as many as there are slots (Policy.Concurrency); restart the process", e.zombies, e.plan.Scope))
	}
	// The zombie keeps the old task; its delivery goes on as a new one in the same place.
	e.stintOver(s)
	heir := e.replace(t)
	if heir.unnamed {
		e.bury(heir)
		return
	}
	heir.claim = nil
	if e.turn == t {
		e.nextTurn()
	}
	e.askLater(heir, time.Now(), time.Second)
}

// replace puts a copy of t into t's place everywhere.
func (e *engine) replace(t *task) *task {
	heir := &task{Delivery: t.Delivery, work: t.work, unnamed: t.unnamed, rekeyed: t.rekeyed, tries: t.tries, followers: t.followers}
	heir.outcome.Cause = errors.New("consumer: handler did not end")
	e.live.add(heir)
	e.live.remove(t)
	if !t.unnamed && e.twins[t.twin()] == t {
		e.twins[t.twin()] = heir
	}
	heir.lane = t.lane
	if t.lane == &t.own {
		heir.lane = &heir.own
		heir.own.q = []*task{heir}
	} else {
		for i, x := range t.lane.q {
			if x == t {
				t.lane.q[i] = heir
			}
		}
	}
	for _, f := range heir.followers {
		f.leader = heir
	}
	t.lane, t.state, t.followers = nil, gone, nil
	return heir
}

// zombieReturned writes the late word of a handler; it counts if nobody took over.
func (e *engine) zombieReturned(t *task) {
	e.zombies--
	if t.claim == nil || t.claim.Undecided() {
		return
	}
	o := dedup.Outcome{Claim: t.claim, State: dedup.Done}
	if t.result != nil {
		o.State, o.Cause = dedup.Retryable, t.result
	}
	e.calls.Go(func() {
		errs := make([]error, 1)
		if err := errors.Join(e.c.guard.FinishBatch(e.ctx, []dedup.Outcome{o}, errs), errs[0]); err != nil {
			e.log.Warn("consumer: a handler came back too late to count", "scope", t.Scope, "id", short(t.Message.ID), "err", err)
		}
	})
}
