package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
)

// metrics counts events for Prometheus. It needs no list of them.
type metrics struct {
	mu     sync.Mutex
	counts map[series]int
	took   map[series]duration
}

type series struct{ name, cause, scope string }

type duration struct {
	calls int
	sum   time.Duration
}

func newMetrics() *metrics {
	return &metrics{counts: make(map[series]int), took: make(map[series]duration)}
}

// observe is dedup.Options.Observe.
func (m *metrics) observe(e dedup.Event) {
	s := series{e.Name, e.Cause, e.Scope}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[s] += e.N
	if e.Took > 0 {
		d := m.took[s]
		d.calls++
		d.sum += e.Took
		m.took[s] = d
	}
}

// labels writes s as Prometheus reads it.
func (s series) labels() string {
	esc := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	return fmt.Sprintf(`{event="%s",cause="%s",scope="%s"}`, esc.Replace(s.name), esc.Replace(s.cause), esc.Replace(s.scope))
}

func compare(a, b series) int {
	return strings.Compare(a.name+"\x00"+a.cause+"\x00"+a.scope, b.name+"\x00"+b.cause+"\x00"+b.scope)
}

// write renders everything in Prometheus' text format.
func (m *metrics) write(w io.Writer, s consumer.Stats) {
	m.mu.Lock()
	counts, took := maps.Clone(m.counts), maps.Clone(m.took)
	m.mu.Unlock()

	fmt.Fprintln(w, "# HELP idemq_events_total What happened, by event and cause.\n# TYPE idemq_events_total counter")
	for _, k := range slices.SortedFunc(maps.Keys(counts), compare) {
		fmt.Fprintf(w, "idemq_events_total%s %d\n", k.labels(), counts[k])
	}
	fmt.Fprintln(w, "# HELP idemq_duration_seconds How long it took.\n# TYPE idemq_duration_seconds summary")
	for _, k := range slices.SortedFunc(maps.Keys(took), compare) {
		fmt.Fprintf(w, "idemq_duration_seconds_sum%s %g\n", k.labels(), took[k].sum.Seconds())
		fmt.Fprintf(w, "idemq_duration_seconds_count%s %d\n", k.labels(), took[k].calls)
	}
	receiving := 0
	if s.Receiving {
		receiving = 1
	}
	for _, g := range []struct {
		name, help string
		value      int64
	}{
		{"running", "Handlers that run.", s.Running},
		{"waiting", "Deliveries that are held in any other way.", s.Waiting},
		{"zombies", "Handlers that do not end although their time is over.", s.Zombies},
		{"receiving", "1 while messages are received.", int64(receiving)},
	} {
		fmt.Fprintf(w, "# HELP idemq_%s %s\n# TYPE idemq_%s gauge\nidemq_%s %d\n", g.name, g.help, g.name, g.name, g.value)
	}
}
