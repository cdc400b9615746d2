package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/consumer"
	amqp "github.com/rabbitmq/amqp091-go"
)

// delivery is one delivery and its Settler.
type delivery struct {
	msg consumer.Message
	raw any // the amqp.Delivery, whatever a handler does to msg
	of  *session
	at  time.Time // when it came from the server

	place *place // shared by all deliveries that are made again from memory
	own   place  // of the first of them

	word atomic.Int32
}

// The states of a delivery's word.
const (
	unsaid int32 = iota
	saying       // a Retry is under way; it may fail, and be called again
	said
)

var _ consumer.Settler = (*delivery)(nil)

func (d *delivery) once() error {
	if !d.word.CompareAndSwap(unsaid, said) {
		return d.settled()
	}
	return nil
}

func (d *delivery) settled() error {
	return fmt.Errorf("%w: delivery %d of %s", ErrSettled, d.place.tag, d.of.src.queue)
}

// Ack acknowledges the message, at once but behind its caller's back. The server does not answer
// that; on a session that was lost the message comes again.
func (d *delivery) Ack(context.Context) error {
	if err := d.once(); err != nil {
		return err
	}
	d.of.acks.ack(d.place)
	return nil
}

// GiveBack has the server deliver the message again at once. In an exclusive source that would
// change the order, so there it is delivered again from memory, and by the server to the next
// session. When the server is soon to take it away, the session ends and all of it is delivered anew.
func (d *delivery) GiveBack(context.Context) error {
	if err := d.once(); err != nil {
		return err
	}
	if d.of.src.opt.Exclusive {
		d.of.src.keep(d)
		return nil
	}
	if err := d.of.tell(func(ch *amqp.Channel) error { return ch.Nack(d.place.tag, false, true) }); err != nil {
		return err
	}
	d.of.acks.drop(d.place)
	return nil
}

// Retry publishes a copy to the wait queue with the shortest delay that is not below after and,
// once that is confirmed, acknowledges the message. In an exclusive source it waits in memory.
func (d *delivery) Retry(ctx context.Context, after time.Duration, cause error) error {
	if !d.word.CompareAndSwap(unsaid, saying) {
		return d.settled()
	}
	s := d.of.src
	if d.of.isLost() { // the server brings it back
		d.word.Store(said)
		return nil
	}
	if s.opt.Exclusive {
		d.word.Store(said)
		s.redeliver(d, time.Now().Add(after))
		return nil
	}
	switch err := s.postpone(ctx, d.raw.(amqp.Delivery), after); {
	case errors.Is(err, errTooLarge): // with what a copy adds; so it waits where it is
		s.log.Warn("rabbitmq: a message is too large to be copied into a wait queue; it waits in memory", "error", err)
		d.word.Store(said)
		s.redeliver(d, time.Now().Add(after))
		return nil
	case err != nil:
		d.word.Store(unsaid)
		return err
	}
	d.word.Store(said)
	d.of.acks.ack(d.place)
	return nil
}

// DeadLetter publishes the copy whether or not the session is lost: its caller writes the
// verdict on the strength of it.
func (d *delivery) DeadLetter(ctx context.Context, redrive int, cause error) error {
	raw, s := d.raw.(amqp.Delivery), d.of.src
	// From what is d's own: a handler may still be at work on d.msg.Headers.
	m := consumer.Message{ID: d.msg.ID, Topic: topicOf(raw.Exchange, raw.RoutingKey), Scope: s.scope}
	p := publishing{key: s.opt.DeadLetterQueue, Publishing: copyOf(&raw, s.user)}
	for name, value := range m.DeadLetterHeaders(redrive, cause) {
		p.Headers[name] = value
	}
	err := s.publish(ctx, p, s.deadQueue())
	if errors.Is(err, errTooLarge) { // where there is no room for a long cause, it goes without
		delete(p.Headers, consumer.CauseHeader)
		err = s.publish(ctx, p, s.deadQueue())
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: dead-letter a message of %s to %s: %w", s.queue, s.opt.DeadLetterQueue, err)
	}
	return nil
}

// postpone publishes a copy of raw to a wait queue.
func (s *Source) postpone(ctx context.Context, raw amqp.Delivery, after time.Duration) error {
	s.mu.Lock()
	delays := s.delays
	s.mu.Unlock()
	delay, enough := rung(delays, after)
	if !enough {
		s.log.Warn("rabbitmq: a retry is asked for later than the longest wait queue keeps it; it comes after that", "asked", after, "delay", delay)
	}
	q := waitQueue(s.queue, delay)
	p := publishing{key: q.name, Publishing: copyOf(&raw, s.user)}
	p.Headers[exchangeHeader], p.Headers[routingHeader] = raw.Exchange, raw.RoutingKey
	if err := s.publish(ctx, p, q); err != nil {
		return fmt.Errorf("rabbitmq: retry a message of %s through %s: %w", s.queue, q.name, err)
	}
	return nil
}

// publish sends p to q, which it declares where it is missing, and returns once the server has confirmed it.
func (s *Source) publish(ctx context.Context, p publishing, q queue) error {
	ctx, cancel := context.WithTimeout(ctx, defaultPublishTimeout) // whoever asked tries again
	defer cancel()
	ms, errs := []publishing{p}, make([]error, 1)
	if err := checkLengths(&p, s.copies.frame()); err != nil {
		return err
	}
	if err := s.copies.send(ctx, ms, errs); err != nil {
		return err
	}
	if !errors.Is(errs[0], ErrUnroutable) || s.opt.Passive {
		return errs[0]
	}
	if err := s.copies.declare(ctx, q); err != nil {
		return fmt.Errorf("the queue does not exist and could not be declared; declare it: %w", err)
	}
	s.log.Warn("rabbitmq: the queue did not exist and was declared", "queue", q.name)
	errs[0] = nil
	if err := s.copies.send(ctx, ms, errs); err != nil {
		return err
	}
	return errs[0]
}
