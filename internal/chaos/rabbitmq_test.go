package chaos

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// rabbitDelays are those of the wait queues: after a failure, and for work in progress elsewhere.
var rabbitDelays = []time.Duration{100 * time.Millisecond, 2 * time.Second}

type rabbitQueue struct {
	url, queue string
	server     *testenv.RabbitServer // nil: the shared one
}

func startRabbitMQ(t *testing.T, s *childSpec, _ int) broker {
	return newRabbitQueue(t, s, testenv.RabbitMQ(t), nil)
}

func startOwnRabbitMQ(t *testing.T, s *childSpec, _ int) broker {
	server := testenv.StartRabbitMQ(t)
	return newRabbitQueue(t, s, server.URL, server)
}

func newRabbitQueue(t *testing.T, s *childSpec, url string, server *testenv.RabbitServer) broker {
	s.Brokers = []string{url}
	r := &rabbitQueue{url: url, queue: s.Topic, server: server}
	require.NoError(t, rabbitmq.Topology{Queue: r.queue, Delays: rabbitDelays}.Declare(t.Context(), rabbitmq.Cluster{URLs: s.Brokers}))
	t.Cleanup(func() {
		if server != nil {
			return // it ends, too
		}
		for _, q := range append(r.waiting(), r.queue+".dead") {
			_, _ = r.ask(func(ch *amqp.Channel) (int, error) { return ch.QueueDelete(q, false, false, false) })
		}
	})
	return r
}

func openRabbitMQ(s *childSpec, log *slog.Logger) (consumer.Source, error) {
	return rabbitmq.NewSource(rabbitmq.Cluster{URLs: s.Brokers}, s.Topic, &rabbitmq.SourceOptions{Delays: rabbitDelays, Logger: log})
}

func (r *rabbitQueue) publish(t *testing.T, all []published) {
	p, err := rabbitmq.NewPublisher(rabbitmq.Cluster{URLs: []string{r.url}}, nil)
	require.NoError(t, err)
	publishAll(t, p, r.queue, all)
	require.NoError(t, p.Close())
}

// publishAll sends all through p, a thousand at once.
func publishAll(t *testing.T, p outbox.Publisher, topic string, all []published) {
	for len(all) > 0 {
		batch := all[:min(len(all), 1000)]
		all = all[len(batch):]
		ms, errs := make([]outbox.Message, len(batch)), make([]error, len(batch))
		for i, m := range batch {
			ms[i] = outbox.Message{ID: m.id, Topic: topic, Body: []byte(m.id)}
		}
		require.NoError(t, p.Publish(t.Context(), ms, errs))
		require.NoError(t, errors.Join(errs...))
	}
}

// waiting are the queues that a message can be in.
func (r *rabbitQueue) waiting() []string {
	qs := []string{r.queue}
	for _, d := range rabbitDelays {
		qs = append(qs, r.queue+".wait."+d.String())
	}
	return qs
}

func (r *rabbitQueue) left() (sum int64, err error) {
	for _, q := range r.waiting() {
		n, err := r.count(q)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	if sum > 0 || r.server == nil {
		return sum, nil
	}
	return r.held()
}

// held is what the server says that it has, consumers' share and all, a few seconds late. It takes a while.
func (r *rabbitQueue) held() (sum int64, err error) {
	for line := range strings.Lines(r.server.Ctl("list_queues", "name", "messages")) {
		f := strings.Fields(line)
		if len(f) == 2 && slices.Contains(r.waiting(), f[0]) {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

func (r *rabbitQueue) deadLetters() (int64, error) { return r.count(r.queue + ".dead") }

// count does not see what consumers hold.
func (r *rabbitQueue) count(queue string) (int64, error) {
	n, err := r.ask(func(ch *amqp.Channel) (int, error) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return q.Messages, err
	})
	return int64(n), err
}

func (r *rabbitQueue) ask(f func(ch *amqp.Channel) (int, error)) (int, error) {
	conn, err := amqp.Dial(r.url)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	return f(ch)
}

func (r *rabbitQueue) restart() { r.server.Restart() }
