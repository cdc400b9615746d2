package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// plan has one order of each fate.
func plan() *schedule {
	return &schedule{
		orders:    []string{"plain", "early", "window", "late", "failing", "poison"},
		published: []string{"plain", "early", "window", "late", "failing", "poison", "plain"},
		failures:  map[string]int{"failing": 1},
		poison:    map[string]bool{"poison": true},
		kills:     map[string]point{"early": beforeEffect, "window": inWindow, "late": beforeAck},
	}
}

// handle is a run that ends well.
func handle(l *ledger, child int, order string, copy int) {
	l.begin(child, order, place(copy))
	l.effect(child, order)
	l.verdict(child, order)
}

// faultless is the ledger of a run in which all went as promised; skip leaves the rest of one order out.
func faultless(skip string) *ledger {
	l := newLedger(plan())
	l.receive(7)
	steps := map[string]func(){
		"plain": func() { handle(l, 1, "plain", 0); l.duplicate("plain", place(6)) },
		"early": func() { l.begin(1, "early", place(1)); l.kill(1, beforeEffect); handle(l, 2, "early", 1) },
		"window": func() {
			l.begin(2, "window", place(2))
			l.effect(2, "window")
			l.kill(2, inWindow)
			handle(l, 3, "window", 2)
		},
		"late":    func() { handle(l, 3, "late", 3); l.kill(3, beforeAck); l.receive(1); l.duplicate("late", place(3)) },
		"failing": func() { l.begin(4, "failing", place(4)); l.fail(4, "failing"); handle(l, 4, "failing", 4) },
		"poison":  func() { l.begin(4, "poison", place(5)); l.fail(4, "poison"); l.deadLetter("poison") },
	}
	for _, id := range plan().orders {
		if id != skip {
			steps[id]()
		}
	}
	return l
}

func TestFaultlessLedgerAddsUp(t *testing.T) {
	l := faultless("")
	require.Empty(t, l.check(plan()))
	got := l.tally("idemq")
	got.kills = nil
	require.Equal(t, tally{
		Subject: "idemq", Published: 7, Delivered: 8, Runs: 9, Duplicates: 2, Retried: 1, TakenOver: 2, DeadLettered: 1,
		Doubled: 1, DoubledInWindow: 1, orders: 6, producer: 1, redelivered: 1,
	}, got)
}

func TestCheckerFindsWhatDoesNotAddUp(t *testing.T) {
	for _, c := range []struct {
		name   string
		skip   string
		change func(l *ledger)
		want   string
	}{
		{"an order without an effect", "plain", nil, "plain is lost"},
		{"a poison order without a dead letter", "poison", func(l *ledger) { l.begin(4, "poison", place(5)); l.fail(4, "poison") }, "poison is lost: it is poison, but not in the dead letter topic"},
		{"a poison order with an effect", "", func(l *ledger) { handle(l, 4, "poison", 5) }, "poison cannot succeed, but has an effect"},
		{"an effect twice without a kill", "", func(l *ledger) { handle(l, 4, "plain", 0) }, "plain: effect 2 times, but 0 kills between effect and verdict"},
		{"an effect twice after a kill before the effect", "", func(l *ledger) { handle(l, 4, "early", 1) }, "early: effect 2 times, but 0 kills between effect and verdict"},
		{"an effect three times after one kill", "", func(l *ledger) { handle(l, 4, "window", 2) }, "window: effect 3 times, but 1 kills between effect and verdict"},
		{"a kill in the window that repeats nothing", "window", func(l *ledger) { l.begin(2, "window", place(2)); l.effect(2, "window"); l.kill(2, inWindow) }, "window: effect 1 times, but 1 kills between effect and verdict"},
		{"a healthy order in the dead letters", "", func(l *ledger) { l.deadLetter("plain") }, "plain was dead-lettered without a reason"},
		{"a run that never ended", "", func(l *ledger) { l.begin(4, "plain", place(0)) }, "plain: a run in child 4 has neither an end nor a kill"},
		{"a dead letter of nobody", "", func(l *ledger) { l.deadLetter("ghost") }, "dead letter of unknown order ghost"},
		{"an effect outside a run", "", func(l *ledger) { l.effect(9, "plain") }, "effect of plain that was not running"},
		{"more producer duplicates than were sent", "", func(l *ledger) { l.duplicate("plain", place(7)) }, "2 producer duplicates were acknowledged, but only 1 were sent"},
		{"a kill that did not take place", "late", func(l *ledger) { handle(l, 3, "late", 3) }, "0 of 1 kills between verdict and ack took place"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := faultless(c.skip)
			if c.change != nil {
				c.change(l)
			}
			require.Contains(t, l.check(plan()), c.want)
		})
	}
}

