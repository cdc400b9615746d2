package bench

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// BenchmarkConsume drains filled topics with each subject of each broker in turn, five rounds, and
// prints the medians: the machine's moods hit all alike, so the ratios hold where the numbers do
// not. Allocations are those of the whole process, and CPU times those of the three, while the subject
// ran, its start and end included.
func BenchmarkConsume(b *testing.B) {
	e := newEnv(b)
	for b.Loop() {
		for _, l := range loads {
			throughput(b, e, l, func(b broker) int { return b.messages }, 5)
		}
	}
}

type load struct {
	name     string
	distinct func(n int) int
}

var loads = []load{
	{"all different", func(n int) int { return n }},
	{"99 % duplicates", func(n int) int { return max(n/100, 1) }},
}

func throughput(tb testing.TB, e env, l load, count func(broker) int, rounds int) {
	results := make([][]result, len(e.brokers))
	topics := make([]string, len(e.brokers))
	for i, b := range e.brokers {
		results[i] = make([]result, len(e.subjects(b)))
		if !b.once {
			topic, drop := b.fill(tb, count(b), l.distinct(count(b)))
			defer drop()
			topics[i] = topic
		}
	}
	for range rounds {
		for i, b := range e.brokers {
			for j, s := range e.subjects(b) {
				results[i][j].add(once(tb, e, b, s, topics[i], count(b), l))
			}
		}
	}
	for i, b := range e.brokers {
		for j, s := range e.subjects(b) {
			tb.Logf("%-9s %-16s %-36s %v", b.name, l.name, s.name, &results[i][j])
		}
	}
}

// once is one run of s, on a topic of its own where there is none.
func once(tb testing.TB, e env, b broker, s subject, topic string, n int, l load) measures {
	if topic == "" {
		filled, drop := b.fill(tb, n, l.distinct(n))
		defer drop()
		topic = filled
	}
	servers := e.servers(b)
	before, cpu := memory(), servers.spent()
	took := s.time(tb, topic, n)
	after, spent := memory(), servers.spent()
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(n) }
	return measures{
		float64(n) / took.Seconds(), float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n),
		each(spent.self - cpu.self), each(spent.broker - cpu.broker), each(spent.redis - cpu.redis),
	}
}

// measures are messages a second, and for each message allocations, bytes, and microseconds of CPU
// time of this process, of the broker and of Redis.
type measures [6]float64

// result collects those of several rounds.
type result [6][]float64

func (r *result) add(m measures) {
	for i, x := range m {
		r[i] = append(r[i], x)
	}
}

func (r *result) String() string {
	var m measures
	for i, xs := range r {
		m[i] = median(xs)
	}
	return fmt.Sprintf("%8.0f msg/s; a message %5.1f allocs %6.0f B, CPU %5.1f µs here, %5.1f µs broker, %5.1f µs Redis", m[0], m[1], m[2], m[3], m[4], m[5])
}

func memory() (m runtime.MemStats) {
	runtime.ReadMemStats(&m)
	return m
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}
