package main

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"
)

// director answers the reports of one subject's children, keeps the ledger and decides who is killed.
//
// A kill is placed exactly. From the moment on when a child's victim is about to reach its point, no
// other handler of that child gets an effect, and the kill waits until each effect that it had
// before has its verdict. So the kill cuts off at most one effect from its verdict, and whether it did is known.
type director struct {
	plan   *schedule
	ledger *ledger
	kill   func(child int, order string, p point) // sends SIGKILL

	mu     sync.Mutex
	moved  *sync.Cond
	ended  bool             // nothing is answered any more
	due    map[string]point // kills to come
	victim map[int]string   // by child: whose kill is being placed
	dead   map[int]bool     // by child: killed
	heard  time.Time        // when a child last said something
}

func newDirector(s *schedule, kill func(child int, order string, p point)) *director {
	d := &director{plan: s, ledger: newLedger(s), kill: kill, due: make(map[string]point), victim: make(map[int]string), dead: make(map[int]bool)}
	d.moved = sync.NewCond(&d.mu)
	for id, p := range s.kills {
		d.due[id] = p
	}
	return d
}

// ServeHTTP answers one report.
func (d *director) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var r report
	if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	stop := context.AfterFunc(req.Context(), d.look) // a child that has gone must not be waited for
	defer stop()
	do, ok := d.take(req.Context(), r)
	if !ok {
		<-req.Context().Done() // the child is being killed
		return
	}
	_ = json.NewEncoder(w).Encode(answer{Do: do}) // who does not hear it is dead
}

// look has everybody who waits look again.
func (d *director) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moved.Broadcast()
}

// end lets nobody wait any longer.
func (d *director) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.moved.Broadcast()
}

// take records a report; !ok means that its child gets no answer.
func (d *director) take(ctx context.Context, r report) (do string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone(ctx, r.Child) || len(r.Orders) == 0 {
		return "", false
	}
	d.heard = time.Now()
	d.ledger.see(r.Orders)
	switch order := r.Orders[0]; r.Kind {
	case received:
		d.ledger.receive(len(r.Orders))
	case begin:
		return d.begin(ctx, r.Child, order, r.At)
	case effect:
		return goOn, d.effect(ctx, r.Child, order)
	case verdict:
		for _, id := range r.Orders {
			d.ledger.verdict(r.Child, id)
		}
		d.moved.Broadcast()
	case ack:
		return goOn, d.ack(r, order)
	}
	return goOn, true
}

// silent is for how long no child has said anything.
func (d *director) silent() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.heard)
}

// placing are the kills being placed: by child, its victim.
func (d *director) placing() map[int]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.victim)
}

func (d *director) gone(ctx context.Context, child int) bool {
	return d.ended || d.dead[child] || ctx.Err() != nil
}

func (d *director) begin(ctx context.Context, child int, order string, at place) (do string, ok bool) {
	d.ledger.begin(child, order, at)
	d.spare(order)
	d.moved.Broadcast() // an effect of the order whose claim was lost is not waited for any more: see open
	if d.due[order] == beforeEffect && d.single(ctx, child, order) {
		d.strike(child, order, beforeEffect)
	}
	switch {
	case d.gone(ctx, child):
		return "", false
	case d.plan.poison[order]:
		d.ledger.fail(child, order)
		return failForAye, true
	case d.ledger.failures(order) < d.plan.failures[order]:
		d.ledger.fail(child, order)
		return failNow, true
	}
	return goOn, true
}

// effect is the effect of an order, unless its child is killed first.
func (d *director) effect(ctx context.Context, child int, order string) (ok bool) {
	p := nowhere
	for placed := false; !placed; {
		for d.victim[child] != "" && !d.gone(ctx, child) {
			d.moved.Wait() // another order's kill is being placed
		}
		p = d.due[order] // none any more where another child was killed meanwhile: see spare
		placed = d.gone(ctx, child) || p != inWindow && p != beforeAck || d.single(ctx, child, order)
	}
	if d.gone(ctx, child) {
		return false
	}
	d.ledger.effect(child, order)
	if p == inWindow {
		d.strike(child, order, p)
		return false
	}
	return true
}

func (d *director) ack(r report, order string) (ok bool) {
	if !r.Ran {
		if d.again(order, r.At); d.dead[r.Child] {
			return false
		}
		d.ledger.duplicate(order, r.At)
		d.ledger.settle(r.At)
		return true
	}
	if !d.plan.poison[order] {
		d.ledger.verdict(r.Child, order)
	}
	d.moved.Broadcast()
	if d.due[order] == beforeAck && d.victim[r.Child] == order {
		d.strike(r.Child, order, beforeAck)
		return false
	}
	d.ledger.settle(r.At)
	return true
}

// spare ends the placing of kills for which a child waits whose run of order ended without a verdict, as of one whose claim
// was lost: the order begins anew, here or in another child.
func (d *director) spare(order string) {
	for child, victim := range d.victim {
		if victim == order {
			delete(d.victim, child)
			d.moved.Broadcast()
		}
	}
}

// again looks at the order's victims as a copy of it is about to be acknowledged that did not run now. Another copy than
// the victim's own says nothing of it: it may be on its way to its acknowledgement. Its own was delivered again, since the
// child lost its session: there will be no acknowledgement to be killed before, so one with the verdict is killed here, and
// one without, which another run has overtaken, is none.
func (d *director) again(order string, at place) {
	for child, victim := range d.victim {
		if victim != order {
			continue
		}
		switch own, verdict := d.ledger.newest(child, order); {
		case own != at:
		case verdict && d.due[order] == beforeAck:
			d.strike(child, order, beforeAck)
		default:
			delete(d.victim, child)
			d.moved.Broadcast()
		}
	}
}

// single makes order the child's victim, and waits until the child's other effects have their verdicts.
func (d *director) single(ctx context.Context, child int, order string) bool {
	if d.victim[child] != "" {
		return false
	}
	d.victim[child] = order
	for d.victim[child] == order && !d.gone(ctx, child) {
		if d.ledger.open(child, order) == 0 {
			return true
		}
		d.moved.Wait()
	}
	return false
}

// strike kills. That the child is dead is known first, so nothing that it may still send counts.
func (d *director) strike(child int, order string, p point) {
	delete(d.due, order)
	d.dead[child] = true
	d.ledger.kill(child, p)
	d.spare(order)
	d.moved.Broadcast()
	d.kill(child, order, p)
}

// killed reports whether the child was killed on purpose.
func (d *director) killed(child int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead[child]
}
