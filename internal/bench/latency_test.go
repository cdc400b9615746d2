package bench

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// BenchmarkLatency tells how long after the producer has made it a message is handled, at 500 messages
// a second and at 1,000: by the broker's client alone, and by idemq. It prints the medians of five rounds.
func BenchmarkLatency(b *testing.B) {
	for _, rate := range []int{500, 1_000} {
		b.Run(fmt.Sprintf("%d a second", rate), func(b *testing.B) {
			e := newEnv(b)
			for b.Loop() {
				latency(b, e, rate, 5*rate, 5)
			}
		})
	}
}

func latency(tb testing.TB, e env, rate, n, rounds int) {
	for _, b := range e.brokers {
		subjects := []subject{{b.clients[0].name, b.clients[0].plain}, e.idemq(b)}
		p50, p99 := make([][]float64, len(subjects)), make([][]float64, len(subjects))
		for range rounds {
			for i, s := range subjects {
				took := s.latencies(tb, b, rate, n)
				p50[i] = append(p50[i], took[n/2].Seconds()*1000)
				p99[i] = append(p99[i], took[n*99/100].Seconds()*1000)
			}
		}
		for i, s := range subjects {
			tb.Logf("%-9s %-36s p50 %6.2f ms, p99 %6.2f ms", b.name, s.name, median(p50[i]), median(p99[i]))
		}
	}
}

// latencies has n messages sent to s, some each hundredth of a second, and returns how long each
// was under way, sorted.
func (s subject) latencies(tb testing.TB, b broker, rate, n int) []time.Duration {
	topic, drop := b.create(tb)
	defer drop()
	p := b.publish(tb)
	some := rate / 100
	warming := 10 * some // until a share of each server and connection is there; not counted
	for at := range b.shares {
		send(tb, p, []outbox.Message{newMessage(topic, at, time.Now())})
	}
	var mu sync.Mutex
	var took []time.Duration
	joined, all := make(chan struct{}), make(chan struct{})
	stop := s.run(tb, topic, observer{settled: func() {}, handled: func(body []byte) {
		mu.Lock()
		defer mu.Unlock()
		switch took = append(took, age(body)); len(took) {
		case b.shares:
			close(joined)
		case b.shares + warming + n:
			close(all)
		}
	}})
	await(tb, joined, "the first messages")
	var sending sync.WaitGroup
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for at := 0; at < warming+n; at += some {
		<-tick.C
		ms := make([]outbox.Message, some)
		for i := range ms {
			ms[i] = newMessage(topic, b.shares+at+i, time.Now())
		}
		sending.Go(func() { send(tb, p, ms) }) // however long the answer takes
	}
	sending.Wait()
	await(tb, all, "all messages")
	stop()
	require.NoError(tb, p.Close())
	took = took[b.shares+warming:]
	slices.Sort(took)
	return took
}

func await(tb testing.TB, event <-chan struct{}, what string) {
	tb.Helper()
	select {
	case <-event:
	case <-time.After(time.Minute):
		tb.Fatalf("%s did not come", what)
	}
}
