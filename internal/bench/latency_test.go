package bench

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	idemqkafka "github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

// BenchmarkLatency tells how long after the producer's send a message is handled, at 1,000
// messages a second.
func BenchmarkLatency(b *testing.B) {
	const n = 5_000
	e := newEnv(b)
	for b.Loop() {
		for _, s := range []struct {
			name string
			run  func(testing.TB, env, string, func(time.Time)) (stop func())
		}{{"kafka-go Reader, no dedup", readFor}, {"idemq", idemqFor}} {
			topic := fill(b, e, partitions, partitions) // each partition has had a message, so all is warm
			var mu sync.Mutex
			var took []time.Duration
			warm, all := make(chan struct{}), make(chan struct{})
			stop := s.run(b, e, topic, func(sent time.Time) {
				mu.Lock()
				defer mu.Unlock()
				switch took = append(took, time.Since(sent)); len(took) {
				case partitions:
					close(warm)
				case n + partitions:
					close(all)
				}
			})
			w := &kafka.Writer{Addr: kafka.TCP(e.brokers...), Topic: topic, BatchTimeout: time.Millisecond, RequiredAcks: kafka.RequireOne, Async: true, Balancer: &kafka.RoundRobin{}}
			<-warm // the group has been joined
			tick := time.NewTicker(10 * time.Millisecond)
			body := make([]byte, bodySize)
			for at := 0; at < n; at += 10 {
				<-tick.C
				ms := make([]kafka.Message, 10)
				for i := range ms {
					ms[i] = kafka.Message{Value: body, Time: time.Now(), Headers: []kafka.Header{{Key: "message-id", Value: []byte(topic + time.Now().String())}}}
				}
				require.NoError(b, w.WriteMessages(context.Background(), ms...))
			}
			<-all
			stop()
			require.NoError(b, w.Close())
			took = took[partitions:]
			slices.Sort(took)
			b.Logf("%-30s p50 %v, p99 %v", s.name, took[n/2].Round(10*time.Microsecond), took[n*99/100].Round(10*time.Microsecond))
		}
	}
}

func readFor(tb testing.TB, e env, topic string, seen func(time.Time)) func() {
	r := reader(e, topic)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		var batch []kafka.Message
		for {
			m, err := r.FetchMessage(ctx)
			if err != nil {
				return
			}
			seen(m.Time)
			if batch = append(batch, m); len(batch) == 500 {
				_ = r.CommitMessages(ctx, batch...)
				batch = batch[:0]
			}
		}
	})
	return func() { cancel(); ended.Wait(); r.Close() }
}

func idemqFor(tb testing.TB, e env, topic string, seen func(time.Time)) func() {
	quiet := slog.New(slog.DiscardHandler)
	guard, err := dedup.New(newGroup(), redisstore.New(e.rdb, nil), &dedup.Options{Logger: quiet})
	require.NoError(tb, err)
	source, err := idemqkafka.NewSource(idemqkafka.Cluster{Brokers: e.brokers}, newGroup(), []string{topic}, &idemqkafka.SourceOptions{Logger: quiet})
	require.NoError(tb, err)
	c, err := consumer.New(source, guard, func(_ context.Context, m *consumer.Message) error { seen(m.Time); return nil }, nil)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() { cancel(); require.NoError(tb, <-ended) }
}
