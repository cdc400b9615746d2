package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/internal/testenv"
)

// TestWhatWaitsForItsRetryIsDeliveredToTheNextConsumer: the position stays before a message that waits for an
// hour, although those behind it are done; so the next member of the group gets all of them, and runs only that one.
func TestWhatWaitsForItsRetryIsDeliveredToTheNextConsumer(t *testing.T) {
	p := newPair(t, testenv.Kafka(t), "")
	pool := &kafkago.Transport{}
	defer pool.CloseIdleConnections()
	w := &kafkago.Writer{
		Addr: kafkago.TCP(p.brokers...), Topic: p.topic, RequiredAcks: kafkago.RequireAll, BatchTimeout: time.Millisecond, Transport: pool,
		Balancer: kafkago.BalancerFunc(func(kafkago.Message, ...int) int { return 0 }),
	}
	defer w.Close()
	var ms []kafkago.Message
	for _, name := range []string{"a", "b", "c"} { // without an ID of their own
		ms = append(ms, kafkago.Message{Key: []byte(name), Value: []byte(name)})
	}
	require.NoError(t, w.WriteMessages(t.Context(), ms...))
	committed := func() int64 {
		client := &kafkago.Client{Addr: w.Addr, Transport: pool}
		res, err := client.OffsetFetch(t.Context(), &kafkago.OffsetFetchRequest{GroupID: p.topic, Topics: map[string][]int{p.topic: {0}}})
		require.NoError(t, err)
		require.NoError(t, errors.Join(res.Error, res.Topics[p.topic][0].Error))
		return res.Topics[p.topic][0].CommittedOffset
	}

	store := memstore.New()
	var mu sync.Mutex
	runs := map[string]int{}
	// consume runs a consumer until n messages are done or duplicates and the others wait.
	consume := func(n int64, handle func(m *consumer.Message) error) consumer.Stats {
		guard, err := dedup.New(p.app, store, &dedup.Options{Logger: quiet})
		require.NoError(t, err)
		source, err := kafka.NewSource(kafka.Cluster{Brokers: p.brokers}, p.topic, []string{p.topic}, &kafka.SourceOptions{LaneByKey: true, SessionTimeout: 2 * time.Second, Logger: quiet})
		require.NoError(t, err)
		c, err := consumer.New(source, guard, func(_ context.Context, m *consumer.Message) error {
			mu.Lock()
			defer mu.Unlock()
			runs[string(m.Body)]++
			return handle(m)
		}, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		require.Eventually(t, func() bool {
			s := c.Stats()
			return s.Received == 3 && s.Done+s.Duplicates == n && s.Running == 0 && s.Waiting == 3-n
		}, eventually, 10*time.Millisecond, "%+v", c.Stats())
		cancel()
		require.NoError(t, <-ended)
		return c.Stats()
	}

	consume(2, func(m *consumer.Message) error {
		if string(m.Body) == "a" {
			return consumer.RetryAfter(time.Hour, errors.New("not today"))
		}
		return nil
	})
	require.LessOrEqual(t, committed(), int64(0), "the position is past a message that is not done")

	s := consume(3, func(*consumer.Message) error { return nil })
	require.EqualValues(t, 2, s.Duplicates)
	require.Equal(t, map[string]int{"a": 2, "b": 1, "c": 1}, runs)
	require.EqualValues(t, 3, committed())
}
