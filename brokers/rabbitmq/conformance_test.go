package rabbitmq_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/internal/conformance"
	"github.com/idemq/idemq/outbox"
)

func TestSourceKeepsTheRulesOnAQuorumQueue(t *testing.T) {
	report := conformance.Column(t, "consumertest.TestSource", "RabbitMQ, quorum")
	consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
		return configOf(tb, newWorld(tb), report)
	})
}

func TestSourceKeepsTheRulesOnAClassicQueue(t *testing.T) {
	report := conformance.Column(t, "consumertest.TestSource", "RabbitMQ, classic")
	consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
		return configOf(tb, newWorld(tb, func(top *rabbitmq.Topology) { top.Classic = true }), report)
	})
}

func TestExclusiveSourceKeepsTheRules(t *testing.T) {
	report := conformance.Column(t, "consumertest.TestSource", "RabbitMQ, exclusive")
	consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
		w := newWorld(tb, func(top *rabbitmq.Topology) { top.Exclusive = true })
		c := configOf(tb, w, report, func(o *rabbitmq.SourceOptions) { o.Exclusive = true })
		c.Ordered, c.OneMember = true, true
		return c
	})
}

func configOf(tb testing.TB, w world, report func(name, inapplicable string), edit ...func(*rabbitmq.SourceOptions)) consumertest.Config {
	publisher := w.publisher(tb, nil)
	var mu sync.Mutex
	var open []*rabbitmq.Source
	return consumertest.Config{
		Open: func(tb testing.TB) consumer.Source {
			s := w.source(tb, edit...)
			mu.Lock()
			defer mu.Unlock()
			open = append(open, s)
			return s
		},
		Publish: func(tb testing.TB, ms ...consumer.Message) {
			out := make([]outbox.Message, len(ms))
			for i, m := range ms {
				out[i] = outbox.Message{ID: m.ID, Topic: w.queue, Key: m.Key, Headers: m.Headers, Body: m.Body}
			}
			require.NoError(tb, publisher.SendAsIs(within(tb, eventually), out))
		},
		DeadLetters: func(tb testing.TB) []consumer.Message {
			var dead []consumer.Message
			for _, d := range w.look(tb, w.queue+".dead") {
				dead = append(dead, *rabbitmq.MessageFrom(d))
			}
			return dead
		},
		Cut: func(testing.TB) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range open {
				s.Cut()
			}
		},
		NilIsEmpty: true,
		Report:     report,
	}
}
