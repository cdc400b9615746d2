package outbox_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

func (b *base) awaitStats(t *testing.T, pending, parked int64) {
	t.Helper()
	var s outbox.Stats
	require.Eventually(t, func() bool {
		var err error
		s, err = b.Stats(t.Context())
		require.NoError(t, err)
		return s.Pending == pending && s.Parked == parked
	}, eventually, 10*time.Millisecond, "%d pending and %d parked", pending, parked)
}

// TestMessageOverTheBrokersLimitIsParkedAlone: one of 50 is larger than Kafka takes. The others go on, and its key's followers wait.
func TestMessageOverTheBrokersLimitIsParkedAlone(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := "outbox-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	pool := new(kafkago.Transport)
	client := &kafkago.Client{Addr: kafkago.TCP(brokers...), Transport: pool}
	_, err := client.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = client.DeleteTopics(context.Background(), &kafkago.DeleteTopicsRequest{Topics: []string{topic}})
		pool.CloseIdleConnections()
	})
	p, err := kafka.NewPublisher(kafka.Cluster{Brokers: brokers}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	b := newBase(t, outbox.PostgreSQL)
	for n := range 50 {
		m := outbox.Message{ID: fmt.Sprint(n), Topic: topic, Key: fmt.Sprint(n % 10)}
		if n == 20 {
			m.Body = make([]byte, 2<<20)
		}
		b.write(t, m)
	}
	run(t, b.Outbox, p, outbox.RelayOptions{})
	b.awaitStats(t, 2, 1) // 30 and 40 wait for 20
	var attempts int
	var reason string
	require.NoError(t, b.db.QueryRow("SELECT attempts, last_error FROM "+b.table+" WHERE id = '20' AND state = 2").Scan(&attempts, &reason))
	require.Equal(t, 1, attempts)
	require.Contains(t, reason, "is more than the broker takes (max.message.bytes)")
	ends, err := client.ListOffsets(t.Context(), &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{topic: {kafkago.LastOffsetOf(0)}}})
	require.NoError(t, err)
	require.EqualValues(t, 47, ends.Topics[topic][0].LastOffset)
}

// TestUnroutableMessageIsNotTakenForSent: no queue is there, so RabbitMQ returns it. It is sent once somebody has declared one, or
// parked after its attempts and then requeued.
func TestUnroutableMessageIsNotTakenForSent(t *testing.T) {
	cluster := rabbitmq.Cluster{URLs: []string{testenv.RabbitMQ(t)}}
	p, err := rabbitmq.NewPublisher(cluster, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	b := newBase(t, outbox.PostgreSQL)
	queue := "outbox-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	b.write(t, outbox.Message{ID: "a", Topic: queue, Key: "k"}, outbox.Message{ID: "b", Topic: queue, Key: "k"})
	run(t, b.Outbox, p, outbox.RelayOptions{MaxAttempts: 3, Backoff: time.Millisecond})
	b.awaitStats(t, 1, 1)
	var reason string
	require.NoError(t, b.db.QueryRow("SELECT last_error FROM "+b.table+" WHERE id = 'a' AND state = 2 AND attempts = 3").Scan(&reason))
	require.Contains(t, reason, "no queue takes the message")
	require.NoError(t, rabbitmq.Topology{Queue: queue, Classic: true}.Declare(t.Context(), cluster))
	require.NoError(t, b.Requeue(t.Context(), "a"))
	b.awaitSent(t)
}

// TestBrokerDownUnderLoadCostsNothingButTime kills a broker while messages are written, and starts it again.
func TestBrokerDownUnderLoadCostsNothingButTime(t *testing.T) {
	t.Parallel()
	server := testenv.StartRabbitMQ(t)
	cluster := rabbitmq.Cluster{URLs: []string{server.URL}}
	require.NoError(t, rabbitmq.Topology{Queue: "q"}.Declare(t.Context(), cluster))
	p, err := rabbitmq.NewPublisher(cluster, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	b := newBase(t, outbox.PostgreSQL)
	var outages atomic.Int64
	run(t, b.Outbox, p, outbox.RelayOptions{MaxAttempts: 3, MaxBackoff: time.Second, Observe: func(e dedup.Event) {
		if e.Cause == "outage" {
			outages.Add(1)
		}
	}})
	write := func(from, n int) {
		for i := range n {
			b.write(t, outbox.Message{ID: fmt.Sprint(from + i), Topic: "q", Key: fmt.Sprint(i % 20)})
		}
	}
	write(0, 200)
	b.awaitSent(t)
	server.Kill()
	before := outages.Load()
	for n := 0; outages.Load() < before+5; n++ { // more than a message has attempts
		require.Less(t, n, 1000, "nobody tries")
		write(200+n*20, 20)
		select {
		case <-t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.NotZero(t, s.Pending)
	require.Zero(t, s.Parked)
	server.Start()
	b.awaitSent(t)
	var most int
	require.NoError(t, b.db.QueryRow("SELECT max(attempts) FROM "+b.table).Scan(&most))
	require.LessOrEqual(t, most, 1, "what was under way when it died")
}
