package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
)

const (
	batchBytes   = 900 << 10 // below the broker's default max.message.bytes, which holds for a batch
	requestLimit = 95 << 20  // below the broker's default socket.request.max.bytes, beyond which it just hangs up
	recordExtra  = 40        // what a record needs besides its fields, at most
	batchHeader  = 61        // what a batch needs besides its records
	ackWait      = 5 * time.Second
)

// producer sends records and waits for all in-sync replicas. Unlike the client's Writer it
// answers for each record: one that is too large takes no other with it.
type producer struct {
	client   *kafka.Client
	pool     *kafka.Transport
	balance  kafka.Hash
	compress bool // what is too large as it is: a copy of what came compressed would never fit
}

// errUnknownTopic is the answer for records of a topic that is not there.
var errUnknownTopic error = kafka.UnknownTopicOrPartition

// send publishes ms, whose Topic is set, in order per partition, and answers errs[i] for
// ms[i]. The returned error means that no broker answered for any of them.
func (p *producer) send(ctx context.Context, ms []kafka.Message, errs []error) error {
	if len(ms) == 0 {
		return nil
	}
	l, err := p.topics(ctx, ms)
	if err != nil {
		return err
	}
	type target struct {
		topic     string
		partition int
	}
	chains := make(map[target][]int)
	var order []target
	var asked atomic.Bool
	for i := range ms {
		n := len(l[ms[i].Topic])
		if n == 0 {
			errs[i] = fmt.Errorf("topic %q: %w", ms[i].Topic, errUnknownTopic)
			asked.Store(true)
			continue
		}
		t := target{ms[i].Topic, p.balance.Balance(ms[i], numbers(n)...)}
		if chains[t] == nil {
			order = append(order, t)
		}
		chains[t] = append(chains[t], i)
	}
	var wg sync.WaitGroup
	for _, t := range order {
		wg.Go(func() {
			c := chain{p: p, topic: t.topic, partition: t.partition, ms: ms, errs: errs, asked: &asked}
			c.run(ctx, chains[t])
		})
	}
	wg.Wait()
	if !asked.Load() {
		for i := range errs {
			if errs[i] != nil {
				err, errs[i] = errs[i], nil
			}
		}
	}
	return err
}

// numbers is 0 … n-1, as a Balancer takes it.
func numbers(n int) []int {
	ns := make([]int, n)
	for i := range ns {
		ns[i] = i
	}
	return ns
}

// topics finds the partitions of what ms name, with a second, fresh look for missing ones.
func (p *producer) topics(ctx context.Context, ms []kafka.Message) (layout, error) {
	var names []string
	seen := make(map[string]bool)
	for i := range ms {
		if !seen[ms[i].Topic] {
			seen[ms[i].Topic] = true
			names = append(names, ms[i].Topic)
		}
	}
	fresh := false
	for n := 1; ; n++ {
		l, err := lookUp(ctx, p.client, p.pool, names, fresh)
		switch {
		case err == nil && (fresh || len(l) == len(names)):
			return l, nil
		case err == nil:
			fresh = true
			continue
		case ctx.Err() != nil || classify(err) == terminal:
			return nil, err
		}
		fresh = true
		if sleep(ctx, backoff(n)); ctx.Err() != nil {
			return nil, err
		}
	}
}

// chain sends the records of one partition, one batch after the other.
type chain struct {
	p         *producer
	topic     string
	partition int
	ms        []kafka.Message
	errs      []error
	asked     *atomic.Bool
}

func (c *chain) run(ctx context.Context, idx []int) {
	for len(idx) > 0 {
		n, size := 0, 0
		for n < len(idx) && (n == 0 || size+sizeOf(&c.ms[idx[n]]) <= batchBytes) {
			size += sizeOf(&c.ms[idx[n]])
			n++
		}
		if err := c.batch(ctx, idx[:n], size); err != nil {
			// What follows must not overtake it.
			for _, i := range idx[n:] {
				c.errs[i] = err
			}
			return
		}
		idx = idx[n:]
	}
}

