package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// window is of messages whose confirms are awaited at once: RelayOptions.Batch's default.
const window = 512

// raw publishes n messages, each confirmed, and no more than a window of them unconfirmed at a time.
type raw struct {
	name    string
	publish func(tb testing.TB, topic string, n int) drained
}

// publishRabbitMQ slides the window, so that it is full from the first to the last message. What it sends is what the
// Publisher does: persistent and mandatory, with an ID and a key.
func publishRabbitMQ(tb testing.TB, url, queue string, n int) drained {
	conn, ch := dialRabbitMQ(tb, url)
	defer conn.Close()
	require.NoError(tb, ch.Confirm(false))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, window))
	returns := ch.NotifyReturn(make(chan amqp.Return, window))
	w := newWatch(tb, nil, nil)
	confirmed := func() {
		c, ok := <-confirms
		require.True(tb, ok && c.Ack, "not confirmed")
	}
	for i := range n {
		if i >= window {
			confirmed()
		}
		m := newMessage(queue, i)
		require.NoError(tb, ch.PublishWithContext(context.Background(), "", queue, true, false, amqp.Publishing{
			Headers: amqp.Table{"key": m.Key}, DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint("id-", i), Timestamp: w.begun, Body: m.Body,
		}))
	}
	for range min(n, window) {
		confirmed()
	}
	d := w.stop(tb)
	require.Empty(tb, returns)
	return d
}

// publishKafka gives the Writer a window at a time. A batch is a partition's part of it, so that it fills, and is sent,
// without waiting; where the parts are uneven the rest waits for the shortest time that the Writer can wait.
func publishKafka(tb testing.TB, addrs []string, topic string, n int) drained {
	out := &kafka.Writer{
		Addr: kafka.TCP(addrs...), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchSize: window / partitions, BatchTimeout: time.Millisecond,
	}
	defer out.Close()
	w := newWatch(tb, nil, nil)
	for at := 0; at < n; {
		ms := make([]kafka.Message, 0, window)
		for ; at < n && len(ms) < window; at++ {
			m := newMessage(topic, at)
			ms = append(ms, kafka.Message{Key: []byte(m.Key), Value: m.Body, Headers: []kafka.Header{{Key: "message-id", Value: []byte(fmt.Sprint("id-", at))}}})
		}
		require.NoError(tb, out.WriteMessages(context.Background(), ms...))
	}
	return w.stop(tb)
}

// senders is how many calls of RocketMQ's client library are under way: it answers for each message by itself, and
// more of them make it slower. It is the Publisher's number, too.
const senders = 64

func publishRocketMQ(tb testing.TB, servers []string, topic string, n int) drained {
	name := newName()
	p, err := producer.NewDefaultProducer(producer.WithNsResolver(primitive.NewPassthroughResolver(servers)), producer.WithGroupName(name),
		producer.WithInstanceName(name), producer.WithQueueSelector(producer.NewHashQueueSelector()), producer.WithSendMsgTimeout(publishTimeout))
	require.NoError(tb, err)
	require.NoError(tb, p.Start())
	defer func() { require.NoError(tb, p.Shutdown()) }()
	send := func(i int64) bool {
		m := newMessage(topic, int(i))
		out := primitive.NewMessage(topic, m.Body).WithShardingKey(m.Key)
		out.WithProperty("message-id", fmt.Sprint("id-", i))
		answer, err := p.SendSync(context.Background(), out)
		if err != nil || answer.Status != primitive.SendOK {
			tb.Errorf("send: %v, %v", answer, err)
			return false
		}
		return true
	}
	send(-1) // one by itself: of several that ask for a topic's route at once the library refuses all but one
	w := newWatch(tb, nil, nil)
	var at atomic.Int64
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for i := at.Add(1) - 1; i < int64(n) && send(i); i = at.Add(1) - 1 {
			}
		})
	}
	all.Wait()
	return w.stop(tb)
}

// publishAlone is a Publisher without a table and a relay, a window a call.
func publishAlone(tb testing.TB, p outbox.Publisher, topic string, n int) drained {
	w := newWatch(tb, nil, nil)
	for at := 0; at < n; {
		ms := make([]outbox.Message, 0, window)
		for ; at < n && len(ms) < window; at++ {
			m := newMessage(topic, at)
			m.ID = fmt.Sprint("id-", at)
			ms = append(ms, m)
		}
		errs := make([]error, len(ms))
		require.NoError(tb, p.Publish(context.Background(), ms, errs))
		for _, err := range errs {
			require.NoError(tb, err)
		}
	}
	return w.stop(tb)
}
