package dedup

import (
	"context"
	"errors"
	"sync"
	"time"
)

// leaseState is what the heartbeat knows of a claim. Guarded by heartbeat.mu.
type leaseState struct {
	prev, next *Claim // in heartbeat's list while the claim is kept alive
	kept       bool
	beating    bool  // a beat is on its way
	finishing  bool  // a finish is on its way: what a beat says now does not matter
	closing    bool  // the transaction with its verdict is ending: see scan
	undecided  bool  // only another claim tells what became of it
	finished   State // 0: not yet
	alone      bool
	lost       bool
	deadline   time.Time // until then the claim may be trusted, by our own monotonic clock
	beaten     time.Time // when the newest beat, or the claim itself, was sent
	cancels    []context.CancelCauseFunc
}

// heartbeat keeps all held claims of a Guard alive with one goroutine, which lives while there
// are any. Beats go out in one batch per tick, apart from those of other leases. A claim is beaten when half
// its lease would otherwise pass without a beat, so that a lost reply still leaves time for another.
type heartbeat struct {
	g *Guard

	mu     sync.Mutex
	head   *Claim
	n      int
	tick   time.Duration // a third of the shortest lease held
	wake   chan struct{} // buffered; nil while no goroutine runs
	beats  int           // batches of beats on their way
	pause  time.Time     // after a failed beat: none before
	events []Event       // to be emitted once mu is free: no callback runs under a lock
}

// unlock frees mu and emits what happened under it.
func (b *heartbeat) unlock() {
	events := b.events
	b.events = nil
	b.mu.Unlock()
	for _, e := range events {
		b.g.Emit(e)
	}
}

// add begins to keep alive those of claims that are held.
func (b *heartbeat) add(claims []*Claim, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range claims {
		if c.Err != nil || c.open || (c.State != Acquired && c.State != Condemned) {
			continue
		}
		c.kept, c.beaten, c.deadline = true, asked, asked.Add(c.held.Lease)
		c.next = b.head
		if b.head != nil {
			b.head.prev = c
		}
		b.head = c
		b.n++
		if t := c.held.Lease / 3; b.tick == 0 || t < b.tick {
			b.tick = t
			b.signal()
		}
	}
	if b.n > 0 && b.wake == nil {
		b.wake = make(chan struct{}, 1)
		go b.run(b.wake)
	}
}

// drop stops keeping c alive. Called with mu held.
func (b *heartbeat) drop(c *Claim) {
	if !c.kept {
		return
	}
	c.kept = false
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		b.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	if b.n--; b.n == 0 {
		b.signal()
	}
}

func (b *heartbeat) signal() {
	select {
	case b.wake <- struct{}{}: // a nil channel is never ready
	default:
	}
}

// run beats until no claim is held. Beats are sent beside it, because a hanging store must
// not hide that leases run out.
func (b *heartbeat) run(wake chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		b.mu.Lock()
		if b.n == 0 && b.beats == 0 {
			b.wake, b.tick = nil, 0
			b.mu.Unlock()
			return
		}
		due, next := b.scan(time.Now())
		for len(due) > 0 {
			var in []ExtendRequest
			in, due = alike(due)
			b.beats++
			go b.beat(in)
		}
		b.unlock()
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-wake:
		}
	}
}

// scan declares lost what ran out, and says what to beat now and when to look again.
// Called with mu held.
func (b *heartbeat) scan(now time.Time) (due []ExtendRequest, next time.Duration) {
	next = b.tick
	if wait := b.pause.Sub(now); wait > 0 {
		next = min(next, wait)
	}
	for c := b.head; c != nil; {
		following := c.next // lose unlinks c
		left := c.deadline.Sub(now)
		switch {
		case c.closing && left > -c.held.Lease:
			// The verdict's row is locked: a beat would wait for that, and all others beside it. Another
			// owner would, too, so the lease may end; and a commit that is called off by the end of its
			// context cannot be told from one that happened. One more lease is what it gets.
			next = min(next, left+c.held.Lease)
		case left <= 0:
			b.lost(c)
		case c.beating || now.Before(b.pause):
			next = min(next, left)
		case now.Add(b.tick).After(c.beaten.Add(c.held.Lease / 2)):
			c.beaten, c.beating = now, true
			due = append(due, ExtendRequest{Held: c.held, Alone: c.alone})
			next = min(next, left)
		default:
			next = min(next, left)
		}
		c = following
	}
	return due, max(next, time.Millisecond)
}

// alike parts what is due into what one store call can carry and the rest.
func alike(due []ExtendRequest) (one, rest []ExtendRequest) {
	n := 1
	for i := 1; i < len(due); i++ {
		if !apart(&due[0], &due[i]) {
			due[n], due[i] = due[i], due[n]
			n++
		}
	}
	return due[:n:n], due[n:]
}

// beat sends one batch of beats and takes in the answers.
func (b *heartbeat) beat(in []ExtendRequest) {
	out := make([]error, len(in))
	sent := time.Now()
	outage, _ := b.g.extends.submit(context.Background(), in, out)
	b.answered(in, out, sent)
	if outage != nil {
		b.g.opts.Logger.Warn("dedup: heartbeat failed, will try again", "claims", len(in), "err", outage)
	}
}

// answered takes in the answers to a batch of beats sent at the given time.
func (b *heartbeat) answered(in []ExtendRequest, out []error, sent time.Time) {
	b.mu.Lock()
	defer b.unlock()
	b.beats--
	defer b.signal()
	answers := make(map[Owner]int, len(in))
	for i := range in {
		answers[in[i].Owner] = i
	}
	for c := b.head; c != nil; {
		following := c.next
		if i, ok := answers[c.held.Owner]; ok {
			c.beating = false
			b.taken(c, sent, out[i])
		}
		c = following
	}
}

// taken takes in one answer to a beat sent at the given time. Called with mu held.
func (b *heartbeat) taken(c *Claim, sent time.Time, answer error) {
	switch {
	case errors.Is(answer, ErrUnavailable) || answer != nil && !errors.Is(answer, ErrSuperseded) && !errors.Is(answer, ErrRecordLost):
		c.beaten = c.beaten.Add(-c.held.Lease) // due again, after the pause
		b.pause = time.Now().Add(b.tick / 4)
	case errors.Is(answer, ErrSuperseded):
		// While a finish is on its way this may be that finish, seen first: its own answer decides.
		if !c.finishing {
			b.lost(c)
		}
	default:
		c.deadline = sent.Add(c.held.Lease)
		if answer != nil {
			b.events = append(b.events, Event{Name: "record_lost", Scope: c.Work.Scope, N: 1, Err: answer})
		}
	}
}

// lost gives a claim up. It may still be finished, if nobody followed. Called with mu held.
func (b *heartbeat) lost(c *Claim) {
	b.drop(c)
	if c.lose() {
		b.events = append(b.events, Event{Name: "lease_lost", Scope: c.Work.Scope, N: 1})
	}
}

// lose cancels the contexts of the claim's work. Called with heartbeat.mu held: the functions
// only mark contexts and start goroutines, they call nothing of ours.
func (c *Claim) lose() (first bool) {
	if c.lost {
		return false
	}
	c.lost = true
	for _, cancel := range c.cancels {
		cancel(ErrLeaseLost)
	}
	c.cancels = nil
	return true
}
