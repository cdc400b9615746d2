package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"

	idemqkafka "github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

const (
	partitions = 4
	bodySize   = 512
)

// subject consumes n messages of topic with a no-op handler, in a new group, and returns how
// long that took from the first message to the last.
type subject struct {
	name string
	run  func(tb testing.TB, e env, topic string, n int) time.Duration
}

type env struct {
	brokers []string
	rdb     *redis.Client
}

var subjects = []subject{
	{"kafka-go fetch, no dedup, no group", runFetch},
	{"kafka-go Reader, no dedup", runReader},
	{"naive SETNX loop", runSetNX},
	{"idemq", runIdemq},
}

// stopwatch runs from the first tick to the n-th.
type stopwatch struct {
	n     int64
	seen  atomic.Int64
	begun atomic.Int64
	done  chan time.Duration
}

func newStopwatch(n int) *stopwatch {
	return &stopwatch{n: int64(n), done: make(chan time.Duration, 1)}
}

func (s *stopwatch) tick() {
	switch s.seen.Add(1) {
	case 1:
		s.begun.Store(time.Now().UnixNano())
	case s.n:
		s.done <- time.Duration(time.Now().UnixNano() - s.begun.Load())
	}
}

func (s *stopwatch) wait(tb testing.TB) time.Duration {
	select {
	case d := <-s.done:
		return d
	case <-time.After(5 * time.Minute):
		tb.Fatalf("only %d of %d messages came", s.seen.Load(), s.n)
		return 0
	}
}

var groups atomic.Int64

func newGroup() string { return fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), groups.Add(1)) }

func reader(e env, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: e.brokers, Topic: topic, GroupID: newGroup(), MinBytes: 1, MaxBytes: 10 << 20,
		StartOffset: kafka.FirstOffset, QueueCapacity: 1000,
	})
}

func runReader(tb testing.TB, e env, topic string, n int) time.Duration {
	r := reader(e, topic)
	defer r.Close()
	return loop(tb, r, n, func(kafka.Message) bool { return true })
}

// loop commits every 500 messages.
func loop(tb testing.TB, r *kafka.Reader, n int, handle func(kafka.Message) bool) time.Duration {
	ctx := context.Background()
	w := newStopwatch(n)
	batch := make([]kafka.Message, 0, 500)
	for range n {
		m, err := r.FetchMessage(ctx)
		require.NoError(tb, err)
		handle(m)
		w.tick()
		if batch = append(batch, m); len(batch) == cap(batch) {
			require.NoError(tb, r.CommitMessages(ctx, batch...))
			batch = batch[:0]
		}
	}
	return w.wait(tb)
}

func runSetNX(tb testing.TB, e env, topic string, n int) time.Duration {
	r := reader(e, topic)
	defer r.Close()
	prefix := newGroup()
	return loop(tb, r, n, func(m kafka.Message) bool {
		ok, err := e.rdb.SetNX(context.Background(), prefix+string(m.Headers[0].Value), 1, 25*time.Hour).Result()
		require.NoError(tb, err)
		return ok
	})
}

func runFetch(tb testing.TB, e env, topic string, n int) time.Duration {
	tr := &kafka.Transport{}
	defer tr.CloseIdleConnections()
	w := newStopwatch(n)
	req := &fetch.Request{ReplicaID: -1, MaxWaitTime: 500, MinBytes: 1, MaxBytes: 10 << 20, IsolationLevel: 1,
		Topics: []fetch.RequestTopic{{Topic: topic}}}
	for p := range partitions {
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetch.RequestPartition{Partition: int32(p), CurrentLeaderEpoch: -1, LogStartOffset: -1, PartitionMaxBytes: 1 << 20})
	}
	for w.seen.Load() < int64(n) {
		answer, err := tr.RoundTrip(context.Background(), kafka.TCP(e.brokers...), req)
		require.NoError(tb, err)
		for i, p := range answer.(*fetch.Response).Topics[0].Partitions {
			_ = i
			if p.RecordSet.Records == nil {
				continue
			}
			next := &req.Topics[0].Partitions[p.Partition].FetchOffset
			for _, b := range p.RecordSet.Records.(*protocol.RecordStream).Records {
				for {
					r, err := b.ReadRecord()
					if err == io.EOF {
						break
					}
					require.NoError(tb, err)
					body, err := protocol.ReadAll(r.Value)
					require.NoError(tb, err)
					_ = body
					if r.Offset >= *next {
						*next = r.Offset + 1
						w.tick()
					}
				}
			}
		}
	}
	return w.wait(tb)
}

// runIdemq ticks once a message is settled, as duplicates never reach a handler.
func runIdemq(tb testing.TB, e env, topic string, n int) time.Duration {
	store := redisstore.New(e.rdb, nil)
	quiet := slog.New(slog.DiscardHandler)
	w := newStopwatch(n)
	guard, err := dedup.New(newGroup(), store, &dedup.Options{Logger: quiet, Observe: func(ev dedup.Event) {
		if ev.Name == "settle" && ev.Cause != "give_back" {
			w.tick()
		}
	}})
	require.NoError(tb, err)
	source, err := idemqkafka.NewSource(idemqkafka.Cluster{Brokers: e.brokers}, newGroup(), []string{topic}, &idemqkafka.SourceOptions{Logger: quiet})
	require.NoError(tb, err)
	c, err := consumer.New(source, guard, func(context.Context, *consumer.Message) error { return nil }, nil)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	took := w.wait(tb)
	cancel()
	require.NoError(tb, <-ended)
	require.EqualValues(tb, n, c.Stats().Done+c.Stats().Duplicates)
	return took
}
