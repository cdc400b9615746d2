package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// BenchmarkIdleRelay counts what relays ask an empty table, and what that costs.
func BenchmarkIdleRelay(b *testing.B) {
	for b.Loop() {
		idles(b, full)
	}
}

func idles(tb testing.TB, s sizes) {
	t := newTable("idle relays, in one process", "statements a second, each", "CPU of this process, each", "CPU of PostgreSQL, each")
	for _, k := range []int{1, 4} {
		statements, here, server := idle(tb, k, s.idle)
		t.add(fmt.Sprint(k), fmt.Sprintf("%.1f", statements), fmt.Sprintf("%.2f %%", 100*here), fmt.Sprintf("%.2f %%", 100*server))
	}
	t.print(fmt.Sprintf("An idle relay with default options, over %v; CPU is of one core:", s.idle))
}

// idle returns statements a second, and shares of a core, of one of so many relays.
func idle(tb testing.TB, relays int, long time.Duration) (statements, here, server float64) {
	table, target := newOutbox(tb), newRabbitMQ(tb)
	publishers := make([]outbox.Publisher, relays)
	for i := range publishers {
		p := target.publisher(tb)
		publishers[i] = p
		defer func() { require.NoError(tb, p.Close()) }()
	}
	stop := table.start(tb, 0, 0, publishers...)
	defer stop()
	asked, mine, theirs, begun := table.pool.n.Load(), cpu(), table.pool.serverCPU(tb, table.admin), time.Now()
	<-time.After(long)
	each := time.Since(begun).Seconds() * float64(relays)
	return float64(table.pool.n.Load()-asked) / each, (cpu() - mine).Seconds() / each, (table.pool.serverCPU(tb, table.admin) - theirs).Seconds() / each
}
