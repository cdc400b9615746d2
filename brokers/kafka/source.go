package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/segmentio/kafka-go"
)

// Source consumes topics as a member of a consumer group.
type Source struct {
	cluster Cluster
	group   string
	topics  []string
	opt     SourceOptions
	scope   string
	log     *slog.Logger

	conns  conns // to the group's coordinator
	others conns // of pool
	client *kafka.Client
	pool   *kafka.Transport
	unpool context.CancelFunc
	dead   *deadLetters

	signal chan struct{}      // capacity 1: Receive may find something
	ending chan struct{}      // closed by Close, and when Receive has nothing to wait for any more
	done   chan struct{}      // closed when the membership has ended
	cancel context.CancelFunc // ends what Close has no time to wait for

	connected atomic.Bool

	mu      sync.Mutex
	started bool
	closed  bool
	fatal   error
	parts   []*partition
	turn    int     // whose turn it is in parts
	again   []retry // by due
	quiet   limiter
	seen    map[string]int // partitions at the first look
}

// retry is a delivery to be made again from memory.
type retry struct {
	*record
	due time.Time
}

var (
	_ consumer.Source    = (*Source)(nil)
	_ consumer.Connector = (*Source)(nil)
)

// Connected reports whether this process is a member of the group and has its share of the
// partitions. It is false while the group rebalances, and once heartbeats fail.
func (s *Source) Connected() bool { return s.connected.Load() }

// NewSource checks its settings against each other and does no I/O: the first Receive joins the group.
func NewSource(c Cluster, group string, topics []string, o *SourceOptions) (*Source, error) {
	opt := o.fill()
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := opt.check(group, topics); err != nil {
		return nil, err
	}
	c.Brokers = slices.Clone(c.Brokers)
	s := &Source{
		cluster: c, group: group, topics: slices.Clone(topics), opt: opt,
		scope:  scopeOf(group),
		log:    opt.Logger.With("group", group),
		signal: make(chan struct{}, 1),
		ending: make(chan struct{}),
		done:   make(chan struct{}),
	}
	known := slices.Clone(topics)
	for _, t := range topics {
		if d := opt.deadLetterTopic(t); !slices.Contains(known, d) {
			known = append(known, d)
		}
	}
	// A call that Close has no time to wait for could open the pool again: its goroutines end with this.
	pooled, end := context.WithCancel(context.Background())
	s.unpool = end
	s.pool = c.transport(pooled, pollEvery, known, s.others.dial)
	s.client = &kafka.Client{Addr: c.addr(), Transport: s.pool}
	s.dead = newDeadLetters(&producer{client: s.client, pool: s.pool, compress: true}, s.partitions)
	return s, nil
}

// Receive waits for at least one delivery and returns at most max, a partition after the other.
// It returns an error only when waiting cannot help: refused credentials or rights, settings
// that the broker refuses, a compacted dead letter topic.
func (s *Source) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("kafka: Receive of %d deliveries; ask for at least one", max)
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, wait, err := s.collect(max)
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		if err := s.wait(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// start begins the membership, once.
func (s *Source) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.started {
		return nil
	}
	s.started = true
	// The membership outlives every Receive; Close ends it, and waits.
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		s.run(ctx)
	}()
	return nil
}

// collect gathers what can be delivered now; otherwise it tells when a retry is due.
func (s *Source) collect(limit int) (ds []consumer.Delivery, wait time.Duration, err error) {
	s.mu.Lock()
	if s.closed || s.fatal != nil {
		err = s.fatal
		if s.closed {
			err = ErrClosed
		}
		s.mu.Unlock()
		return nil, 0, err
	}
	var due []*record
	now := time.Now()
	for len(s.again) > 0 && len(due) < limit && !s.again[0].due.After(now) {
		due = append(due, s.again[0].record)
		s.again = s.again[1:]
	}
	wait = -1
	if len(s.again) > 0 {
		wait = s.again[0].due.Sub(now)
	}
	parts, turn := s.parts, s.turn
	s.turn++
	s.mu.Unlock()

	for _, r := range due {
		if r.part.again() {
			ds = append(ds, copyOf(r))
		}
	}
	for i := range parts {
		if len(ds) >= limit {
			break
		}
		if ds == nil {
			ds = make([]consumer.Delivery, 0, min(limit, 128))
		}
		ds = parts[(i+turn)%len(parts)].take(ds, limit-len(ds))
	}
	return ds, wait, nil
}

func (s *Source) wait(ctx context.Context, d time.Duration) error {
	var timer <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ending: // collect tells why
	case <-s.signal:
	case <-timer:
	}
	return nil
}

// wake makes Receive look again.
func (s *Source) wake() {
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// redeliver queues r to be delivered again once due; those of one time keep their order.
func (s *Source) redeliver(r *record, due time.Time) {
	s.mu.Lock()
	i := len(s.again)
	for i > 0 && s.again[i-1].due.After(due) {
		i--
	}
	s.again = slices.Insert(s.again, i, retry{r, due})
	s.mu.Unlock()
	s.wake()
}

// setParts replaces the partitions that are delivered.
func (s *Source) setParts(parts []*partition) {
	s.mu.Lock()
	s.parts = slices.Clone(parts)
	s.again = slices.DeleteFunc(s.again, func(r retry) bool { return !slices.Contains(parts, r.part) })
	s.mu.Unlock()
	s.wake()
}

// fail ends the membership for a reason that waiting cannot mend; Receive returns it.
func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fatal == nil && !s.closed {
		s.fatal = err
		s.end()
	}
}

// end begins the end of the membership. With s.mu.
func (s *Source) end() {
	select {
	case <-s.ending:
	default:
		close(s.ending)
	}
}

// closeGrace is what the client gets to leave the group by itself before its connections are
// cut: while the group is forming it would wait for the other members.
const closeGrace = 2 * time.Second

// Close commits what was acknowledged, leaves the group and ends every goroutine. When ctx
// ends first it returns an error, and what it did not finish is cut off; unacknowledged
// messages come again in any case.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closed = true
	s.end()
	started := s.started
	s.mu.Unlock()
	defer func() { // also of the last fetch, which nobody waits for any more
		s.pool.CloseIdleConnections()
		s.unpool()
		s.others.cut(true)
	}()
	if !started {
		close(s.done)
		return s.dead.close(ctx)
	}
	defer s.cancel()
	grace := time.AfterFunc(closeGrace, func() { s.conns.cut(false) })
	defer grace.Stop()
	select {
	case <-s.done:
	case <-ctx.Done():
		s.cancel()
		s.conns.cut(true)
		return fmt.Errorf("kafka: close %s: the client did not end in time, so its last acknowledgements may be missing and their messages come again: %w", s.scope, context.Cause(ctx))
	}
	return s.dead.close(ctx)
}
