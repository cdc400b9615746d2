package main

import (
	"slices"
	"sync"
)

// handling is one run of the handler, as the parent was told of it while it happened.
type handling struct {
	child   int
	copy    place
	failed  bool // the handler was made to fail
	effect  bool
	verdict bool // it is known that the store has the verdict; where there is none, that the acknowledgement began
	cut     bool // its child was killed before failure or verdict
}

func (h *handling) over() bool { return h.failed || h.verdict }

// account is what happened to one order.
type account struct {
	runs                  []*handling
	acked                 []place // copies that were acknowledged without a run
	producer, redelivered int     // how often, by cause
	deadLettered          int     // copies in the dead letter topic
	rows                  int     // effects, where they are rows
}

// ledger is the parent's own count of one subject. Nothing in it comes from a counter of a library.
type ledger struct {
	inRows    bool // effects are rows, counted at the end; until then what a child says of one is an intention
	mu        sync.Mutex
	published map[place]bool // copies that were sent
	delivered int
	kills     map[point]int
	settled   map[place]bool // copies that were acknowledged
	accounts  map[string]*account
	strangers []string        // reports and dead letters that fit no order
	declined  map[string]bool // whether an order that was rolled back was seen
}

func newLedger(s *schedule) *ledger {
	l := &ledger{
		published: make(map[place]bool), settled: make(map[place]bool), kills: make(map[point]int),
		accounts: make(map[string]*account), declined: make(map[string]bool),
	}
	for i := range s.published {
		l.published[place(i+1)] = true
	}
	for id := range s.declined {
		l.declined[id] = false
	}
	for _, id := range s.orders {
		l.accounts[id] = &account{}
	}
	return l
}

// on calls f with the order's account.
func (l *ledger) on(order, what string, f func(a *account)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.accounts[order]
	if !ok {
		l.strangers = append(l.strangers, what+" of unknown order "+order)
		return
	}
	f(a)
}

// publish notes copies that a relay has published.
func (l *ledger) publish(copies []place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range copies {
		l.published[at] = true
	}
}

// see looks for orders that nobody should have heard of.
func (l *ledger) see(orders []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range orders {
		if _, ok := l.declined[id]; ok {
			l.declined[id] = true
		}
	}
}

// declinedSeen is how many of those were seen.
func (l *ledger) declinedSeen() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seen := range l.declined {
		if seen {
			n++
		}
	}
	return n
}

func (l *ledger) receive(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered += n
}

// settle notes that the acknowledgement of a copy is next.
func (l *ledger) settle(at place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled[at] = true
	if at != 0 {
		l.published[at] = true // although a relay may never have heard so
	}
}

// unsettled is how many copies were never acknowledged.
func (l *ledger) unsettled() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.published {
		if !l.settled[at] {
			n++
		}
	}
	return n
}

// begin notes a new run and returns how many there were before.
func (l *ledger) begin(child int, order string, at place) (before int) {
	l.on(order, "run", func(a *account) {
		before = len(a.runs)
		a.runs = append(a.runs, &handling{child: child, copy: at})
	})
	return before
}

// last is the newest run of the order in the child.
func (a *account) last(child int) *handling {
	for i := len(a.runs) - 1; i >= 0; i-- {
		if a.runs[i].child == child {
			return a.runs[i]
		}
	}
	return nil
}

// newest is the copy of the child's newest run of the order, 0 without one, and whether it has its verdict.
func (l *ledger) newest(child int, order string) (at place, verdict bool) {
	l.on(order, "look", func(a *account) {
		if h := a.last(child); h != nil {
			at, verdict = h.copy, h.verdict
		}
	})
	return at, verdict
}

// failures is how often the handler was made to fail so far.
func (l *ledger) failures(order string) (n int) {
	l.on(order, "look", func(a *account) {
		for _, h := range a.runs {
			if h.failed {
				n++
			}
		}
	})
	return n
}

// mark changes the newest run of the order in the child.
func (l *ledger) mark(child int, order, what string, f func(h *handling)) {
	l.on(order, what, func(a *account) {
		if h := a.last(child); h != nil {
			f(h)
			return
		}
		l.strangers = append(l.strangers, what+" of "+order+" that was not running")
	})
}

func (l *ledger) fail(child int, order string) {
	l.mark(child, order, "failure", func(h *handling) { h.failed = true })
}

// effect is the effect itself: the order counts as carried out from here on, but for one that is a row.
func (l *ledger) effect(child int, order string) {
	l.mark(child, order, "effect", func(h *handling) { h.effect = true })
}

func (l *ledger) verdict(child int, order string) {
	l.mark(child, order, "verdict", func(h *handling) { h.verdict = true })
}

// duplicate notes a copy that is acknowledged without a run. One that a handler has seen before, or that was
// acknowledged before, was brought again by the broker; any other was sent again by the producer.
func (l *ledger) duplicate(order string, at place) {
	l.on(order, "duplicate", func(a *account) {
		again := slices.Contains(a.acked, at) || slices.ContainsFunc(a.runs, func(h *handling) bool { return h.copy == at })
		if again {
			a.redelivered++
			return
		}
		a.producer++
		a.acked = append(a.acked, at)
	})
}

// open are the child's orders whose effect has happened and whose verdict is not known yet, but for one.
// One that has begun anew, here or in another child, is not waited for any more: its claim was lost.
func (l *ledger) open(child int, except string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for id, a := range l.accounts {
		if id == except || len(a.runs) == 0 {
			continue
		}
		if h := a.runs[len(a.runs)-1]; h.child == child && h.effect && !h.over() {
			n++
		}
	}
	return n
}

// kill notes that the child is killed at p, and with it whatever it was doing.
func (l *ledger) kill(child int, p point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills[p]++
	for _, a := range l.accounts {
		for _, h := range a.runs {
			if h.child == child && !h.over() {
				h.cut = true
			}
		}
	}
}

// row notes n effects of an order that were read back.
func (l *ledger) row(order string, n int) {
	l.on(order, "row", func(a *account) { a.rows += n })
}

// deadLetter notes a dead letter that was read back.
func (l *ledger) deadLetter(order string) {
	l.on(order, "dead letter", func(a *account) { a.deadLettered++ })
}
