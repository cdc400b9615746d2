package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
)

// source is a broker in the test's hands: it takes note of every word on every delivery, and
// whether the consumer kept the port's rules, where consumertest.Broker only behaves.
type source struct {
	hold     time.Duration                                // of the Plan
	deadline time.Duration                                // of each delivery; zero: none
	policy   consumer.Policy                              // defaults
	fail     func(word string, m *consumer.Message) error // before each word; nil: nothing fails
	receive  func() error                                 // before each Receive; nil: nothing fails
	closing  func(ctx context.Context) error              // Close's answer; nil: closed at once

	connected atomic.Bool

	mu      sync.Mutex
	changed chan struct{}
	n       int // published so far
	queue   []*parcel
	out     []*parcel // delivered, not settled, in order
	later   int       // told to Retry, not yet due
	lost    chan struct{}
	words   []word
	broken  []string // rules of the port that were broken
	closed  bool
}

// parcel is one published message.
type parcel struct {
	msg consumer.Message
	n   int // its place
}

// word is what a consumer said of a delivery.
type word struct {
	what    string
	id      string // as published
	body    string
	after   time.Duration // of Retry
	cause   error
	redrive int
	late    bool // past the delivery's deadline
	lost    bool // on a lost session
	failed  bool
}

func newSource() *source {
	s := &source{hold: -1, changed: make(chan struct{}), lost: make(chan struct{})}
	s.policy = consumer.Policy{MaxAttempts: 5, Backoff: []time.Duration{time.Second}}
	s.connected.Store(true)
	return s
}

func (s *source) publish(ms ...consumer.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range ms {
		s.n++
		s.queue = append(s.queue, &parcel{m, s.n})
	}
	s.wake()
}

func (s *source) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// lose ends the session: what was not settled comes again, first.
func (s *source) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.lost)
	s.lost = make(chan struct{})
	s.queue = append(s.out, s.queue...)
	s.out = nil
	s.wake()
}

func (s *source) Plan(p consumer.Policy) (consumer.Plan, error) {
	p, err := p.Complete(s.policy)
	if err != nil {
		return consumer.Plan{}, err
	}
	return consumer.Plan{Policy: p, Scope: "test", Hold: s.hold, Window: 23 * time.Hour, Why: "23h (assumed)"}, nil
}

func (s *source) Connected() bool { return s.connected.Load() }

func (s *source) Receive(ctx context.Context, most int) ([]consumer.Delivery, error) {
	for {
		if s.receive != nil {
			if err := s.receive(); err != nil {
				return nil, err
			}
		}
		s.mu.Lock()
		ds, changed := s.take(most), s.changed
		s.mu.Unlock()
		if len(ds) > 0 {
			return ds, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

func (s *source) take(most int) (ds []consumer.Delivery) {
	for len(s.queue) > 0 && len(ds) < most {
		p := s.queue[0]
		s.queue = s.queue[1:]
		s.out = append(s.out, p)
		m := p.msg
		h := &hand{s: s, p: p, session: s.lost, msg: &m}
		d := consumer.Delivery{Message: &m, Lane: m.Key, Lost: s.lost, Settler: h}
		if s.deadline > 0 {
			d.Deadline = time.Now().Add(s.deadline)
			h.deadline = d.Deadline
		}
		ds = append(ds, d)
	}
	return ds
}

func (s *source) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.broken = append(s.broken, "closed twice")
	}
	s.closed = true
	s.mu.Unlock()
	if s.closing == nil {
		return nil
	}
	return s.closing(ctx)
}

// said are the words w that arrived, in order, as the messages' published IDs.
func (s *source) said(w string) (ids []string) {
	for _, x := range s.all() {
		if x.what == w && !x.failed && !x.lost {
			ids = append(ids, x.id)
		}
	}
	return ids
}

func (s *source) all() []word {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.words)
}

// left is how many messages the broker still has, delivered ones included.
func (s *source) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) + len(s.out) + s.later
}

// kept fails the test if the consumer broke a rule of the port.
func (s *source) kept(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(tb, s.broken)
}

// hand is the Settler of one delivery.
type hand struct {
	s        *source
	p        *parcel
	session  chan struct{}
	deadline time.Time
	msg      *consumer.Message
	final    bool // guarded by source.mu
}

func (h *hand) Ack(context.Context) error {
	return h.say(word{what: "ack"}, true, func() {})
}

func (h *hand) GiveBack(context.Context) error {
	if h.s.hold < 0 && h.s.deadline == 0 { // it keeps positions: the message comes with the next session, in its place
		return h.say(word{what: "give back"}, true, func() {
			h.s.out = append(h.s.out, h.p)
			slices.SortFunc(h.s.out, func(a, b *parcel) int { return a.n - b.n })
		})
	}
	return h.say(word{what: "give back"}, true, h.again)
}

func (h *hand) Retry(_ context.Context, d time.Duration, cause error) error {
	if h.s.hold < 0 {
		h.rule("Retry of %q at a broker that cannot postpone", h.p.msg.ID)
	}
	return h.say(word{what: "retry", after: d, cause: cause}, false, func() {
		time.AfterFunc(d, func() {
			h.s.mu.Lock()
			defer h.s.mu.Unlock()
			h.s.later--
			h.again()
		})
		h.s.later++
	})
}

func (h *hand) DeadLetter(_ context.Context, redrive int, cause error) error {
	return h.say(word{what: "dead letter", cause: cause, redrive: redrive}, false, nil)
}

func (h *hand) rule(format string, args ...any) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.broken = append(h.s.broken, fmt.Sprintf(format, args...))
}

// again queues the message. With source.mu.
func (h *hand) again() {
	h.s.queue = append(h.s.queue, h.p)
	h.s.wake()
}

var errTwice = errors.New("this delivery was settled before")

// say takes note of w; do, with source.mu, settles the delivery. A word that is final by its
// failure alone brings the message again.
func (h *hand) say(w word, finalOnError bool, do func()) error {
	var err error
	if h.s.fail != nil {
		err = h.s.fail(w.what, h.msg)
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	w.id, w.body, w.failed = h.p.msg.ID, string(h.msg.Body), err != nil
	w.late = !h.deadline.IsZero() && time.Now().After(h.deadline)
	select {
	case <-h.session:
		w.lost = true
	default:
	}
	if h.final && do != nil {
		h.s.broken = append(h.s.broken, fmt.Sprintf("%s of %q after its last word", w.what, w.id))
		return errTwice
	}
	h.s.words = append(h.s.words, w)
	if do == nil { // a dead letter settles nothing
		return err
	}
	h.final = err == nil || finalOnError
	switch {
	case w.lost:
		return nil
	case err != nil && w.what == "give back" && h.s.hold < 0: // comes with the next session
	case err != nil && finalOnError:
		h.settled()
		h.again()
	case err == nil:
		h.settled()
		do()
	}
	return err
}

func (h *hand) settled() {
	if i := slices.Index(h.s.out, h.p); i >= 0 {
		h.s.out = slices.Delete(h.s.out, i, i+1)
	}
}

// elsewhere has id in progress in another process until the test ends.
func elsewhere(t *testing.T, s dedup.Store, id string) *dedup.Claim {
	t.Helper()
	c, err := newGuard(t, s).Claim(t.Context(), work(message(id, "")))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, c.State)
	t.Cleanup(c.Abandon)
	return c
}
