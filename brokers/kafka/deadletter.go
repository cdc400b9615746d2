package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// deadLetters publishes dead letters. While one request is under way the next ones gather, so
// that a flood of them is neither a request nor a connection each.
type deadLetters struct {
	producer   *producer
	partitions func(ctx context.Context, topic string) int

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	waiting []letter
	busy    bool
	closed  bool
}

type letter struct {
	msg    kafka.Message
	origin string
	answer chan error // capacity 1
}

// letterTimeout bounds one request; who waits for it may wait longer, and try again.
const letterTimeout = 15 * time.Second

func newDeadLetters(p *producer, partitions func(context.Context, string) int) *deadLetters {
	d := &deadLetters{producer: p, partitions: partitions}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// publish returns once the broker has confirmed m, or ctx ends; m may then still be published, unless
// ctx had ended before.
func (d *deadLetters) publish(ctx context.Context, topic, origin string, m kafka.Message) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.Topic = topic
	l := letter{m, origin, make(chan error, 1)}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return ErrClosed
	}
	d.waiting = append(d.waiting, l)
	if !d.busy {
		d.busy = true
		d.wg.Go(d.flush)
	}
	d.mu.Unlock()
	select {
	case err := <-l.answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flush sends what waits until nothing does.
func (d *deadLetters) flush() {
	for {
		d.mu.Lock()
		ls := d.waiting
		d.waiting = nil
		if len(ls) == 0 {
			d.busy = false
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		d.send(ls)
	}
}

func (d *deadLetters) send(ls []letter) {
	ctx, cancel := context.WithTimeout(d.ctx, letterTimeout)
	defer cancel()
	ms, errs := make([]kafka.Message, len(ls)), make([]error, len(ls))
	for i := range ls {
		ms[i] = ls[i].msg
	}
	all := d.producer.send(ctx, ms, errs)
	var again []letter
	created := make(map[string]error)
	for i, l := range ls {
		err := errs[i]
		if all != nil {
			err = all
		}
		if !errors.Is(err, errUnknownTopic) {
			l.answer <- err
			continue
		}
		made, tried := created[l.msg.Topic]
		if !tried {
			made = d.create(ctx, l.msg.Topic, l.origin)
			created[l.msg.Topic] = made
		}
		if made != nil {
			l.answer <- fmt.Errorf("the topic does not exist and could not be created; create it: %w", made)
			continue
		}
		again = append(again, l)
	}
	d.sendToNew(ctx, again)
}

// sendToNew sends to topics that were just made, of which the broker may not know yet.
func (d *deadLetters) sendToNew(ctx context.Context, ls []letter) {
	for n := 1; len(ls) > 0; n++ {
		ms, errs := make([]kafka.Message, len(ls)), make([]error, len(ls))
		for i := range ls {
			ms[i] = ls[i].msg
		}
		all := d.producer.send(ctx, ms, errs)
		var again []letter
		for i, l := range ls {
			err := errs[i]
			if all != nil {
				err = all
			}
			if errors.Is(err, errUnknownTopic) && ctx.Err() == nil {
				again = append(again, l)
				continue
			}
			l.answer <- err
		}
		if ls = again; len(ls) > 0 {
			sleep(ctx, backoff(n))
		}
	}
}

// create makes a dead letter topic like its origin, with the broker's own replication, and with
// room for what a dead letter adds.
func (d *deadLetters) create(ctx context.Context, topic, origin string) error {
	conf := kafka.TopicConfig{Topic: topic, NumPartitions: max(1, d.partitions(ctx, origin)), ReplicationFactor: -1}
	var err error
	for _, limit := range d.limits(ctx, origin) {
		conf.ConfigEntries = []kafka.ConfigEntry{{ConfigName: cleanupPolicy, ConfigValue: "delete"}}
		if limit > 0 {
			conf.ConfigEntries = append(conf.ConfigEntries, kafka.ConfigEntry{ConfigName: maxMessageBytes, ConfigValue: strconv.Itoa(limit)})
		}
		var res *kafka.CreateTopicsResponse
		if res, err = d.producer.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{conf}}); err != nil {
			return err
		}
		err = res.Errors[topic]
		if !errors.Is(err, kafka.InvalidConfiguration) && !errors.Is(err, kafka.PolicyViolation) {
			break // else the cluster does not let clients choose that much
		}
	}
	if errors.Is(err, kafka.TopicAlreadyExists) {
		return nil
	}
	return err
}

// limits are values of max.message.bytes for the dead letters of origin, the best first; 0: the broker's
// own. A dead letter holds the message's ID once more, which may be all of the message, and five
// headers, of which the longest is a cause of 1 KiB.
func (d *deadLetters) limits(ctx context.Context, origin string) []int {
	const room = 4 << 10
	settings, err := topicSettings(ctx, d.producer.client, []string{origin}, maxMessageBytes)
	if err != nil {
		return []int{0}
	}
	n, err := strconv.Atoi(settings[origin][maxMessageBytes])
	if err != nil || n < 1 {
		return []int{0}
	}
	return []int{min(2*n+room, math.MaxInt32), n, 0}
}

// partitions is how many partitions a topic has; 0: not known.
func (s *Source) partitions(ctx context.Context, topic string) int {
	l, err := lookUp(ctx, s.client, s.pool, []string{topic}, false)
	if err != nil {
		return 0
	}
	return len(l[topic])
}

// close ends what is under way once ctx ends.
func (d *deadLetters) close(ctx context.Context) error {
	defer d.cancel()
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	done := make(chan struct{})
	go func() {
		d.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		d.cancel()
		return fmt.Errorf("kafka: close: dead letters were under way: %w", context.Cause(ctx))
	}
}
