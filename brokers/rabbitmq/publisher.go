package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
	amqp "github.com/rabbitmq/amqp091-go"
)

// IDHeader is the header in which a Publisher sends Message.ID once more, beside the MessageId property, and the first in which
// a consumer looks for it.
const IDHeader = "message-id"

// Publisher sends messages, mandatory and persistent, waits for the server's confirmation and
// answers for each message. Message.ID is the MessageId property, Message.Key the header KeyHeader.
type Publisher struct {
	producer *producer
	vhost    string
	timeout  time.Duration

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher does no I/O.
func NewPublisher(c Cluster, o *PublisherOptions) (*Publisher, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	timeout := defaultPublishTimeout
	if o != nil && o.Timeout != 0 {
		timeout = o.Timeout
	}
	if timeout < 0 {
		return nil, fmt.Errorf("rabbitmq: PublisherOptions.Timeout %v is negative; leave it zero for %v", timeout, defaultPublishTimeout)
	}
	c.URLs = slices.Clone(c.URLs)
	return &Publisher{producer: newProducer(c, "idemq publish"), vhost: c.vhost(), timeout: timeout}, nil
}

// Publish sends ms, in order, and answers errs[i] for ms[i]; a message that no queue takes
// ([ErrUnroutable]), or that the server refuses for its size or its exchange, say, fails alone, and is marked by
// [outbox.Permanent] where the message itself is why, and by [outbox.Unavailable] where the server, or the queue's node, was
// not to be asked, or was silent about it. The returned error
// means that the server could not be asked. A message may be there twice when an answer is lost.
func (p *Publisher) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	if len(errs) != len(ms) {
		return fmt.Errorf("rabbitmq: publish: %d messages, but room for %d answers", len(ms), len(errs))
	}
	out := make([]publishing, 0, len(ms))
	at := make([]int, 0, len(ms))
	now, frame := time.Now(), p.producer.frame()
	for i := range ms {
		own := ms[i]
		own.Headers = consumer.OutgoingHeaders(own.Headers)
		m, err := publishingOf(&own, now)
		if err == nil {
			err = checkLengths(&m, frame)
		}
		if err != nil {
			errs[i] = outbox.Permanent(fmt.Errorf("rabbitmq: publish %q: %w", ms[i].ID, err))
			continue
		}
		out = append(out, m)
		at = append(at, i)
	}
	answers := make([]error, len(out))
	if err := p.send(ctx, out, answers); err != nil {
		return fmt.Errorf("rabbitmq: publish: %w", err)
	}
	for j, err := range answers {
		if err != nil {
			errs[at[j]] = fmt.Errorf("rabbitmq: publish %q: %w", ms[at[j]].ID, err)
			if ofMessage(err) {
				errs[at[j]] = outbox.Permanent(errs[at[j]])
			}
		}
	}
	return nil
}

func (p *Publisher) send(ctx context.Context, ms []publishing, errs []error) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.calls.Add(1)
	p.mu.Unlock()
	defer p.calls.Done()
	if len(ms) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.producer.send(ctx, ms, errs)
}

// publishingOf is m as it is sent.
func publishingOf(m *outbox.Message, now time.Time) (publishing, error) {
	if m.Topic == "" {
		return publishing{}, fmt.Errorf("Message.Topic is empty; it is a queue, or exchange/routing key")
	}
	p := publishing{Publishing: amqp.Publishing{
		Headers: make(amqp.Table, len(m.Headers)+1), DeliveryMode: amqp.Persistent, MessageId: m.ID, Timestamp: now, Body: m.Body,
	}}
	p.exchange, p.key = routeOf(m.Topic)
	for k, v := range m.Headers {
		switch {
		case strings.EqualFold(k, "content-type"):
			p.ContentType = v
		case m.ID != "" && strings.EqualFold(k, IDHeader): // another message's, passed on
		case steers(k) || k == exchangeHeader || k == routingHeader:
			return publishing{}, fmt.Errorf("it has the header %s, by which the server, or this package, routes; name it otherwise", k)
		default:
			p.Headers[k] = v
		}
	}
	if m.ID != "" {
		p.Headers[IDHeader] = m.ID
	}
	if m.Key != "" {
		p.Headers[KeyHeader] = m.Key
	}
	return p, nil
}

// Redrive sends a dead letter back to the queue that gave it up, and to no other that its
// exchange would reach, under the name and the redrive number that it carries, so that it is no
// duplicate. m is a message that a Source delivered from a dead letter queue, or MessageFrom made.
func (p *Publisher) Redrive(ctx context.Context, m *consumer.Message) error {
	queue, err := p.givenUpBy(m)
	if err != nil {
		return fmt.Errorf("rabbitmq: redrive %q: %w", m.ID, err)
	}
	out := publishing{key: queue}
	if raw, ok := m.Raw.(amqp.Delivery); ok {
		unwrap(&raw)
		out.Publishing = copyOf(&raw, "")
	} else {
		out, err = publishingOf(&outbox.Message{ID: m.Headers[consumer.IDHeader], Topic: queue, Key: m.Key, Headers: m.Headers, Body: m.Body}, time.Now())
		if err != nil {
			return fmt.Errorf("rabbitmq: redrive %q: %w", m.ID, err)
		}
		out.exchange, out.key = "", queue
	}
	if origin := m.Headers[consumer.OriginHeader]; origin != "" {
		out.Headers[exchangeHeader], out.Headers[routingHeader] = routeOf(origin)
	}
	delete(out.Headers, consumer.CauseHeader)
	delete(out.Headers, consumer.OriginHeader)
	ms, errs := []publishing{out}, make([]error, 1)
	if err = checkLengths(&out, p.producer.frame()); err == nil {
		err = p.send(ctx, ms, errs)
	}
	if err == nil {
		err = errs[0]
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: redrive %q to %s: %w", m.ID, queue, err)
	}
	return nil
}

// givenUpBy is the queue that m, a dead letter, comes from.
func (p *Publisher) givenUpBy(m *consumer.Message) (string, error) {
	scope, ok := m.Headers[consumer.ScopeHeader]
	if !ok {
		// One that the server itself gave up has the server's word for it.
		if queue := m.Headers["x-first-death-queue"]; queue != "" {
			return queue, nil
		}
		return "", fmt.Errorf("it has no header %s, so it is no dead letter", consumer.ScopeHeader)
	}
	queue, ok := strings.CutPrefix(scope, scopeOf(p.vhost, ""))
	if !ok || queue == "" {
		return "", fmt.Errorf("its scope is %q, which is no queue of virtual host %q", scope, p.vhost)
	}
	return queue, nil
}

// Close waits for the calls under way, at most PublisherOptions.Timeout, and ends the publisher's connection.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	p.producer.close(ctx)
	return nil
}
