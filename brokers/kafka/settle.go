package kafka

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/segmentio/kafka-go"
)

// record is one delivery and its Settler.
type record struct {
	msg  consumer.Message
	part *partition
	seq  uint64 // in part's tracker
	raw  any    // the kafka.Message, whatever a handler does to msg
	body []byte // only between raw and delivery
	word atomic.Bool
}

var _ consumer.Settler = (*record)(nil)

func (r *record) once() error {
	if r.word.Swap(true) {
		return fmt.Errorf("%w: %s", ErrSettled, r.msg.ID)
	}
	return nil
}

// Ack makes the message part of the position that is committed within a second.
func (r *record) Ack(context.Context) error {
	if err := r.once(); err != nil {
		return err
	}
	r.part.settled(r.seq, acked)
	return nil
}

// Retry delivers the message again after d, from memory, and holds the partition's position
// until then. It never fails, and neither the broker nor this package counts it.
func (r *record) Retry(_ context.Context, d time.Duration, _ error) error {
	if err := r.once(); err != nil {
		return err
	}
	if r.part.settled(r.seq, kept) {
		r.part.src.redeliver(r, time.Now().Add(d))
	}
	return nil
}

// GiveBack delivers the message again from memory, behind what is on its way; on a lost
// partition the broker delivers it to the next owner.
func (r *record) GiveBack(ctx context.Context) error { return r.Retry(ctx, 0, nil) }

// DeadLetter publishes the copy whether or not the partition is lost: its caller writes
// the verdict on the strength of it.
func (r *record) DeadLetter(ctx context.Context, redrive int, cause error) error {
	m := r.raw.(kafka.Message)
	// From what is r's own: a handler may still be at work on r.msg.Headers.
	added := (&consumer.Message{ID: r.msg.ID, Topic: m.Topic, Scope: r.msg.Scope}).DeadLetterHeaders(redrive, cause)
	out := kafka.Message{Key: m.Key, Value: m.Value} // with a time of its own, or the topic's retention might drop it at once
	for _, h := range m.Headers {
		if !ours(h.Key) {
			out.Headers = append(out.Headers, h)
		}
	}
	for _, name := range ownHeaders {
		if v, ok := added[name]; ok {
			out.Headers = append(out.Headers, kafka.Header{Key: name, Value: []byte(v)})
		}
	}
	s := r.part.src
	topic := s.opt.deadLetterTopic(m.Topic)
	err := s.dead.publish(ctx, topic, m.Topic, out)
	if tooLarge(err) { // where there is no room for a long cause, it goes without
		out.Headers = slices.DeleteFunc(out.Headers, func(h kafka.Header) bool { return h.Key == consumer.CauseHeader })
		err = s.dead.publish(ctx, topic, m.Topic, out)
	}
	if tooLarge(err) {
		s.saySize(ctx, topic, &m, sizeOf(&out)+batchHeader)
	}
	if err != nil {
		return fmt.Errorf("kafka: dead-letter %s/%d/%d to %s: %w", m.Topic, m.Partition, m.Offset, topic, err)
	}
	return nil
}

// saySize tells the operator, who alone can end that, of a dead letter that does not fit.
func (s *Source) saySize(ctx context.Context, topic string, m *kafka.Message, size int) {
	if !s.quiet.allow("size " + topic) {
		return
	}
	limit := "unknown"
	if settings, err := topicSettings(ctx, s.client, []string{topic}, maxMessageBytes); err == nil {
		limit = cmp.Or(settings[topic][maxMessageBytes], limit)
	}
	s.log.Error("kafka: a dead letter is larger than its topic takes; its message is kept, and holds its partition's position, until the topic's max.message.bytes is raised to its size",
		"topic", topic, maxMessageBytes, limit, "size", size, "message", fmt.Sprintf("%s/%d/%d", m.Topic, m.Partition, m.Offset))
}

// ownHeaders are those that a dead letter adds, in the order they are written.
var ownHeaders = [...]string{
	consumer.IDHeader, consumer.RedriveHeader, consumer.CauseHeader, consumer.OriginHeader, consumer.ScopeHeader,
}

func ours(name string) bool {
	for _, n := range ownHeaders {
		if n == name {
			return true
		}
	}
	return false
}

// copyOf is r as a new delivery, from the message as it came.
func copyOf(r *record) consumer.Delivery {
	m := r.raw.(kafka.Message)
	n := &record{part: r.part, seq: r.seq, body: bytes.Clone(m.Value)}
	return n.delivery(&m, r.raw)
}
