package rabbitmq

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemq/idemq/consumer"
)

// defaults suit RabbitMQ, which can keep a message for later without holding up others: few
// attempts over three quarters of an hour.
var defaults = consumer.Policy{
	MaxAttempts: 6,
	Backoff:     []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute},
}

// inOrder suits an exclusive source, whose whole queue waits with the message that is tried again.
var inOrder = consumer.Policy{
	MaxAttempts: 6,
	Backoff:     []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second},
}

func (o *SourceOptions) defaults() consumer.Policy {
	if o.Exclusive {
		return inOrder
	}
	return defaults
}

const (
	// holdFor is for how long a message that another process handles waits in memory, before a
	// wait queue takes it. Most are over by then.
	holdFor = 5 * time.Second
	// reconnecting is how long a broken connection may go unnoticed, and then be retried.
	reconnecting = 5 * time.Minute
	// handOn is when a server tries again to hand on a message that its target did not take.
	handOn = 3 * time.Minute
	// otherLease is for how long a message waits at most that another process, which may have
	// vanished, has in hand: the lease by default. It may wait so once more than it is tried.
	otherLease = 30 * time.Second
)

// Plan tells how long after its handling a message can still come back. Most of what it
// depends on no client can read, so it is declared or assumed.
func (s *Source) Plan(p consumer.Policy) (consumer.Plan, error) {
	p, err := p.Complete(s.opt.defaults())
	if err != nil {
		return consumer.Plan{}, fmt.Errorf("rabbitmq: plan of %s: %w", s.scope, err)
	}
	if err := s.agree(p); err != nil {
		return consumer.Plan{}, err
	}
	terms := s.terms(p)
	var sum time.Duration
	texts := make([]string, len(terms))
	for i, t := range terms {
		sum += t.d
		texts[i] = fmt.Sprintf("%s %s (%s)", t.text, short(t.d), t.tag)
	}
	plan := consumer.Plan{
		Policy:       p,
		Scope:        s.scope,
		Window:       sum,
		HandlerLimit: s.opt.usable(),
		Hold:         holdFor,
		Why:          strings.Join(texts, " + "),
	}
	if s.opt.Exclusive {
		plan.Hold = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started { // from the first Receive on they stand
		s.delays, s.prefetch, s.room = s.opt.ladder(p), s.opt.prefetch(p), p.Room()
	}
	return plan, nil
}

// agree refuses a policy that contradicts the options.
func (s *Source) agree(p consumer.Policy) error {
	if o := &s.opt; o.Prefetch > 0 && o.Prefetch < p.Concurrency && !o.Exclusive {
		return fmt.Errorf("rabbitmq: SourceOptions.Prefetch %d is below Policy.Concurrency %d: handlers would stand idle for want of deliveries; leave Prefetch zero for %d or lower Concurrency",
			o.Prefetch, p.Concurrency, 2*p.Concurrency)
	}
	if l := s.opt.ladder(p); len(l) > 0 {
		longest := l[len(l)-1]
		if longest > maxDelay {
			return fmt.Errorf("rabbitmq: Policy.Backoff has %v, for which there is a wait queue; the server keeps no message for longer than %v; shorten it", longest, maxDelay)
		}
		if time.Duration(p.MaxAttempts) > maxOutage/longest {
			return fmt.Errorf("rabbitmq: Policy.MaxAttempts %d with wait queues of up to %v could try one message for more than 10 years, and its record would be kept for so long; lower MaxAttempts or shorten the longest of SourceOptions.Delays", p.MaxAttempts, longest)
		}
	}
	if limit := s.opt.usable(); p.HandlerTimeout > limit {
		return fmt.Errorf("rabbitmq: Policy.HandlerTimeout %v is above what SourceOptions.HandlerLimit %v leaves for one handler, %v: no handler would ever start, or the server would take the message away from a running one; lower HandlerTimeout, or raise consumer_timeout in the server's configuration and HandlerLimit with it",
			p.HandlerTimeout, s.opt.HandlerLimit, limit)
	}
	if longest := slices.Max(p.Backoff); s.opt.Exclusive && longest+p.HandlerTimeout > s.opt.usable() {
		return fmt.Errorf("rabbitmq: Policy.Backoff has %v, which together with HandlerTimeout %v is above what SourceOptions.HandlerLimit %v leaves, %v: an exclusive source waits in memory, and the server would take the message away meanwhile; shorten Backoff, or raise consumer_timeout in the server's configuration and HandlerLimit with it",
			longest, p.HandlerTimeout, s.opt.HandlerLimit, s.opt.usable())
	}
	return nil
}

// term is a part of the window.
type term struct {
	text string
	d    time.Duration
	tag  string
}

func (s *Source) terms(p consumer.Policy) []term {
	o := &s.opt
	tries := time.Duration(p.MaxAttempts) * p.HandlerTimeout
	ts := []term{
		{"outage", o.Outage, tag(o.Outage == defaultOutage)},
		{"reconnecting", reconnecting, "assumed"},
		{"consumer_timeout", o.HandlerLimit, tag(o.HandlerLimit == defaultLimit)},
		{fmt.Sprintf("%d attempts x HandlerTimeout %v =", p.MaxAttempts, short(p.HandlerTimeout)), tries, tag(p.MaxAttempts == defaults.MaxAttempts && p.HandlerTimeout == time.Minute)},
	}
	if o.Exclusive {
		return append(ts, term{"backoff", p.Waits(), tag(slices.Equal(p.Backoff, inOrder.Backoff))})
	}
	bounce, _ := rung(o.ladder(p), otherLease)
	return append(ts,
		term{"wait queues", s.waits(p), tag(slices.Equal(p.Backoff, defaults.Backoff) && len(o.Delays) == 0)},
		term{"wait for work in progress elsewhere", bounce, "assumed"},
		term{fmt.Sprintf("%d returns from wait queues x %v =", p.MaxAttempts, short(handOn)), time.Duration(p.MaxAttempts) * handOn, "assumed"})
}

// waits is the sum of the delays as the wait queues keep them, each rounded up to one there is.
func (s *Source) waits(p consumer.Policy) (sum time.Duration) {
	l := s.opt.ladder(p)
	for a := range p.MaxAttempts - 1 {
		d, _ := rung(l, p.Backoff[min(a, len(p.Backoff)-1)])
		sum += d
	}
	return sum
}

// ladder are the delays of the wait queues, none where messages wait in memory.
func (o *SourceOptions) ladder(p consumer.Policy) []time.Duration {
	switch {
	case o.Exclusive:
		return nil
	case len(o.Delays) > 0:
		return ladder(o.Delays)
	}
	return ladder(p.Backoff)
}

func (o *SourceOptions) prefetch(p consumer.Policy) int {
	if o.Prefetch > 0 {
		return o.Prefetch
	}
	return min(2*p.Concurrency, maxPrefetch)
}

// rung is the shortest of l that is not below d, or else the longest, and whether it is long enough.
func rung(l []time.Duration, d time.Duration) (time.Duration, bool) {
	i, _ := slices.BinarySearch(l, d)
	if i == len(l) {
		return l[i-1], false
	}
	return l[i], true
}

// tag says where a term comes from; a value that is the default is taken for one.
func tag(isDefault bool) string {
	if isDefault {
		return "assumed"
	}
	return "declared"
}

// short is d without the zero units that time.Duration prints: 24h instead of 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
