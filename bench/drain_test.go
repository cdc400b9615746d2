package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// BenchmarkDrain publishes committed rows of PostgreSQL through relays, beside watermill's forwarder, and as many
// messages without any table through the client library and through idemq's Publisher alone, with the same window.
func BenchmarkDrain(b *testing.B) {
	for _, of := range []func(testing.TB) broker{newRabbitMQ, newKafka, newRocketMQ} {
		target := of(b)
		b.Run(target.name, func(b *testing.B) {
			for b.Loop() {
				drains(b, target, full)
			}
		})
	}
}

// drainer moves n messages to a topic, from a table or from nowhere.
type drainer struct {
	name string
	rows int
	run  func(tb testing.TB, topic string, n int) drained
}

// drained is what that took: time, CPU time of this process and of the connections to PostgreSQL, statements.
type drained struct {
	took, cpu, server time.Duration
	statements        int64
}

// watch is what has been spent until it began.
type watch struct {
	p, admin    *pool
	begun       time.Time
	cpu, server time.Duration
	statements  int64
}

func newWatch(tb testing.TB, p, admin *pool) watch {
	w := watch{p: p, admin: admin}
	if p != nil {
		w.server, w.statements = p.serverCPU(tb, admin), p.n.Load()
	}
	w.cpu, w.begun = cpu(), time.Now()
	return w
}

func (w watch) stop(tb testing.TB) drained {
	d := drained{took: time.Since(w.begun), cpu: cpu() - w.cpu}
	if w.p != nil {
		d.statements = w.p.n.Load() - w.statements
		d.server = w.p.serverCPU(tb, w.admin) - w.server
	}
	return d
}

func drainers(target broker, s sizes) []drainer {
	all := []drainer{
		{target.raw.name, s.rows, func(tb testing.TB, topic string, n int) drained {
			return target.raw.publish(tb, topic, n)
		}},
		{"idemq's Publisher alone", s.rows, func(tb testing.TB, topic string, n int) drained {
			p := target.publisher(tb)
			defer func() { require.NoError(tb, p.Close()) }()
			return publishAlone(tb, p, topic, n)
		}},
	}
	for _, k := range []int{1, 2, 4} {
		all = append(all, drainer{fmt.Sprintf("**idemq, relays: %d**", k), s.rows, func(tb testing.TB, topic string, n int) drained {
			return drain(tb, target, topic, n, k)
		}})
	}
	if target.forwards {
		all = append(all, drainer{"watermill's forwarder", min(s.watermillRows, s.rows), forward})
	}
	return all
}

func drains(tb testing.TB, target broker, s sizes) {
	all := drainers(target, s)
	rates, statements, here, server := make([][]float64, len(all)), make([][]float64, len(all)), make([][]float64, len(all)), make([][]float64, len(all))
	for range s.rounds {
		for i, d := range all {
			topic, drop := target.create(tb)
			got := d.run(tb, topic, d.rows)
			require.GreaterOrEqual(tb, target.count(tb, topic), int64(d.rows), "%s: messages that the broker has", d.name)
			drop()
			n := float64(d.rows)
			rates[i], statements[i] = append(rates[i], n/got.took.Seconds()), append(statements[i], float64(got.statements)/n)
			here[i], server[i] = append(here[i], float64(got.cpu.Microseconds())/n), append(server[i], float64(got.server.Microseconds())/n)
		}
	}
	t := newTable("to "+target.name, "messages a second", "of the client library alone", "times watermill", "statements a message", "CPU a message: this process", "PostgreSQL")
	last := len(all) - 1
	for i, d := range all {
		times, asked, theirs := "–", "–", "–"
		if target.forwards {
			times = fmt.Sprintf("%.1f", median(rates[i])/median(rates[last]))
		}
		if median(statements[i]) > 0 {
			asked, theirs = fmt.Sprintf("%.3f", median(statements[i])), fmt.Sprintf("%.0f µs", median(server[i]))
		}
		t.add(d.name, spread(rates[i]), fmt.Sprintf("%.0f %%", 100*median(rates[i])/median(rates[0])), times, asked, fmt.Sprintf("%.0f µs", median(here[i])), theirs)
	}
	title := fmt.Sprintf("Drain of %s committed rows of %d B, window %d, medians of %d rounds", count(float64(s.rows)), bodySize, window, s.rounds)
	if target.forwards {
		title += fmt.Sprintf("; watermill's forwarder has %s rows", count(float64(all[last].rows)))
	}
	t.print(title + ":")
}

// drain is how long relays need for rows that are committed. They know their shards before the rows are there, do
// not poll, and are woken all at once; later they are woken as often as they would poll. One that looks too early, since it was
// late to notice its shards, stands before the gate with what it has read.
func drain(tb testing.TB, target broker, topic string, n, relays int) drained {
	table, open := newOutbox(tb), make(chan struct{})
	publishers := make([]outbox.Publisher, relays)
	for i := range publishers {
		p := target.publisher(tb)
		publishers[i] = &gate{p, open}
		defer func() { require.NoError(tb, p.Close()) }()
	}
	stop := table.start(tb, time.Hour, 6*time.Second, publishers...)
	defer stop()
	table.fill(tb, topic, n)
	w := newWatch(tb, table.pool, table.admin)
	close(open)
	table.Wake()
	await(tb, table.admin, "SELECT NOT EXISTS (SELECT 1 FROM "+table.Table()+" WHERE state = 0)", table.Wake)
	return w.stop(tb)
}

// gate publishes nothing until it is open.
type gate struct {
	outbox.Publisher
	open <-chan struct{}
}

func (g *gate) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	<-g.open
	return g.Publisher.Publish(ctx, ms, errs)
}
