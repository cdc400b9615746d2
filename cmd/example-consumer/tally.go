package main

import (
	"fmt"
	"slices"
)

// tally is one column of the table.
type tally struct {
	Subject         string `json:"subject"`
	Published       int    `json:"published"`
	Delivered       int    `json:"delivered"`
	Runs            int    `json:"runs"`
	Duplicates      int    `json:"duplicates"`
	Retried         int    `json:"retried"`
	TakenOver       int    `json:"taken_over"`
	DeadLettered    int    `json:"dead_lettered"`
	Lost            int    `json:"lost"`
	Doubled         int    `json:"doubled"`
	DoubledInWindow int    `json:"doubled_in_window"`

	Outbox *passage `json:"outbox,omitempty"` // with --outbox

	orders                int
	producer, redelivered int
	kills                 map[point]int
}

// tally adds the ledger up.
func (l *ledger) tally(subject string) tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := tally{Subject: subject, Published: len(l.published), Delivered: l.delivered, orders: len(l.accounts), kills: l.kills}
	for _, a := range l.accounts {
		t.Runs += len(a.runs)
		t.producer += a.producer
		t.redelivered += a.redelivered
		for i := 1; i < len(a.runs); i++ { // why there was another run
			switch before := a.runs[i-1]; {
			case before.failed:
				t.Retried++
			case before.cut:
				t.TakenOver++
			}
		}
		if a.deadLettered > 0 {
			t.DeadLettered++
		}
		effects, inWindow := l.effects(a)
		switch {
		case effects == 0 && a.deadLettered == 0:
			t.Lost++
		case effects > 1:
			t.Doubled += effects - 1
			t.DoubledInWindow += min(effects-1, inWindow)
		}
	}
	t.Duplicates = t.producer + t.redelivered
	return t
}

// effects counts the order's effects, and those of them whose child was killed before the verdict.
func (l *ledger) effects(a *account) (all, inWindow int) {
	if l.inRows {
		return a.rows, 0 // one that was cut off from its verdict was rolled back with it
	}
	for _, h := range a.runs {
		if h.effect {
			all++
			if h.cut {
				inWindow++
			}
		}
	}
	return all, inWindow
}

// check lists what does not add up in a column that promises: nothing is lost, and what is done twice was
// in the window, exactly as often as a child was killed there; nothing at all, where effects are rows.
func (l *ledger) check(s *schedule) []string {
	t := l.tally("")
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong := slices.Clone(l.strangers)
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, id := range s.orders {
		l.checkOrder(id, s.poison[id], say)
	}
	switch {
	case l.inRows && t.Doubled > 0:
		say("%d effects were repeated, which one transaction with the verdict rules out", t.Doubled)
	case !l.inRows && t.Doubled != l.kills[inWindow]:
		say("%d effects were repeated, but %d children were killed between effect and verdict", t.Doubled, l.kills[inWindow])
	}
	if most := t.Published - t.orders; t.producer > most {
		say("%d producer duplicates were acknowledged, but only %d were sent", t.producer, most)
	}
	return append(wrong, l.unplaced(s)...)
}

// checkOrder is check for one order.
func (l *ledger) checkOrder(id string, poison bool, say func(string, ...any)) {
	a := l.accounts[id]
	effects, cut := l.effects(a)
	switch {
	case poison && effects > 0:
		say("%s cannot succeed, but has an effect", id)
	case poison && a.deadLettered == 0:
		say("%s is lost: it is poison, but not in the dead letter topic", id)
	case poison:
	case a.deadLettered > 0:
		say("%s was dead-lettered without a reason", id)
	case effects == 0:
		say("%s is lost", id)
	case effects-1 != cut:
		say("%s: effect %d times, but %d kills between effect and verdict", id, effects, cut)
	}
	for i, h := range a.runs {
		if l.inRows && i < len(a.runs)-1 {
			continue // its transaction was rolled back, as its successor shows
		}
		if !h.over() && !h.cut {
			say("%s: a run in child %d has neither an end nor a kill", id, h.child)
		}
	}
}

// unplaced tells of kills that did not happen as the schedule says: the run then proves less than it claims.
func (l *ledger) unplaced(s *schedule) (wrong []string) {
	due := make(map[point]int)
	for _, p := range s.kills {
		due[p]++
	}
	for _, p := range [...]point{beforeEffect, inWindow, beforeAck} {
		if l.kills[p] != due[p] {
			wrong = append(wrong, fmt.Sprintf("%d of %d kills %v took place", l.kills[p], due[p], p))
		}
	}
	return wrong
}
