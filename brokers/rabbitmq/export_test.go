package rabbitmq

import (
	"context"
	"errors"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
	amqp "github.com/rabbitmq/amqp091-go"
)

// SendAsIs sends ms with all of their headers, as a tool does that copies a dead letter back.
func (p *Publisher) SendAsIs(ctx context.Context, ms []outbox.Message) error {
	out, errs := make([]publishing, len(ms)), make([]error, len(ms))
	for i := range ms {
		var err error
		if out[i], err = publishingOf(&ms[i], time.Now()); err != nil {
			return err
		}
	}
	return errors.Join(p.send(ctx, out, errs), errors.Join(errs...))
}

// Cut breaks every connection that s has.
func (s *Source) Cut() {
	s.conns.cut(false)
	s.copies.conns.cut(false)
}

// Reconnect makes s try again after pause, doubled up to longest. Before the first Receive.
func (s *Source) Reconnect(pause, longest time.Duration) { s.pause, s.longest = pause, longest }

// Cut breaks every connection that p has.
func (p *Publisher) Cut() { p.producer.conns.cut(false) }

// Postpone is the first half of d's Retry: its process dies before the second.
func Postpone(ctx context.Context, d consumer.Delivery, after time.Duration) error {
	own := d.Settler.(*delivery)
	return own.of.src.postpone(ctx, own.raw.(amqp.Delivery), after)
}