// Where effects are rows, what was cut off from its verdict was rolled back with it.
func TestCheckerOfRowsWantsEachOnce(t *testing.T) {
	rows := func(change func(l *ledger)) []string {
		l := faultless("")
		l.inRows = true
		for _, id := range []string{"plain", "early", "window", "late", "failing"} {
			l.row(id, 1)
		}
		change(l)
		return l.check(plan())
	}
	require.Empty(t, rows(func(*ledger) {}))
	require.Contains(t, rows(func(l *ledger) { l.row("window", 1) }), "1 effects were repeated, which one transaction with the verdict rules out")
	require.Contains(t, rows(func(l *ledger) { l.accounts["early"].rows = 0 }), "early is lost")
	require.Contains(t, rows(func(l *ledger) { l.row("poison", 1) }), "poison cannot succeed, but has an effect")
	require.Contains(t, rows(func(l *ledger) { l.row("ghost", 1) }), "row of unknown order ghost")
}

func TestLostAndRepeatedOrdersAreCounted(t *testing.T) {
	l := faultless("plain")
	handle(l, 4, "late", 3)
	got := l.tally("")
	require.Equal(t, 1, got.Lost)
	require.Equal(t, 2, got.Doubled)
	require.Equal(t, 1, got.DoubledInWindow)
}

func TestCopiesAreUnsettledUntilTheyAreAcknowledged(t *testing.T) {
	d, _ := stage()
	acknowledge := func(child int, order string, at place, ran bool) {
		d.take(t.Context(), report{Child: child, Kind: ack, Orders: []string{order}, At: at, Ran: ran})
	}
	require.Equal(t, 7, d.ledger.unsettled())
	handle(d.ledger, 1, "plain", 1)
	acknowledge(1, "plain", 1, true)
	acknowledge(1, "plain", 7, false)
	acknowledge(2, "plain", 7, false)
	require.Equal(t, 5, d.ledger.unsettled(), "a copy that comes again is no further one")

	answered(t, d, 3, begin, "late", goOn)
	answered(t, d, 3, effect, "late", goOn)
	acknowledge(3, "late", 4, true)
	require.Equal(t, 5, d.ledger.unsettled(), "its child was killed instead")
}

func TestDuplicateOfACopyThatComesAgainIsTheBrokers(t *testing.T) {
	l := newLedger(plan())
	handle(l, 1, "plain", 0)
	l.duplicate("plain", place(6))
	l.duplicate("plain", place(6))
	l.duplicate("plain", place(0))
	got := l.tally("")
	require.Equal(t, 1, got.producer)
	require.Equal(t, 2, got.redelivered)
}

func TestOrderThatHasBegunAnewIsNotWaitedFor(t *testing.T) {
	for _, child := range []int{1, 2} {
		l := newLedger(plan())
		l.begin(1, "plain", place(0))
		l.effect(1, "plain")
		require.Equal(t, 1, l.open(1, "late"))
		l.begin(child, "plain", place(0))
		require.Zero(t, l.open(1, "late"), "begun again in child %d", child)
	}
}
