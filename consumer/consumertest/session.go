package consumertest

import (
	"context"
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
