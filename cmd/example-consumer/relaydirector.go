package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// relayDirector answers the reports of one subject's relays, of which one runs at a time, counts what they publish and decides
// which is killed.
//
// A kill is placed exactly: it waits until what the relay published before is noted in the outbox. So what is
// published again is the batch that was cut off from its write-back, and nothing else.
type relayDirector struct {
	ledger  *ledger // of the subject
	pending func(ctx context.Context) (map[string]bool, error)
	kill    func(child int, order string, p point) // sends SIGKILL

	mu     sync.Mutex
	due    map[string]point // kills to come
	dead   map[int]bool     // by child: killed
	has    map[int][]string // by child: the orders that the broker took from it
	copies map[string]int   // by order: how often the broker took it
	next   place            // the number of the next copy
	cut    int              // copies that were cut off from their write-back
	kills  map[point]int
}

func newRelayDirector(s *schedule, l *ledger, pending func(context.Context) (map[string]bool, error), kill func(int, string, point)) *relayDirector {
	d := &relayDirector{
		ledger: l, pending: pending, kill: kill, next: 1,
		due: make(map[string]point), dead: make(map[int]bool), has: make(map[int][]string), copies: make(map[string]int), kills: make(map[point]int),
	}
	for id, p := range s.relayKills {
		d.due[id] = p
	}
	return d
}

// ServeHTTP answers one report.
func (d *relayDirector) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var r report
	if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, ok := d.take(req.Context(), r)
	if !ok {
		<-req.Context().Done() // the relay is being killed
		return
	}
	_ = json.NewEncoder(w).Encode(a) // who does not hear it is dead
}

// take records a report; !ok means that its child gets no answer.
func (d *relayDirector) take(ctx context.Context, r report) (a answer, ok bool) {
	d.ledger.see(r.Orders)
	before := d.published(r.Child)
	var p point
	switch r.Kind {
	case publishing:
		p, a.First = beforePublish, d.number(len(r.Orders))
	case published:
		p = beforeWriteBack
		d.count(r)
	}
	order := d.victim(r.Orders, p)
	if order == "" {
		return a, true
	}
	if d.noted(ctx, before) {
		d.strike(r, order, p)
	}
	return a, false
}

// published are the orders that the broker took from the child so far.
func (d *relayDirector) published(child int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.has[child]
}

// number hands out the numbers of n copies, and returns the first.
func (d *relayDirector) number(n int) place {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.next
	d.next += place(n)
	return first
}

func (d *relayDirector) count(r report) {
	d.ledger.publish(r.Copies)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.has[r.Child] = append(d.has[r.Child], r.Orders...)
	for _, id := range r.Orders {
		d.copies[id]++
	}
}

// victim is an order for which the relay is to be killed at p, if there is one.
func (d *relayDirector) victim(orders []string, p point) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range orders {
		if d.due[id] == p && p != nowhere {
			return id
		}
	}
	return ""
}

// noted waits until the outbox has noted that orders were sent, which the relay does beside publishing.
func (d *relayDirector) noted(ctx context.Context, orders []string) bool {
	for {
		pending, err := d.pending(ctx)
		if err == nil && !anyIn(pending, orders) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func anyIn(set map[string]bool, orders []string) bool {
	for _, id := range orders {
		if set[id] {
			return true
		}
	}
	return false
}

func (d *relayDirector) strike(r report, order string, p point) {
	d.mu.Lock()
	delete(d.due, order)
	d.dead[r.Child] = true
	d.kills[p]++
	if p == beforeWriteBack {
		d.cut += len(r.Orders)
	}
	d.mu.Unlock()
	d.kill(r.Child, order, p)
}

// killed reports whether the child was killed on purpose.
func (d *relayDirector) killed(child int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead[child]
}

// passage adds up what was published.
func (d *relayDirector) passage() *passage {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &passage{cut: d.cut, kills: d.kills}
	for _, n := range d.copies {
		p.Relayed++
		p.RelayedTwice += n - 1
	}
	p.RolledBackSeen = d.ledger.declinedSeen()
	return p
}
