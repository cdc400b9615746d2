package rabbitmq

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/consumer"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Source consumes one queue.
type Source struct {
	cluster Cluster
	queue   string
	user    string // as who it publishes
	opt     SourceOptions
	scope   string
	log     *slog.Logger

	conns  conns // to consume on
	node   int   // of cluster.URLs, to begin with; of run
	copies *producer

	pause, longest time.Duration // of reconnecting

	signal chan struct{}      // capacity 1: Receive may find something
	ending chan struct{}      // closed by Close, and when Receive has nothing to wait for any more
	done   chan struct{}      // closed when run has returned
	cancel context.CancelFunc // of run

	connected atomic.Bool
	ever      atomic.Bool // there has been a session

	mu       sync.Mutex
	started  bool
	closed   bool
	fatal    error
	delays   []time.Duration // of the wait queues, ascending
	prefetch int
	room     time.Duration // what a delivery's deadline must leave for a handler to start
	live     *session
	again    *session    // to be given back as a whole
	buffer   []*delivery // of the live session, not yet handed out
	held     []retry     // by due
}

// retry is a delivery to be made again from memory.
type retry struct {
	*delivery
	due time.Time
}

var (
	_ consumer.Source    = (*Source)(nil)
	_ consumer.Connector = (*Source)(nil)
)

// Connected reports whether there is a session that consumes the queue. Of a connection that
// went silent it learns by heartbeats, within half a minute.
func (s *Source) Connected() bool { return s.connected.Load() }

// NewSource checks its settings against each other and does no I/O: the first Receive connects. The
// queue itself must exist, see [Topology]; while it does not, Receive waits for it.
func NewSource(c Cluster, queue string, o *SourceOptions) (*Source, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	opt := o.fill(queue)
	if err := opt.check(queue); err != nil {
		return nil, err
	}
	u, err := amqp.ParseURI(c.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: Cluster.URLs[0]: %w", err)
	}
	s := &Source{
		cluster: Cluster{URLs: slices.Clone(c.URLs), TLS: c.TLS}, queue: queue, user: u.Username, opt: opt,
		scope: scopeOf(u.Vhost, queue),
		log:   opt.Logger.With("queue", queue),
		pause: minPause, longest: maxPause,
		signal: make(chan struct{}, 1),
		ending: make(chan struct{}),
		done:   make(chan struct{}),
	}
	s.copies = newProducer(s.cluster, "idemq copies "+queue)
	p, err := consumer.Policy{}.Complete(opt.defaults())
	if err != nil {
		return nil, err
	}
	s.delays, s.prefetch, s.room = opt.ladder(p), opt.prefetch(p), p.Room() // until Plan is told another policy
	return s, nil
}

// minPause and maxPause are what reconnecting waits, doubled from one to the other.
const (
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second
)

// Receive waits for at least one delivery and returns at most max, in the order in which the
// server sent them. It returns an error only when waiting cannot help: refused credentials or rights, wait
// queues that exist with other settings.
func (s *Source) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("rabbitmq: Receive of %d deliveries; ask for at least one", max)
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

// start begins to consume, once.
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
	// Sessions outlive every Receive; Close ends them, and waits.
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		s.run(ctx)
	}()
	return nil
}

// collect takes what can be delivered now; otherwise it tells when a retry is due.
func (s *Source) collect(limit int) (ds []consumer.Delivery, wait time.Duration, err error) {
	s.mu.Lock()
	switch {
	case s.closed:
		err = ErrClosed
	case s.fatal != nil:
		err = s.fatal
	case s.again != nil:
		e := s.again
		s.mu.Unlock()
		e.stop()
		return nil, -1, nil // until its successor brings something
	}
	if err != nil {
		s.mu.Unlock()
		return nil, 0, err
	}
	var due []*delivery
	now := time.Now()
	for len(s.held) > 0 && len(due) < limit && !s.held[0].due.After(now) {
		due = append(due, s.held[0].delivery)
		s.held = s.held[1:]
	}
	wait = -1
	if len(s.held) > 0 {
		wait = s.held[0].due.Sub(now)
	}
	n := min(limit-len(due), len(s.buffer))
	arrived := s.buffer[:n:n]
	if s.buffer = s.buffer[n:]; len(s.buffer) == 0 {
		s.buffer = nil
	}
	more := len(s.buffer) > 0
	s.mu.Unlock()
	if more {
		s.wake()
	}
	if len(due)+n == 0 {
		return nil, wait, nil
	}
	ds = make([]consumer.Delivery, 0, len(due)+n)
	for _, d := range due {
		ds = append(ds, d.repeated())
	}
	for _, d := range arrived {
		ds = append(ds, d.fresh())
	}
	return ds, 0, nil
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

// redeliver queues d to be delivered again once due; those of one time keep their order.
func (s *Source) redeliver(d *delivery, due time.Time) {
	s.mu.Lock()
	if s.live == d.of {
		i := len(s.held)
		for i > 0 && s.held[i-1].due.After(due) {
			i--
		}
		s.held = slices.Insert(s.held, i, retry{d, due})
	}
	s.mu.Unlock()
	s.wake()
}

// keep has d delivered again, from memory while no limit is near. Else the next Receive gives
// the whole session back. Not before: while the consumer drains, its running handlers are still
// to be acknowledged.
func (s *Source) keep(d *delivery) {
	s.mu.Lock()
	if near := time.Now().Add(s.room).After(d.deadline()); !near {
		s.mu.Unlock()
		s.redeliver(d, time.Now())
		return
	}
	if s.live == d.of {
		s.again = d.of
	}
	s.mu.Unlock()
	s.wake()
}

// fail ends everything for a reason that waiting cannot mend; Receive returns it.
func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fatal == nil && !s.closed {
		s.fatal = err
		close(s.ending)
	}
}

// Close ends the session, in which the server has what was settled last, and every goroutine.
// When ctx ends first it returns an error, and what it did not finish is cut off;
// unacknowledged messages come again in any case.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closed = true
	if s.fatal == nil {
		close(s.ending)
	}
	started := s.started
	s.mu.Unlock()
	defer s.conns.cut(true)
	defer s.copies.close(ctx)
	if !started {
		return nil
	}
	s.cancel()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		s.conns.cut(true)
		<-s.done
		return fmt.Errorf("rabbitmq: close %s: the server did not answer in time, so the last acknowledgements may be missing and their messages come again: %w", s.scope, context.Cause(ctx))
	}
}
