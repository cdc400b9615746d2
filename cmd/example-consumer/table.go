package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// row is a row of the table.
type row struct {
	name string
	of   func(t *tally) int
}

// table renders a column a subject.
func table(columns []tally) string {
	rows := []row{
		{"published", func(t *tally) int { return t.Published }},
		{"  of these different orders", func(t *tally) int { return t.orders }},
		{"delivered", func(t *tally) int { return t.Delivered }},
		{"handler runs", func(t *tally) int { return t.Runs }},
		{"duplicates dropped", func(t *tally) int { return t.Duplicates }},
		{"  sent again by the producer", func(t *tally) int { return t.producer }},
		{"  brought again by the broker", func(t *tally) int { return t.redelivered }},
		{"retried after a failure", func(t *tally) int { return t.Retried }},
		{"taken over after a kill", func(t *tally) int { return t.TakenOver }},
		{"dead-lettered", func(t *tally) int { return t.DeadLettered }},
		{"children killed", func(t *tally) int { return t.kills[beforeEffect] + t.kills[inWindow] + t.kills[beforeAck] }},
		{"  before the effect", func(t *tally) int { return t.kills[beforeEffect] }},
		{"  between effect and verdict", func(t *tally) int { return t.kills[inWindow] }},
		{"  between verdict and ack", func(t *tally) int { return t.kills[beforeAck] }},
		{"LOST", func(t *tally) int { return t.Lost }},
		{"DONE TWICE", func(t *tally) int { return t.Doubled }},
		{"  of these in the named window", func(t *tally) int { return t.DoubledInWindow }},
	}
	if columns[0].Outbox != nil {
		rows = append(passageRows(), rows...)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	wide := 0
	for _, r := range rows {
		wide = max(wide, len(r.name))
	}
	line := func(name string, cell func(t *tally) string) {
		fmt.Fprintf(w, "%-*s\t", wide, name)
		for i := range columns {
			fmt.Fprintf(w, "%s\t", cell(&columns[i]))
		}
		fmt.Fprintln(w)
	}
	line("", func(t *tally) string { return t.Subject })
	for _, r := range rows {
		line(r.name, func(t *tally) string { return fmt.Sprint(r.of(t)) })
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}

// words says what the columns show.
func words(columns []tally) string {
	var b strings.Builder
	for i := range columns {
		t := &columns[i]
		kills := t.kills[inWindow]
		switch {
		case t.Subject == setnxSubject:
			fmt.Fprintf(&b, "The SETNX loop lost %d of %d orders: it writes the key before the work, so whatever fails or dies after that is taken for done.\n", t.Lost, t.orders)
		case t.Subject == txSubject && t.Lost == 0 && t.Doubled == 0:
			fmt.Fprintf(&b, "With effect and verdict in one database transaction that window is closed: %d children were killed in it, and nothing was lost or done twice.\n", kills)
		case t.Subject == idemqSubject && t.Lost == 0 && t.Doubled == t.DoubledInWindow && t.Doubled == kills:
			fmt.Fprintf(&b, "idemq lost none. It did %d twice, exactly as often as a child was killed between effect and verdict; no other kill, failure or duplicate repeated an effect.\n", t.Doubled)
		default:
			fmt.Fprintf(&b, "%s lost %d and did %d twice, with %d children killed between effect and verdict: THIS DOES NOT ADD UP.\n", t.Subject, t.Lost, t.Doubled, kills)
		}
	}
	if columns[0].Outbox != nil {
		b.WriteString(passageWords(columns))
	}
	return b.String()
}
