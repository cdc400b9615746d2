package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/outbox"
)

// broker is what differs from one message broker to the next. A topic is a queue where the broker
// has queues; its group is then of no meaning.
type broker interface {
	// open makes the service's source.
	open(topic, group string, log *slog.Logger) (consumer.Source, error)
	// openShort makes the demonstration's, with its short timeouts.
	openShort(topic, group string, log *slog.Logger) (consumer.Source, error)
	publisher() (publisher, error)
	// create makes a topic that is not there yet, and returns once it takes messages.
	create(ctx context.Context, topic, group string) error
	// remove deletes a topic and everything that belongs to it.
	remove(ctx context.Context, topic, group string) error
	// left is how many messages wait, as far as the broker tells.
	left(ctx context.Context, topic, group string) (int64, error)
	// deadLetters reads everything that was dead-lettered.
	deadLetters(ctx context.Context, topic, group string) ([]*consumer.Message, error)
	// consume is the usual loop on the client alone: what each returns nil for is acknowledged, and
	// anything else comes again in the way that the broker or its client has for it. It returns with ctx, or with an
	// error after which it can be called again.
	consume(ctx context.Context, topic, group string, each func(ctx context.Context, order string, copy place) error) error
	close()
}

type publisher interface {
	outbox.Publisher
	Close() error
}

// brokerKind is a broker that --broker can name.
type brokerKind struct {
	name     string
	variable string // where its address is
	syntax   string // of that
	at       func(addresses []string) broker
}

const kafkaName = "kafka"

func brokerKinds() []brokerKind {
	return []brokerKind{
		{kafkaName, "IDEMQ_KAFKA_BROKERS", "host:port of a broker, several with commas", newKafka},
		{"rabbitmq", "IDEMQ_RABBITMQ_URL", "amqp://user:password@host:port/ of a node, several with commas", newRabbit},
		{"rocketmq", "IDEMQ_ROCKETMQ_NAMESRV", "host:port of a name server, several with commas", newRocket},
	}
}

func kindNames() (names []string) {
	for _, k := range brokerKinds() {
		names = append(names, k.name)
	}
	return names
}

// kindOf finds a kind by its name.
func kindOf(name string) (brokerKind, error) {
	var there []string
	for _, k := range brokerKinds() {
		if k.name == name {
			return k, nil
		}
		there = append(there, fmt.Sprintf("%s (address in %s)", k.name, k.variable))
	}
	return brokerKind{}, fmt.Errorf("unknown --broker %q; there are: %s", name, strings.Join(there, ", "))
}

// servers are addresses, whoever hosts them.
type servers struct {
	Kind    string   `json:"kind"` // the broker's
	Brokers []string `json:"brokers"`
	Redis   string   `json:"redis"`

	Store   string           `json:"store"`   // by its name
	Dialect sqlstore.Dialect `json:"dialect"` // of the database
	DSN     string           `json:"dsn"`
}

func (s servers) broker() (broker, error) {
	k, err := kindOf(s.Kind)
	if err != nil {
		return nil, err
	}
	return k.at(s.Brokers), nil
}

// publish sends ms and waits for the confirmation of each.
func publish(ctx context.Context, b broker, ms []outbox.Message) error {
	p, err := b.publisher()
	if err != nil {
		return err
	}
	defer p.Close()
	for len(ms) > 0 {
		batch := ms[:min(len(ms), 500)]
		ms = ms[len(batch):]
		errs := make([]error, len(batch))
		if err := p.Publish(ctx, batch, errs); err != nil {
			return err
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// place is one copy of an order in the topic: the number that it was sent under. The broker's own
// place for it changes where a retry is a new message.
type place int

// The headers of a sample order beside its ID.
const (
	orderHeader = "order"
	copyHeader  = "copy"
)

// placeIn reads the place from a header; 0 is none.
func placeIn(header string) place {
	n, _ := strconv.Atoi(header)
	return place(n)
}

// The delays of the demonstration's retries: after a failure, and while another child has the order.
var shortDelays = []time.Duration{100 * time.Millisecond, 2 * time.Second}
