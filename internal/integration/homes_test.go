package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	rocketclient "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	amqp "github.com/rabbitmq/amqp091-go"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/brokers/rabbitmq"
	rocketmq "github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/mqadmin"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// home is a topic or queue that one test has on one broker.
type home struct {
	broker     string
	topic      string
	backoff    time.Duration // the shortest that the broker keeps a message for
	source     func() (consumer.Source, error)
	graves     func() (consumer.Source, error) // a new source of its dead letters
	publisher  func() (publisher, error)
	copyBack   func(t *testing.T, dead *consumer.Message) // with a plain client, headers and all
	secondCopy func(t *testing.T, id string, body []byte) // by a plain client
}

// publisher is what every broker's Publisher is.
type publisher interface {
	outbox.Publisher
	consumer.Redriver
	Close() error
}

func homes() map[string]func(t *testing.T, topic string) home {
	return map[string]func(t *testing.T, topic string) home{"kafka": kafkaHome, "rabbitmq": rabbitHome, "rocketmq": rocketHome}
}

func newHome(t *testing.T, of func(t *testing.T, topic string) home) home {
	return of(t, fmt.Sprintf("home-%d-%d", time.Now().UnixNano(), names.Add(1)))
}

func kafkaHome(t *testing.T, topic string) home {
	c := kafka.Cluster{Brokers: testenv.Kafka(t)}
	transport := &kafkago.Transport{}
	client := &kafkago.Client{Addr: kafkago.TCP(c.Brokers...), Transport: transport}
	_, err := client.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = client.DeleteTopics(context.Background(), &kafkago.DeleteTopicsRequest{Topics: []string{topic, topic + ".dlt"}})
		transport.CloseIdleConnections()
	})
	o := &kafka.SourceOptions{SessionTimeout: 2 * time.Second, Logger: quiet}
	send := func(t *testing.T, m kafkago.Message) {
		w := &kafkago.Writer{Addr: client.Addr, Topic: topic, RequiredAcks: kafkago.RequireAll, BatchTimeout: time.Millisecond, Transport: transport}
		require.NoError(t, w.WriteMessages(t.Context(), m))
		require.NoError(t, w.Close())
	}
	return home{
		broker: "kafka", topic: topic, backoff: 50 * time.Millisecond,
		source: func() (consumer.Source, error) { return kafka.NewSource(c, topic, []string{topic}, o) },
		graves: func() (consumer.Source, error) {
			return kafka.NewSource(c, topic+"-graves", []string{topic + ".dlt"}, o)
		},
		publisher: func() (publisher, error) { return kafka.NewPublisher(c, nil) },
		copyBack: func(t *testing.T, dead *consumer.Message) {
			raw := dead.Raw.(kafkago.Message)
			send(t, kafkago.Message{Key: raw.Key, Headers: raw.Headers, Value: raw.Value})
		},
		secondCopy: func(t *testing.T, id string, body []byte) {
			send(t, kafkago.Message{Headers: []kafkago.Header{{Key: "message-id", Value: []byte(id)}}, Value: body})
		},
	}
}

func rabbitHome(t *testing.T, queue string) home {
	url := testenv.RabbitMQ(t)
	c := rabbitmq.Cluster{URLs: []string{url}}
	delays := []time.Duration{50 * time.Millisecond, 5 * time.Second}
	require.NoError(t, rabbitmq.Topology{Queue: queue, Delays: delays}.Declare(t.Context(), c))
	on := func(f func(ch *amqp.Channel) error) {
		conn, err := amqp.Dial(url)
		require.NoError(t, err)
		defer conn.Close()
		ch, err := conn.Channel()
		require.NoError(t, err)
		require.NoError(t, f(ch))
	}
	t.Cleanup(func() {
		on(func(ch *amqp.Channel) (err error) {
			for _, q := range []string{queue, queue + ".dead", queue + ".wait.50ms", queue + ".wait.5s"} {
				_, e := ch.QueueDelete(q, false, false, false)
				err = errors.Join(err, e)
			}
			return err
		})
	})
	send := func(t *testing.T, p amqp.Publishing) {
		on(func(ch *amqp.Channel) error {
			if err := ch.Confirm(false); err != nil {
				return err
			}
			confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, p)
			if err != nil {
				return err
			}
			_, err = confirm.WaitContext(t.Context())
			return err
		})
	}
	o := &rabbitmq.SourceOptions{Delays: delays, Logger: quiet}
	return home{
		broker: "rabbitmq", topic: queue, backoff: delays[0],
		source: func() (consumer.Source, error) { return rabbitmq.NewSource(c, queue, o) },
		graves: func() (consumer.Source, error) {
			// Nothing is retried or given up here, and exclusive sources declare no wait queues.
			return rabbitmq.NewSource(c, queue+".dead", &rabbitmq.SourceOptions{Exclusive: true, DeadLetterQueue: queue, Logger: quiet})
		},
		publisher: func() (publisher, error) { return rabbitmq.NewPublisher(c, nil) },
		copyBack: func(t *testing.T, dead *consumer.Message) {
			raw := dead.Raw.(amqp.Delivery)
			send(t, amqp.Publishing{MessageId: raw.MessageId, Headers: raw.Headers, ContentType: raw.ContentType, Body: raw.Body})
		},
		secondCopy: func(t *testing.T, id string, body []byte) { send(t, amqp.Publishing{MessageId: id, Body: body}) },
	}
}

func rocketHome(t *testing.T, topic string) home {
	c := rocketmq.Cluster{NameServers: testenv.RocketMQ(t)}
	admin := mqadmin.Cluster(c.NameServers)
	require.NoError(t, admin.Create(t.Context(), topic, 2))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, admin.Delete(ctx, topic, topic+"-retry", topic+"-dead"))
		require.NoError(t, admin.DeleteGroups(ctx, topic, topic+"-graves"))
	})
	send := func(t *testing.T, properties map[string]string, body []byte) {
		p, err := rocketclient.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver(c.NameServers)), producer.WithInstanceName(topic))
		require.NoError(t, err)
		require.NoError(t, p.Start())
		m := primitive.NewMessage(topic, body)
		m.WithProperties(properties)
		_, err = p.SendSync(t.Context(), m)
		require.NoError(t, err)
		require.NoError(t, p.Shutdown())
	}
	o := &rocketmq.SourceOptions{Logger: quiet}
	return home{
		broker: "rocketmq", topic: topic, backoff: time.Second,
		source: func() (consumer.Source, error) { return rocketmq.NewSource(c, topic, []string{topic}, o) },
		graves: func() (consumer.Source, error) {
			return rocketmq.NewSource(c, topic+"-graves", []string{topic + "-dead"}, o)
		},
		publisher: func() (publisher, error) { return rocketmq.NewPublisher(c, nil) },
		copyBack: func(t *testing.T, dead *consumer.Message) {
			raw := dead.Raw.(*primitive.MessageExt)
			send(t, raw.GetProperties(), raw.Body)
		},
		secondCopy: func(t *testing.T, id string, body []byte) { send(t, map[string]string{"message-id": id}, body) },
	}
}
