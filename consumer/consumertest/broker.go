package consumertest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/idemq/idemq/consumer"
)

// Broker is an in-memory queue with redelivery, delays and a dead-letter list. It is a
// consumer.Source, starts no goroutine, and works in a testing/synctest bubble if it is made
// there. Messages of one Key are a lane; those without one come in any order. Its methods may be
// called from any goroutine, handlers included; its fields are set before use.
//
// A Broker outlives its consumers: after Close, the next Receive begins a new session. So a
// restarted process is a second Consumer on the same Broker.
type Broker struct {
	// Hold is the Plan's. Negative makes it a broker that cannot postpone, like Kafka: the
	// Consumer then waits in memory between attempts. Default: 5s.
	Hold time.Duration
	// Deadline is how long a delivery may be unsettled: then its session is lost, as
	// RabbitMQ does at consumer_timeout. Default: none.
	Deadline time.Duration
	// HandlerLimit is the Plan's. Default: none.
	HandlerLimit time.Duration
	// MaxUnsettled is how many deliveries of one member may be unsettled. Default: 1024.
	MaxUnsettled int
	// Fail is asked before each word on a delivery: "Ack", "Retry", "GiveBack" or
	// "DeadLetter". If it returns an error, that is the answer: after Ack and GiveBack the message comes
	// again a second later; after the others the delivery is still to be settled. It is called from
	// many goroutines. Default: nothing fails.
	Fail func(word string, m *consumer.Message) error

	q  *queue
	me *member
}

// NewBroker returns an empty Broker whose scope is "test".
func NewBroker() *Broker {
	b := &Broker{q: newQueue()}
	b.me = &member{b: b}
	return b
}

var _ consumer.Source = (*Broker)(nil)

// Publish queues copies of ms. A message's ID is an application's own, which the default rules
// use when no header names it: two messages with one ID and body are a producer's duplicate.
// An empty Topic becomes "test", a zero Time now; what a Consumer fills in is dropped.
// What DeadLetters returned, published again, is a redrive.
func (b *Broker) Publish(ms ...consumer.Message) {
	now := time.Now()
	copies := make([]consumer.Message, len(ms))
	for i := range ms {
		m := &ms[i]
		c := consumer.Message{ID: m.ID, Topic: m.Topic, Key: m.Key, Headers: m.Headers, Body: m.Body, Time: m.Time}
		if c.Topic == "" {
			c.Topic = scope
		}
		if c.Time.IsZero() {
			c.Time = now
		}
		copies[i] = clone(c)
	}
	b.q.publish(copies)
}

// DeadLetters are the messages dead-lettered so far, each with its DeadCause, and with the
// headers that a dead letter adds.
func (b *Broker) DeadLetters() []consumer.Message {
	b.q.mu.Lock()
	defer b.q.mu.Unlock()
	ms := slices.Clone(b.q.dead)
	for i := range ms {
		ms[i] = clone(ms[i])
	}
	return ms
}

// Redeliver brings every message handed out so far once more, acknowledged ones included, as
// after a lost session whose acknowledgements did not arrive.
func (b *Broker) Redeliver() { b.q.lose(nil, true) }

// Cut ends every session as a broken connection does: Lost closes, and what was not settled
// comes again.
func (b *Broker) Cut() { b.q.lose(nil, false) }

// Member returns one more member of the same group: each message goes to one of them, and those
// of one lane to the same one while any of them is unsettled.
func (b *Broker) Member() consumer.Source { return &member{b: b} }

// Receive implements consumer.Source.
func (b *Broker) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	return b.me.Receive(ctx, max)
}

// Close implements consumer.Source: it ends the session, and what was not settled comes again.
func (b *Broker) Close(ctx context.Context) error { return b.me.Close(ctx) }

func clone(m consumer.Message) consumer.Message {
	m.Body = bytes.Clone(m.Body)
	m.Headers = maps.Clone(m.Headers)
	return m
}
