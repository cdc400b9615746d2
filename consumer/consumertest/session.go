package consumertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/consumer"
)

const (
	scope        = "test"
	defaultHold  = 5 * time.Second
	maxUnsettled = 1024
	afterFault   = time.Second    // if a word could fail for ever at one instant, virtual time would stand still
	replayed     = 24 * time.Hour // for how long Redeliver is reckoned with
)

var policy = consumer.Policy{
	MaxAttempts: 5,
	Backoff:     []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
}

// Plan implements consumer.Source.
func (b *Broker) Plan(p consumer.Policy) (consumer.Plan, error) {
	given := p
	p, err := p.Complete(policy)
	if err != nil {
		return consumer.Plan{}, fmt.Errorf("consumertest: plan: %w", err)
	}
	if b.Deadline < 0 || b.HandlerLimit < 0 || b.MaxUnsettled < 0 {
		return consumer.Plan{}, fmt.Errorf("consumertest: plan: Broker.Deadline %v, HandlerLimit %v and MaxUnsettled %d must not be negative; leave them zero for the defaults",
			b.Deadline, b.HandlerLimit, b.MaxUnsettled)
	}
	hold := b.Hold
	if hold == 0 {
		hold = defaultHold
	}
	tag := func(declared bool) string {
		if declared {
			return "declared"
		}
		return "assumed"
	}
	tries := time.Duration(p.MaxAttempts) * p.HandlerTimeout
	return consumer.Plan{
		Policy: p, Scope: scope, Hold: hold, HandlerLimit: b.HandlerLimit,
		Window: replayed + tries + p.Waits(),
		Why: fmt.Sprintf("Redeliver within %v (assumed) + %d attempts x HandlerTimeout %v = %v (%s) + backoff %v (%s)", replayed,
			p.MaxAttempts, p.HandlerTimeout, tries, tag(given.MaxAttempts > 0 || given.HandlerTimeout > 0), p.Waits(), tag(len(given.Backoff) > 0)),
	}, nil
}

// member is one consumer of a Broker. It has a session from a Receive to its loss or Close.
type member struct {
	b   *Broker
	now *session // guarded by queue.mu
}

// session is what deliveries are lost with. Guarded by queue.mu.
type session struct {
	lost      chan struct{}
	over      bool
	unsettled int
}

func (s *session) end() {
	if !s.over {
		s.over = true
		close(s.lost)
	}
}

func (m *member) Plan(p consumer.Policy) (consumer.Plan, error) { return m.b.Plan(p) }

func (m *member) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("consumertest: Receive of %d deliveries; ask for at least one", max)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, next, changed := m.take(max)
		if len(ds) > 0 {
			return ds, nil
		}
		if err := wait(ctx, next, changed); err != nil {
			return nil, err
		}
	}
}

// wait returns at next, if it is a time, and when changed is closed.
func wait(ctx context.Context, next time.Time, changed <-chan struct{}) error {
	var due <-chan time.Time
	if !next.IsZero() {
		t := time.NewTimer(time.Until(next))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-due:
	case <-changed:
	}
	return nil
}

// take hands out what there is; otherwise it tells what to wait for.
func (m *member) take(max int) (ds []consumer.Delivery, next time.Time, changed <-chan struct{}) {
	q, now := m.b.q, time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := m.session(now)
	limit := m.b.MaxUnsettled
	if limit == 0 {
		limit = maxUnsettled
	}
	its, next := q.pull(s, min(max, limit-s.unsettled), now)
	for _, it := range its {
		ds = append(ds, m.deliver(it, s, now))
	}
	if m.b.Deadline > 0 {
		if first := q.deadline(s); !first.IsZero() && (next.IsZero() || first.Before(next)) {
			next = first
		}
	}
	return ds, next, q.changed
}

// session is the live one of m: a new one where a delivery has outlasted its deadline.
func (m *member) session(now time.Time) *session {
	if m.b.Deadline > 0 && m.now != nil {
		if first := m.b.q.deadline(m.now); !first.IsZero() && !first.After(now) {
			m.b.q.loseLocked(m.now)
		}
	}
	if m.now == nil || m.now.over {
		m.now = &session{lost: make(chan struct{})}
	}
	return m.now
}

func (m *member) deliver(it *item, s *session, now time.Time) consumer.Delivery {
	msg := clone(it.msg)
	msg.Scope = scope
	msg.DeadCause = msg.Headers[consumer.CauseHeader]
	d := consumer.Delivery{Message: &msg, Lane: msg.Key, Lost: s.lost, Settler: &settler{b: m.b, it: it, to: s, msg: &msg}}
	if m.b.Deadline > 0 {
		it.deadline = now.Add(m.b.Deadline)
		d.Deadline = it.deadline
	}
	return d
}

func (m *member) Close(context.Context) error {
	m.b.q.mu.Lock()
	defer m.b.q.mu.Unlock()
	if m.now != nil {
		m.b.q.loseLocked(m.now)
	}
	return nil
}

// settler is the Settler of one delivery.
type settler struct {
	b   *Broker
	it  *item
	to  *session
	msg *consumer.Message // as delivered: the Consumer names it

	said bool // guarded by queue.mu
}

var errSettled = errors.New("this delivery has been settled before")

func (s *settler) Ack(context.Context) error {
	q := s.b.q
	return s.say("Ack", false, func() { q.done(s.it) })
}

func (s *settler) GiveBack(context.Context) error {
	q := s.b.q
	return s.say("GiveBack", false, func() { q.again(s.it) })
}

func (s *settler) Retry(_ context.Context, d time.Duration, _ error) error {
	q := s.b.q
	return s.say("Retry", true, func() { q.postpone(s.it, time.Now().Add(d)) })
}

// say is the one final word, unless Broker.Fail spoils it: then it can be said again, or the
// message comes again by itself.
func (s *settler) say(word string, repeatable bool, do func()) error {
	q := s.b.q
	q.mu.Lock()
	if s.said {
		q.mu.Unlock()
		return fmt.Errorf("consumertest: %s of message %q: %w", word, s.it.msg.ID, errSettled)
	}
	s.said = true
	q.mu.Unlock()

	err := s.fail(word)

	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case s.to.over: // the session has let go of it already
		return nil
	case err != nil && repeatable:
		s.said = false
		return err
	}
	q.back(s.it)
	if err != nil {
		q.postpone(s.it, time.Now().Add(afterFault))
		return err
	}
	do()
	return nil
}

func (s *settler) fail(word string) error {
	if s.b.Fail == nil {
		return nil
	}
	m := clone(s.it.msg)
	if err := s.b.Fail(word, &m); err != nil {
		return fmt.Errorf("consumertest: %s of message %q: %w", word, s.it.msg.ID, err)
	}
	return nil
}

// DeadLetter publishes the copy whether or not the session is lost: the Consumer writes its
// verdict on the strength of it.
func (s *settler) DeadLetter(_ context.Context, redrive int, cause error) error {
	if err := s.fail("DeadLetter"); err != nil {
		return err
	}
	named := s.it.msg
	named.ID, named.Scope = s.msg.ID, scope
	m := clone(s.it.msg)
	m.Scope, m.Redrive = scope, redrive
	m.Headers = named.DeadLetterHeaders(redrive, cause)
	m.DeadCause = m.Headers[consumer.CauseHeader]
	q := s.b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dead = append(q.dead, m)
	return nil
}
