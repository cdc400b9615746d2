package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
)

// IDHeader is the header in which a Publisher sends Message.ID, and the first in which a
// consumer looks for it.
const IDHeader = "message-id"

// Publisher sends messages and waits for the broker's word on each. Message.ID goes as user property
// "message-id", headers as user properties, the key as SHARDING_KEY; its FNV-1a hash chooses the
// queue. Headers named TAGS and KEYS are the message's tag and keys. Values that a
// property cannot hold go encoded and arrive as they were.
type Publisher struct {
	cluster  Cluster
	producer *producer
	timeout  time.Duration

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
		return nil, fmt.Errorf("rocketmq: PublisherOptions.Timeout %v is negative; leave it zero for %v", timeout, defaultPublishTimeout)
	}
	c.NameServers = slices.Clone(c.NameServers)
	return &Publisher{cluster: c, producer: &producer{client: newClient(c, nil), create: true}, timeout: timeout}, nil
}

// Publish sends ms, in order per topic and key, and answers errs[i] for ms[i]; a message that the
// broker refuses, for its size say, fails alone, and is marked by [outbox.Permanent] where the message itself is why, and by
// [outbox.Unavailable] where its queue's broker takes nothing at present. The returned error means that no broker
// answered. A message may be written twice when an answer is lost.
func (p *Publisher) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	if len(errs) != len(ms) {
		return fmt.Errorf("rocketmq: publish: %d messages, but room for %d answers", len(ms), len(errs))
	}
	out := make([]*outgoing, len(ms))
	for i := range ms {
		var err error
		if ms[i].Topic == "" {
			err = errors.New("Message.Topic is empty")
		} else {
			m := ms[i]
			m.Headers = consumer.OutgoingHeaders(m.Headers)
			out[i], err = p.cluster.newMessage(&m)
		}
		if err != nil {
			errs[i] = outbox.Permanent(fmt.Errorf("rocketmq: publish %q: %w", ms[i].ID, err))
		}
	}
	answers := make([]error, len(ms))
	if err := p.send(ctx, out, answers); err != nil {
		return fmt.Errorf("rocketmq: publish: %w", err)
	}
	for i, err := range answers {
		if err == nil {
			continue
		}
		errs[i] = fmt.Errorf("rocketmq: publish %q: %w", ms[i].ID, err)
		if isCode(err, codeIllegalMessage) || errors.Is(err, errTooLarge) {
			errs[i] = outbox.Permanent(errs[i])
		} else if unavailable(err) {
			errs[i] = outbox.Unavailable(errs[i])
		}
	}
	return nil
}

// publishLanes is how many chains of messages are under way at once.
const publishLanes = 64

// send sends those of ms that are not nil: of one topic and key one after the other, others side
// by side. The error means that no server answered for any of them.
func (p *Publisher) send(ctx context.Context, ms []*outgoing, errs []error) error {
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

	type lane struct{ topic, key string }
	chains := make(map[lane][]int)
	var order [][]int
	keyless := 0
	for i, m := range ms {
		if m == nil {
			continue
		}
		l := lane{m.topic, m.key}
		if m.key == "" { // no order: spread over the lanes
			l.key = fmt.Sprint("\x00", keyless%publishLanes)
			keyless++
		}
		chains[l] = append(chains[l], i)
	}
	for _, c := range chains {
		order = append(order, c)
	}
	var asked atomic.Bool
	var wg sync.WaitGroup
	work := make(chan []int)
	for range min(publishLanes, len(order)) {
		wg.Go(func() {
			for chain := range work {
				p.chain(ctx, chain, ms, errs, &asked)
			}
		})
	}
	for _, c := range order {
		work <- c
	}
	close(work)
	wg.Wait()
	if asked.Load() {
		return nil
	}
	var err error
	for i := range errs {
		if errs[i] != nil {
			err, errs[i] = errs[i], nil
		}
	}
	return err
}

// chain sends messages one after the other. One that is refused for itself is left out; after any
// other failure those behind it must not overtake it.
func (p *Publisher) chain(ctx context.Context, idx []int, ms []*outgoing, errs []error, asked *atomic.Bool) {
	for n, i := range idx {
		err := p.producer.send(ctx, ms[i])
		if err == nil || refused(err) || errors.Is(err, errNoTopic) {
			asked.Store(true)
		}
		if errs[i] = err; err == nil || isCode(err, codeIllegalMessage) {
			continue
		}
		if ms[i].key == "" && ctx.Err() == nil {
			continue
		}
		for _, j := range idx[n+1:] {
			errs[j] = err
		}
		return
	}
}

// Redrive sends a dead letter back to the topic it came from, under the name and the redrive
// number that it carries, so that it is no duplicate. m is a message that a Source
// delivered from a dead letter topic, or MessageFrom made.
func (p *Publisher) Redrive(ctx context.Context, m *consumer.Message) error {
	origin := m.Headers[consumer.OriginHeader]
	if origin == "" {
		return fmt.Errorf("rocketmq: redrive %q: it has no header %s, so it is no dead letter", m.ID, consumer.OriginHeader)
	}
	if origin == m.Topic {
		return fmt.Errorf("rocketmq: redrive %q: it is in topic %s, where it came from, so it is no dead letter", m.ID, origin)
	}
	headers := maps.Clone(m.Headers)
	delete(headers, consumer.CauseHeader) // the origin, with the scope, tells other groups that it is not for them
	delete(headers, consumer.KeptHeader)
	if err := p.copyTo(ctx, origin, m, headers); err != nil {
		return fmt.Errorf("rocketmq: redrive %q to %s: %w", m.ID, origin, err)
	}
	return nil
}

// Keep publishes a dead letter once more at the end of the topic it is in, for consumer.Redrive: where it was, it would hold
// the position. m is a message that a Source delivered, or MessageFrom made.
func (p *Publisher) Keep(ctx context.Context, m *consumer.Message) error {
	if err := p.copyTo(ctx, m.Topic, m, m.Headers); err != nil {
		return fmt.Errorf("rocketmq: keep dead letter %q in %s: %w", m.ID, m.Topic, err)
	}
	return nil
}

// copyTo publishes m, with other headers, to topic.
func (p *Publisher) copyTo(ctx context.Context, topic string, m *consumer.Message, headers map[string]string) error {
	var out *outgoing
	var err error
	if raw, ok := m.Raw.(*primitive.MessageExt); ok {
		out, err = copyOf(raw, p.cluster.wire(topic), headers, m.Key, nil)
	} else {
		out, err = p.cluster.newMessage(&outbox.Message{Topic: topic, Key: m.Key, Headers: headers, Body: m.Body})
	}
	if err != nil {
		return err
	}
	var errs [1]error
	if err := p.send(ctx, []*outgoing{out}, errs[:]); err != nil {
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
	p.producer.client.close()
	return nil
}
