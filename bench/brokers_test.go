package bench

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	idemqkafka "github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/internal/mqadmin"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

const partitions = 4

// broker is one, as the benchmarks need it.
type broker struct {
	name      string
	create    func(tb testing.TB) (topic string, drop func())
	count     func(tb testing.TB, topic string) int64 // of messages in a topic
	publisher func(tb testing.TB) publisher
	raw       raw  // with the client library alone
	forwards  bool // watermill's forwarder is measured with it
}

type publisher interface {
	outbox.Publisher
	Close() error
}

// publishTimeout is longer than the machine's worst mood.
const publishTimeout = 5 * time.Minute

func newRabbitMQ(tb testing.TB) broker {
	url := testenv.RabbitMQ(tb)
	cluster := rabbitmq.Cluster{URLs: []string{url}}
	return broker{
		name: "RabbitMQ, quorum queue", forwards: true,
		create: func(tb testing.TB) (string, func()) {
			queue := newName()
			require.NoError(tb, rabbitmq.Topology{Queue: queue, Delays: waits}.Declare(context.Background(), cluster))
			return queue, func() { deleteQueues(tb, url, queue, queue+".dead", queue+".wait."+waits[0].String()) }
		},
		count: func(tb testing.TB, queue string) int64 {
			conn, ch := dialRabbitMQ(tb, url)
			defer conn.Close()
			q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			require.NoError(tb, err)
			return int64(q.Messages)
		},
		publisher: func(tb testing.TB) publisher {
			p, err := rabbitmq.NewPublisher(cluster, &rabbitmq.PublisherOptions{Timeout: publishTimeout})
			require.NoError(tb, err)
			return p
		},
		raw: raw{"amqp091-go alone, one channel", func(tb testing.TB, queue string, n int) drained { return publishRabbitMQ(tb, url, queue, n) }},
	}
}

// waits is one wait queue, as few as there can be.
var waits = []time.Duration{time.Second}

func dialRabbitMQ(tb testing.TB, url string) (*amqp.Connection, *amqp.Channel) {
	tb.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(tb, err)
	ch, err := conn.Channel()
	require.NoError(tb, err)
	return conn, ch
}

func deleteQueues(tb testing.TB, url string, queues ...string) {
	tb.Helper()
	conn, ch := dialRabbitMQ(tb, url)
	defer conn.Close()
	for _, q := range queues {
		_, err := ch.QueueDelete(q, false, false, false)
		require.NoError(tb, err)
	}
}

func newKafka(tb testing.TB) broker {
	addrs := testenv.Kafka(tb)
	client := &kafka.Client{Addr: kafka.TCP(addrs...)}
	return broker{
		name: "Kafka, acks=all",
		create: func(tb testing.TB) (string, func()) {
			topic := newName()
			answer, err := client.CreateTopics(context.Background(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}})
			require.NoError(tb, err)
			require.NoError(tb, answer.Errors[topic])
			return topic, func() {
				_, err := client.DeleteTopics(context.Background(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
				require.NoError(tb, err)
			}
		},
		count: func(tb testing.TB, topic string) (sum int64) {
			ask := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
			for p := range partitions {
				ask.Topics[topic] = append(ask.Topics[topic], kafka.LastOffsetOf(p))
			}
			answer, err := client.ListOffsets(context.Background(), ask)
			require.NoError(tb, err)
			for _, p := range answer.Topics[topic] {
				require.NoError(tb, p.Error)
				sum += p.LastOffset
			}
			return sum
		},
		publisher: func(tb testing.TB) publisher {
			p, err := idemqkafka.NewPublisher(idemqkafka.Cluster{Brokers: addrs}, &idemqkafka.PublisherOptions{Timeout: publishTimeout})
			require.NoError(tb, err)
			return p
		},
		raw: raw{"kafka-go's Writer alone", func(tb testing.TB, topic string, n int) drained { return publishKafka(tb, addrs, topic, n) }},
	}
}

func newRocketMQ(tb testing.TB) broker {
	servers := testenv.RocketMQ(tb)
	admin := mqadmin.Cluster(servers)
	return broker{
		name: "RocketMQ",
		create: func(tb testing.TB) (string, func()) {
			topic := newName()
			require.NoError(tb, admin.Create(context.Background(), topic, partitions))
			return topic, func() { require.NoError(tb, admin.Delete(context.Background(), topic)) }
		},
		count: func(tb testing.TB, topic string) int64 {
			n, err := admin.Messages(context.Background(), topic)
			require.NoError(tb, err)
			return n
		},
		publisher: func(tb testing.TB) publisher {
			p, err := rocketmq.NewPublisher(rocketmq.Cluster{NameServers: servers}, &rocketmq.PublisherOptions{Timeout: publishTimeout})
			require.NoError(tb, err)
			return p
		},
		raw: raw{"the client library's producer alone", func(tb testing.TB, topic string, n int) drained { return publishRocketMQ(tb, servers, topic, n) }},
	}
}
