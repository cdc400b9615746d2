package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
	"github.com/segmentio/kafka-go"
)

// IDHeader is the header in which a Publisher sends Message.ID, and the first in which a
// consumer looks for it.
const IDHeader = "message-id"

// Publisher sends messages, waits for all in-sync replicas and answers for each message. The
// key's hash chooses the partition as in kafka.Hash, the client's and Sarama's default (FNV-1a; Java
// clients use another); messages without a key go round.
type Publisher struct {
	producer *producer
	redriver *producer
	timeout  time.Duration
	cancel   context.CancelFunc // ends the pool

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

var (
	_ outbox.Publisher  = (*Publisher)(nil)
	_ consumer.Redriver = (*Publisher)(nil)
	_ consumer.Keeper   = (*Publisher)(nil)
)

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
		return nil, fmt.Errorf("kafka: PublisherOptions.Timeout %v is negative; leave it zero for %v", timeout, defaultPublishTimeout)
	}
	c.Brokers = slices.Clone(c.Brokers)
	ctx, cancel := context.WithCancel(context.Background()) // ends with Close
	pool := c.transport(ctx, publisherTTL, nil, nil)
	client := &kafka.Client{Addr: c.addr(), Transport: pool}
	return &Publisher{
		producer: &producer{client: client, pool: pool},
		redriver: &producer{client: client, pool: pool, compress: true},
		timeout:  timeout, cancel: cancel,
	}, nil
}

// publisherTTL is how old a publisher's view of the cluster may be while nothing fails.
const publisherTTL = 30 * time.Second

// Publish sends ms, in order per topic and key, and answers errs[i] for ms[i]; a message that the
// broker refuses, for its size say, fails alone, and is marked by [outbox.Permanent] where the record itself is why, and by
// [outbox.Unavailable] where its partition takes nothing at present. The returned error means that no broker
// answered. A message may be written twice when an answer is lost.
func (p *Publisher) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	if len(errs) != len(ms) {
		return fmt.Errorf("kafka: publish: %d messages, but room for %d answers", len(ms), len(errs))
	}
	out := make([]kafka.Message, 0, len(ms))
	at := make([]int, 0, len(ms))
	for i := range ms {
		if ms[i].Topic == "" {
			errs[i] = outbox.Permanent(fmt.Errorf("kafka: publish %q: Message.Topic is empty", ms[i].ID))
			continue
		}
		m := ms[i]
		m.Headers = consumer.OutgoingHeaders(m.Headers)
		out = append(out, recordOf(&m))
		at = append(at, i)
	}
	answers := make([]error, len(out))
	if err := p.send(ctx, p.producer, out, answers); err != nil {
		return fmt.Errorf("kafka: publish: %w", err)
	}
	for j, err := range answers {
		if err != nil {
			errs[at[j]] = fmt.Errorf("kafka: publish %q: %w", ms[at[j]].ID, err)
			if ofRecord(err) || errors.Is(err, kafka.InvalidTopic) {
				errs[at[j]] = outbox.Permanent(errs[at[j]])
			} else if unavailable(err) {
				errs[at[j]] = outbox.Unavailable(errs[at[j]])
			}
		}
	}
	return nil
}

func (p *Publisher) send(ctx context.Context, by *producer, ms []kafka.Message, errs []error) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.calls.Add(1)
	p.mu.Unlock()
	defer p.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return by.send(ctx, ms, errs)
}

// recordOf is the record for m, its headers sorted so that equal messages are equal bytes.
func recordOf(m *outbox.Message) kafka.Message {
	r := kafka.Message{Topic: m.Topic, Value: m.Body}
	if m.Key != "" {
		r.Key = []byte(m.Key)
	}
	r.Headers = make([]kafka.Header, 0, len(m.Headers)+1)
	for _, k := range slices.Sorted(maps.Keys(m.Headers)) {
		if m.ID != "" && strings.EqualFold(k, IDHeader) {
			continue
		}
		r.Headers = append(r.Headers, kafka.Header{Key: k, Value: []byte(m.Headers[k])})
	}
	if m.ID != "" {
		r.Headers = append(r.Headers, kafka.Header{Key: IDHeader, Value: []byte(m.ID)})
	}
	return r
}

// Redrive sends a dead letter back to the topic it came from, under the name and the redrive
// number that it carries, so that it is no duplicate. m is a message that a Source
// delivered from a dead letter topic, or MessageFrom made. Every group of the topic gets it, and a Consumer of another
// group than the one that gave it up acknowledges it without running it.
func (p *Publisher) Redrive(ctx context.Context, m *consumer.Message) error {
	origin := m.Headers[consumer.OriginHeader]
	if origin == "" {
		return fmt.Errorf("kafka: redrive %q: it has no header %s, so it is no dead letter", m.ID, consumer.OriginHeader)
	}
	if origin == m.Topic {
		return fmt.Errorf("kafka: redrive %q: it is in topic %s, where it came from, so it is no dead letter", m.ID, origin)
	}
	raw, ok := m.Raw.(kafka.Message)
	if !ok {
		raw = recordOf(&outbox.Message{Key: m.Key, Headers: m.Headers, Body: m.Body})
	}
	out := kafka.Message{Topic: origin, Key: raw.Key, Value: raw.Value}
	for _, h := range raw.Headers { // as they came, repeated ones and all
		if h.Key != consumer.CauseHeader && h.Key != consumer.KeptHeader { // the origin, with the scope, tells other groups that it is not for them
			out.Headers = append(out.Headers, h)
		}
	}
	if err := p.sendOne(ctx, out); err != nil {
		return fmt.Errorf("kafka: redrive %q to %s: %w", m.ID, origin, err)
	}
	return nil
}

// Keep publishes a dead letter once more at the end of the topic it is in, for consumer.Redrive: where it was, it would hold
// the position. m is a message that a Source delivered, or MessageFrom made.
func (p *Publisher) Keep(ctx context.Context, m *consumer.Message) error {
	raw, ok := m.Raw.(kafka.Message)
	if !ok {
		raw = recordOf(&outbox.Message{Key: m.Key, Headers: m.Headers, Body: m.Body})
	}
	out := kafka.Message{Topic: m.Topic, Key: raw.Key, Value: raw.Value}
	for _, h := range raw.Headers {
		if h.Key != consumer.KeptHeader {
			out.Headers = append(out.Headers, h)
		}
	}
	if run, ok := m.Headers[consumer.KeptHeader]; ok {
		out.Headers = append(out.Headers, kafka.Header{Key: consumer.KeptHeader, Value: []byte(run)})
	}
	if err := p.sendOne(ctx, out); err != nil {
		return fmt.Errorf("kafka: keep dead letter %q in %s: %w", m.ID, m.Topic, err)
	}
	return nil
}

func (p *Publisher) sendOne(ctx context.Context, m kafka.Message) error {
	var errs [1]error
	if err := p.send(ctx, p.redriver, []kafka.Message{m}, errs[:]); err != nil {
		return err
	}
	return errs[0]
}

// Close waits for the calls under way, at most PublisherOptions.Timeout, and ends the publisher's connections.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.closed = true
	p.mu.Unlock()
	p.calls.Wait()
	p.producer.pool.CloseIdleConnections()
	p.cancel()
	return nil
}