// batch sends one batch, in halves if the broker refuses it for one of its records. It returns
// the error that stops the chain; a final answer for single records does not.
func (c *chain) batch(ctx context.Context, idx []int, size int) error {
	var err error
	if size > requestLimit {
		err = kafka.MessageSizeTooLarge
		c.asked.Store(true)
	} else {
		err = c.try(ctx, idx, 0)
		if c.p.compress && len(idx) == 1 && tooLarge(err) {
			// zstd finds an ID that stands twice even where it is long. Brokers before 2.1 do not know it.
			if again := c.try(ctx, idx, protocol.Zstd); !errors.Is(again, kafka.UnsupportedCompressionType) {
				err = again
			}
		}
	}
	switch {
	case err == nil:
		return nil
	case ofRecord(err) && len(idx) > 1:
		half := len(idx) / 2
		if err = c.batch(ctx, idx[:half], c.size(idx[:half])); err != nil {
			for _, i := range idx[half:] { // not tried: they must not overtake. The first half has its answers, some of them nil
				c.errs[i] = err
			}
			return err
		}
		return c.batch(ctx, idx[half:], c.size(idx[half:]))
	case tooLarge(err):
		c.errs[idx[0]] = fmt.Errorf("topic %q: a record of %d bytes is more than the broker takes (max.message.bytes): %w", c.topic, size, err)
		return nil
	}
	err = fmt.Errorf("topic %q partition %d: %w", c.topic, c.partition, err)
	for _, i := range idx {
		c.errs[i] = err
	}
	if ofRecord(err) {
		return nil
	}
	return err
}

func (c *chain) size(idx []int) (n int) {
	for _, i := range idx {
		n += sizeOf(&c.ms[i])
	}
	return n
}

// ofRecord reports whether the broker refused a batch for something in a record of it.
func ofRecord(err error) bool {
	return tooLarge(err) || errors.Is(err, kafka.InvalidRecord) || errors.Is(err, kafka.InvalidTimestamp)
}

// try sends a batch until it is answered for good or ctx ends. A repetition may write it twice,
// when the answer to the first was lost; consumers drop the copy by its ID.
func (c *chain) try(ctx context.Context, idx []int, codec protocol.Attributes) error {
	for n := 1; ; n++ {
		err := c.once(ctx, idx, codec)
		if err == nil || ofRecord(err) || classify(err) == terminal {
			return err
		}
		if sleep(ctx, backoff(n)); ctx.Err() != nil {
			return err
		}
		c.p.pool.CloseIdleConnections() // the leader may have moved
	}
}

func (c *chain) once(ctx context.Context, idx []int, codec protocol.Attributes) error {
	records := make([]protocol.Record, len(idx))
	for j, i := range idx {
		m := &c.ms[i]
		records[j] = protocol.Record{Key: protocol.NewBytes(m.Key), Value: protocol.NewBytes(m.Value), Headers: m.Headers, Time: m.Time}
	}
	call, cancel := context.WithTimeout(ctx, 2*ackWait)
	defer cancel()
	res, err := c.p.pool.RoundTrip(call, c.p.client.Addr, &produce.Request{
		Acks: int16(kafka.RequireAll), Timeout: int32(ackWait / time.Millisecond),
		Topics: []produce.RequestTopic{{Topic: c.topic, Partitions: []produce.RequestPartition{{
			Partition: int32(c.partition), RecordSet: protocol.RecordSet{Attributes: codec, Records: protocol.NewRecordReader(records...)},
		}}}},
	})
	if err != nil {
		return err
	}
	c.asked.Store(true)
	topics := res.(*produce.Response).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return errors.New("the broker's answer names other partitions than the one asked")
	}
	switch rp := topics[0].Partitions[0]; {
	case rp.ErrorCode == 0:
		return nil
	case rp.ErrorMessage != "":
		return fmt.Errorf("%s: %w", rp.ErrorMessage, kafka.Error(rp.ErrorCode))
	default:
		return kafka.Error(rp.ErrorCode)
	}
}

// sizeOf is what a record takes in a batch, or a little more.
func sizeOf(m *kafka.Message) int {
	n := len(m.Key) + len(m.Value) + recordExtra
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value) + 10
	}
	return n
}
