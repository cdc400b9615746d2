package bench

import (
	"context"
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
)

// prefetch is how many messages each subject may have unsettled.
const prefetch = 500

func newRabbitMQ(tb testing.TB) broker {
	url := testenv.RabbitMQ(tb)
	uri, err := amqp.ParseURI(url)
	require.NoError(tb, err)
	cluster := rabbitmq.Cluster{URLs: []string{url}}
	return broker{
		name: "rabbitmq", addr: hostPort(uri.Host, uri.Port), messages: 50_000, once: true, shares: 1,
		create: func(tb testing.TB) (string, func()) { return createQueue(tb, cluster) },
		publish: func(tb testing.TB) publisher {
			p, err := rabbitmq.NewPublisher(cluster, &rabbitmq.PublisherOptions{Timeout: 5 * time.Minute})
			require.NoError(tb, err)
			return p
		},
		source: func(tb testing.TB, queue string) consumer.Source {
			s, err := rabbitmq.NewSource(cluster, queue, &rabbitmq.SourceOptions{Prefetch: prefetch, Delays: waits, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(tb, err)
			return s
		},
		clients: []client{
			{"amqp091-go, ack per message", func(tb testing.TB, queue string, handle func(string, []byte)) func() {
				return consumeQueue(tb, url, queue, 1, handle)
			}},
			{"amqp091-go, ack per 100", func(tb testing.TB, queue string, handle func(string, []byte)) func() {
				return consumeQueue(tb, url, queue, 100, handle)
			}},
		},
	}
}

// waits is one wait queue, as few as there can be.
var waits = []time.Duration{time.Second}

func createQueue(tb testing.TB, c rabbitmq.Cluster) (queue string, drop func()) {
	queue = newName()
	require.NoError(tb, rabbitmq.Topology{Queue: queue, Delays: waits}.Declare(context.Background(), c))
	return queue, func() {
		conn, err := amqp.Dial(c.URLs[0])
		require.NoError(tb, err)
		defer conn.Close()
		ch, err := conn.Channel()
		require.NoError(tb, err)
		for _, q := range []string{queue, queue + ".dead", queue + ".wait." + waits[0].String()} {
			_, err := ch.QueueDelete(q, false, false, false)
			require.NoError(tb, err)
		}
	}
}

func consumeQueue(tb testing.TB, url, queue string, each int, handle func(string, []byte)) func() {
	conn, err := amqp.Dial(url)
	require.NoError(tb, err)
	ch, err := conn.Channel()
	require.NoError(tb, err)
	require.NoError(tb, ch.Qos(prefetch, 0, false))
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	require.NoError(tb, err)
	return until(func(ctx context.Context) {
		for n := 1; ; n++ {
			var d amqp.Delivery
			select {
			case d = <-in:
			case <-ctx.Done():
				return
			}
			if d.Acknowledger == nil {
				tb.Error("consume: the server has ended it")
				return
			}
			handle(d.MessageId, d.Body)
			if n%each == 0 {
				over(tb, ctx, d.Ack(each > 1))
			}
		}
	}, func() { conn.Close() })
}
