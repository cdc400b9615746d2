package rocketmq

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/idemq/idemq/consumer"
)

// record is one delivery and its Settler.
type record struct {
	msg   consumer.Message
	queue *queue
	seq   uint64 // in queue's tracker
	raw   *primitive.MessageExt
	word  atomic.Bool
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
	r.queue.settled(r.seq)
	return nil
}

// Retry publishes a copy that the broker delivers after d, rounded up to its next delay level, and
// then acknowledges this one. Short delays, and all in Ordered mode, are waited for in memory.
// A crash between copy and acknowledgement leaves both, under one name.
func (r *record) Retry(ctx context.Context, d time.Duration, _ error) error {
	if err := r.once(); err != nil {
		return err
	}
	s, q := r.queue.src, r.queue
	levels, _ := s.delayLevels()
	if s.opt.Ordered || d < levels[0]/2 {
		s.redeliver(r, time.Now().Add(d))
		return nil
	}
	if !q.live() {
		return nil
	}
	if err := r.postpone(ctx, levels, d); err != nil {
		r.word.Store(false) // it may be said again
		return fmt.Errorf("rocketmq: retry %s/%d by way of %s: %w", q.name, r.raw.QueueOffset, s.retryTopic, err)
	}
	q.settled(r.seq)
	return nil
}

func (r *record) postpone(ctx context.Context, levels []time.Duration, d time.Duration) error {
	s := r.queue.src
	level, longest := levelFor(levels, d)
	if level == 0 {
		level = len(levels)
		if s.quiet.allow("delay") {
			s.log.Warn("rocketmq: a retry's delay is longer than the broker's longest one, which it gets (messageDelayLevel)", "asked", d, "got", longest)
		}
	}
	headers, key := decodeProperties(r.raw.GetProperties())
	out, err := copyOf(r.raw, s.retryTopic, headers, key, map[string]string{
		primitive.PropertyDelayTimeLevel: strconv.Itoa(level),
		primitive.PropertyRetryTopic:     originOf(r.raw),
	})
	if err != nil {
		return err
	}
	return s.copies.publish(ctx, out, r.queue.of.topic)
}

// GiveBack delivers the message again from memory, behind what is on its way; once its queue is
// lost the broker delivers it to the next owner.
func (r *record) GiveBack(context.Context) error {
	if err := r.once(); err != nil {
		return err
	}
	r.queue.src.redeliver(r, time.Now())
	return nil
}

// DeadLetter publishes the copy whether or not the queue is lost: its caller writes the
// verdict on the strength of it.
func (r *record) DeadLetter(ctx context.Context, redrive int, cause error) error {
	s := r.queue.src
	origin := s.cluster.bare(originOf(r.raw))
	// From what is r's own: a handler may still be at work on r.msg.Headers.
	added := (&consumer.Message{ID: r.msg.ID, Topic: origin, Scope: s.scope}).DeadLetterHeaders(redrive, cause)
	out, err := deadCopy(r.raw, s.deadTopic, added)
	if err == nil {
		err = s.copies.publish(ctx, out, r.queue.of.topic)
	}
	if err != nil {
		return fmt.Errorf("rocketmq: dead-letter %s/%d to %s: %w", r.queue.name, r.raw.QueueOffset, s.opt.DeadLetterTopic, err)
	}
	return nil
}

// ownHeaders are those that a dead letter adds.
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
