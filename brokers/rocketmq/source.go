package rocketmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/consumer"
)

// Source consumes topics as a member of a consumer group.
type Source struct {
	cluster Cluster
	group   string
	topics  []string
	opt     SourceOptions
	tags    map[string]bool // nil: all
	scope   string
	log     *slog.Logger

	wireGroup, retryTopic, bounceTopic, deadTopic string // as brokers know them

	id      string // of the member, unlike any other's
	version int64  // of the subscriptions
	client  *client
	copies  *copies

	signal   chan struct{} // capacity 1: Receive may find something
	moved    chan struct{} // capacity 1: members or connections have changed
	ending   chan struct{} // closed by Close, and when Receive has nothing to wait for any more
	cancel   context.CancelFunc
	loops    sync.WaitGroup
	fetchers sync.WaitGroup

	connected atomic.Bool
	seen      map[string]bool  // topics looked at before, of balance alone
	fresh     map[queueOf]bool // their queues at that first look, as long as no position is known; of balance alone

	mu      sync.Mutex
	started bool
	closed  bool
	fatal   error
	queues  []*queue
	turn    int     // whose turn it is in queues
	again   []retry // by due
	read    settings
	asked   map[string]bool   // brokers whose settings were read
	breaks  map[string]breaks // by the broker's address
	quiet   limiter
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

// Connected reports whether all brokers of the topics that exist know this process as a member
// and it has its share of the queues.
func (s *Source) Connected() bool { return s.connected.Load() }

// NewSource checks its settings against each other and does no I/O: the first Receive joins the group.
func NewSource(c Cluster, group string, topics []string, o *SourceOptions) (*Source, error) {
	opt := o.fill(group)
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := opt.check(c, group, topics); err != nil {
		return nil, err
	}
	s := &Source{
		cluster: c, group: group, topics: slices.Clone(topics), opt: opt,
		tags: tagSet(opt.Tags), scope: scopeOf(c, group), log: opt.Logger.With("group", group),
		wireGroup: c.wire(group), retryTopic: c.wire(group + retrySuffix), bounceTopic: bounceMark + c.wire(group),
		deadTopic: c.wire(opt.DeadLetterTopic),
		id:        memberID(), version: time.Now().UnixNano(),
		signal: make(chan struct{}, 1), moved: make(chan struct{}, 1), ending: make(chan struct{}),
		seen: make(map[string]bool), fresh: make(map[queueOf]bool), asked: make(map[string]bool), breaks: make(map[string]breaks),
	}
	s.cluster.NameServers = slices.Clone(c.NameServers)
	s.client = newClient(s.cluster, s.told)
	s.copies = newCopies(s.client)
	return s, nil
}

// memberID is unlike any other's, also where host and process are numbered alike, as in
// containers: members of one ID would read the same queues, and others nobody.
func memberID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%s@idemq#%d#%s", strings.ReplaceAll(host, "@", "_"), os.Getpid(), strings.ToLower(rand.Text()[:12]))
}

// told takes what brokers say unasked.
func (s *Source) told(_ *conn, c *command) {
	if c.Code == tellMembersMoved {
		s.rebalance()
	}
}

func (s *Source) errorf(format string, a ...any) error {
	return fmt.Errorf("rocketmq: group "+s.group+": "+format, a...)
}

// Receive waits for at least one delivery and returns at most max, a queue after the other. It
// returns an error only when waiting cannot help: refused rights, or TLS that does not fit.
func (s *Source) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("rocketmq: Receive of %d deliveries; ask for at least one", max)
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
	s.loops.Go(func() { s.run(ctx) })
	s.loops.Go(func() { s.commits(ctx) })
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
	now := time.Now()
	var due []*record
	for len(s.again) > 0 && len(due) < limit && !s.again[0].due.After(now) {
		due = append(due, s.again[0].record)
		s.again = s.again[1:]
	}
	wait = -1
	if len(s.again) > 0 {
		wait = s.again[0].due.Sub(now)
	}
	queues, turn := s.queues, s.turn
	s.turn++
	s.mu.Unlock()

	for _, r := range due {
		if r.queue.live() {
			ds = append(ds, (&record{queue: r.queue, seq: r.seq, raw: r.raw}).delivery(r.raw.GetProperties()))
		}
	}
	for i := range queues {
		if len(ds) >= limit {
			break
		}
		ds = queues[(i+turn)%len(queues)].take(ds, limit-len(ds))
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
	if slices.Contains(s.queues, r.queue) {
		i := len(s.again)
		for i > 0 && s.again[i-1].due.After(due) {
			i--
		}
		s.again = slices.Insert(s.again, i, retry{r, due})
	}
	s.mu.Unlock()
	s.wake()
}

// fail ends the membership for a reason that waiting cannot mend; Receive returns it.
func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fatal == nil && !s.closed {
		s.fatal = err
		close(s.ending)
	}
}

// Close commits what was acknowledged, leaves the group and ends every goroutine. When ctx ends
// first it returns an error, and what it did not finish is cut off; unacknowledged messages come
// again in any case.
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
	if !started {
		s.client.close()
		return nil
	}
	s.connected.Store(false)
	s.cancel()
	cut := context.AfterFunc(ctx, s.client.close) // ends what takes no context
	s.loops.Wait()
	var errs []error
	for _, q := range s.assigned() {
		if err := q.commit(ctx, false); err != nil {
			errs = append(errs, err)
		}
		s.forget(q)
	}
	s.fetchers.Wait()
	s.leave(ctx)
	cut()
	s.client.close()
	if len(errs) > 0 {
		return fmt.Errorf("rocketmq: close %s: the last acknowledgements may be missing, and their messages come again: %w", s.scope, errors.Join(errs...))
	}
	return nil
}

// leave tells the brokers, so that others get the queues at once. One that does not hear it finds
// out by the broken connection.
func (s *Source) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.client.mu.Lock()
	cns := make([]*conn, 0, len(s.client.conns))
	for addr, cn := range s.client.conns {
		if cn.alive() && !slices.Contains(s.cluster.NameServers, addr) {
			cns = append(cns, cn)
		}
	}
	s.client.mu.Unlock()
	for _, cn := range cns {
		_ = cn.unregister(ctx, s.id, s.wireGroup)
	}
}
