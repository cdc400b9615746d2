package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/conformance"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
	"github.com/idemq/idemq/outbox/outboxtest"
)

func TestPublisherKeepsTheRules(t *testing.T) {
	t.Parallel()
	server, proxy := testenv.StartKafkaBehind(t)
	report := conformance.Column(t, "outboxtest.TestPublisher", "Kafka")
	outboxtest.TestPublisher(t, func(tb testing.TB) outboxtest.PublisherConfig {
		return outboxtest.PublisherConfig{
			Report: report,
			Open:   func(tb testing.TB) outbox.Publisher { return newPublisher(tb, []string{server.Addr}, nil) },
			Topic: func(tb testing.TB) string {
				w := world{brokers: []string{server.Addr}, topic: "t" + time.Now().Format("150405.000000000")}
				w.create(tb, w.topic, 2, nil)
				return w.topic
			},
			Received: func(tb testing.TB, topic string, n int) []outbox.Message {
				return drained(tb, sourceOf(tb, []string{server.Addr}, topic, []string{topic}), n)
			},
			Missing: "nowhere", TooLarge: 2 << 20,
			Down: func(tb testing.TB) outbox.Publisher {
				p, err := kafka.NewPublisher(kafka.Cluster{Brokers: []string{"127.0.0.1:1"}}, nil)
				require.NoError(tb, err)
				return p
			},
			Cut: func(testing.TB) { proxy.Cut(); proxy.Mend() },
		}
	})
}

// drained receives n messages, and what comes soon after them.
func drained(tb testing.TB, s consumer.Source, n int) (ms []outbox.Message) {
	tb.Helper()
	for wait := eventually; ; {
		ctx, cancel := context.WithTimeout(tb.Context(), wait)
		ds, err := s.Receive(ctx, 100)
		cancel()
		if err != nil {
			require.GreaterOrEqual(tb, len(ms), n, "received")
			return ms
		}
		for _, d := range ds {
			d.Identify(consumer.DefaultRules(), d.Made)
			ms = append(ms, outbox.Message{ID: d.ID, Topic: d.Topic, Key: d.Key, Headers: d.Headers, Body: d.Body})
			ack(tb, d)
		}
		if len(ms) >= n {
			wait = 300 * time.Millisecond
		}
	}
}
