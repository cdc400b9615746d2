package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

func newEnv(tb testing.TB) env {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(tb)})
	tb.Cleanup(func() { rdb.Close() })
	return env{brokers: testenv.Kafka(tb), rdb: rdb}
}

// fill makes a topic of n messages whose IDs are those of distinct pieces of work.
func fill(tb testing.TB, e env, n, distinct int) string {
	tb.Helper()
	topic := newGroup()
	client := &kafka.Client{Addr: kafka.TCP(e.brokers...)}
	_, err := client.CreateTopics(context.Background(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		_, _ = client.DeleteTopics(context.Background(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	})
	w := &kafka.Writer{Addr: kafka.TCP(e.brokers...), Topic: topic, BatchSize: 5000, BatchBytes: 1 << 20, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Balancer: &kafka.RoundRobin{}}
	defer w.Close()
	body := make([]byte, bodySize)
	for at := 0; at < n; {
		ms := make([]kafka.Message, 0, 10_000)
		for ; at < n && len(ms) < cap(ms); at++ {
			ms = append(ms, kafka.Message{Value: body, Headers: []kafka.Header{{Key: "message-id", Value: fmt.Appendf(nil, "%s-%d", topic, at%distinct)}}})
		}
		require.NoError(tb, w.WriteMessages(context.Background(), ms...))
	}
	return topic
}

// BenchmarkConsume drains a filled topic with each subject in turn, five rounds, and prints
// the medians: the machine's moods hit all alike, so the ratios hold where the numbers do not.
// Allocations are those of the whole process while the subject ran, its start and end included.
func BenchmarkConsume(b *testing.B) {
	const n, rounds = 200_000, 5
	e := newEnv(b)
	for b.Loop() {
		for _, load := range []struct {
			name     string
			distinct int
		}{{"all different", n}, {"99 % duplicates", n / 100}} {
			topic := fill(b, e, n, load.distinct)
			rates, allocs, bytes := make([][]float64, len(subjects)), make([][]float64, len(subjects)), make([][]float64, len(subjects))
			for range rounds {
				for i, s := range subjects {
					before := memory()
					rates[i] = append(rates[i], n/s.run(b, e, topic, n).Seconds())
					after := memory()
					allocs[i] = append(allocs[i], float64(after.Mallocs-before.Mallocs)/n)
					bytes[i] = append(bytes[i], float64(after.TotalAlloc-before.TotalAlloc)/n)
				}
			}
			for i, s := range subjects {
				b.Logf("%-16s %-36s %8.0f msg/s %5.1f allocs %6.0f B a message", load.name, s.name, median(rates[i]), median(allocs[i]), median(bytes[i]))
			}
		}
	}
}

func memory() (m runtime.MemStats) {
	runtime.ReadMemStats(&m)
	return m
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}
