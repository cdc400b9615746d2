package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Handler does the work of one message. nil: done. A plain error: again, by policy.
// [Permanent] and [RetryAfter] steer. A panic counts as a plain error.
// ctx ends at HandlerTimeout, when the claim is lost (cause dedup.ErrLeaseLost) and when
// the drain is over (cause ErrDrained).
type Handler func(ctx context.Context, m *Message) error

// Options tune a Consumer; nil is the default.
type Options struct {
	Policy
	// MessageID names a message: the first rule with an answer wins. A message without a
	// name is dead-lettered. Default: HeaderID("message-id"), HeaderID("idempotency-key"), CloudEventsID, BrokerID.
	MessageID []IDRule
	// AllowNoID runs messages without a name unprotected, counted, instead. Their attempts are counted in memory and so take
	// place within one delivery: where the broker has a limit for that (Plan.HandlerLimit), delays are shortened to fit, and a
	// message that has failed and has no time left for another attempt is dead-lettered.
	AllowNoID bool
	// Retention must not be below the source's retry window. Default: the window and a margin, see Plan.
	Retention time.Duration
	// FormerScopes are the Plan.Scope that this consumer's group or queue had under other names, as in "kafka/billing". A
	// redrive is for the group that gave the message up, and every other group of its topic acknowledges it without
	// running it; these are this consumer's own, too.
	FormerScopes []string
	// DrainTimeout is what running handlers get once Run's ctx has ended; then their contexts
	// end, too. Default: 25s.
	DrainTimeout time.Duration
	// Middleware wraps the handler, the first outermost: tracing, logging, metrics of your own.
	Middleware []func(Handler) Handler
}

// Consumer ties one source to one handler.
type Consumer struct {
	source  Source
	guard   *dedup.Guard
	handler Handler
	opts    Options
	begun   atomic.Bool

	mu    sync.Mutex
	plan  Plan
	stats Stats
}

// New checks every setting against every other and does no I/O. Its errors name both
// settings, what would go wrong, and the fix:
//
//	consumer: Retention 1h0m0s is below the retry window 24h6m16s of kafka/billing (outage 24h0m0s (assumed) + …):
//	a late redelivery would run again; leave Options.Retention unset or raise it to 24h52m0s
//
//	consumer: HandlerTimeout 20m0s is above the handler limit 15m0s of rocketmq/billing: a second copy would start
//	beside the first; lower Policy.HandlerTimeout or raise the source's limit
func New(s Source, g *dedup.Guard, h Handler, o *Options) (*Consumer, error) {
	switch {
	case s == nil:
		return nil, errors.New("consumer: New: source is nil; pass one, such as kafka.NewSource(…)")
	case g == nil:
		return nil, errors.New("consumer: New: guard is nil; pass dedup.New(app, store, nil)")
	case h == nil:
		return nil, errors.New("consumer: New: handler is nil")
	}
	c := &Consumer{source: s, guard: g, handler: h}
	if o != nil {
		c.opts = *o
	}
	if err := c.opts.complete(); err != nil {
		return nil, err
	}
	for _, m := range slices.Backward(c.opts.Middleware) {
		c.handler = m(c.handler)
	}
	if c.handler == nil {
		return nil, errors.New("consumer: Options.Middleware returned a nil Handler")
	}
	return c, c.replan()
}

func (o *Options) complete() error {
	switch {
	case o.Retention < 0:
		return fmt.Errorf("consumer: Options.Retention %v is negative; leave it unset to follow the retry window", o.Retention)
	case o.Retention > 2*longestWindow:
		return fmt.Errorf("consumer: Options.Retention %v is above 100 years, more than a store can count; leave it unset to follow the retry window", o.Retention)
	case o.DrainTimeout < 0:
		return fmt.Errorf("consumer: Options.DrainTimeout %v is negative; leave it unset for 25s", o.DrainTimeout)
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 25 * time.Second
	}
	for i, r := range o.MessageID {
		if r.Of == nil || r.Name == "" {
			return fmt.Errorf("consumer: Options.MessageID[%d] (%q) lacks a Name or an Of function", i, r.Name)
		}
	}
	if o.MessageID = slices.Clone(o.MessageID); len(o.MessageID) == 0 {
		o.MessageID = DefaultRules()
	}
	o.FormerScopes, o.Middleware = slices.Clone(o.FormerScopes), slices.Clone(o.Middleware)
	for _, m := range o.Middleware {
		if m == nil {
			return errors.New("consumer: Options.Middleware has a nil entry; remove it")
		}
	}
	return nil
}

// replan strikes the bargain with the source, anew when the source has learnt the broker's settings.
func (c *Consumer) replan() error {
	p, err := c.source.Plan(c.opts.Policy)
	if err != nil {
		return err
	}
	if p.Scope == "" {
		return errors.New("consumer: the source's Plan has no Scope: messages of different groups would share records")
	}
	lease := c.guard.Options().Lease
	if err := p.fitsRecord(lease); err != nil {
		return err
	}
	crashes := time.Duration(p.MaxCrashes+1) * (lease + p.HandlerTimeout)
	p.addRetryAfter()
	p.Window += crashes
	p.Why = fmt.Sprintf("%s + %d crashes x (lease %v + HandlerTimeout %v)", p.Why, p.MaxCrashes+1, lease, p.HandlerTimeout)
	enough := (p.Window + p.Window/32 + time.Minute).Truncate(time.Minute)
	switch {
	case c.opts.Retention == 0:
		p.Retention = max(enough, lease)
	case c.opts.Retention < p.Window:
		return fmt.Errorf("consumer: Retention %v is below the retry window %v of %s (%s): a late redelivery would run again; leave Options.Retention unset or raise it to %v",
			c.opts.Retention, p.Window, p.Scope, p.Why, enough)
	case c.opts.Retention < lease:
		return fmt.Errorf("consumer: Retention %v is below the Guard's Lease %v: the record of a running message could expire; raise Options.Retention", c.opts.Retention, lease)
	default:
		p.Retention = c.opts.Retention
	}
	if err := p.fitsLimit(); err != nil {
		return err
	}
	c.mu.Lock()
	c.plan = p
	c.mu.Unlock()
	return nil
}

// fitsRecord refuses a window that no record could be kept for, before crashes are added to it.
func (p *Plan) fitsRecord(lease time.Duration) error {
	if err := p.check(); err != nil { // of a source that does without Complete
		return err
	}
	switch {
	case p.Window < 0 || p.Window > longestWindow:
		return fmt.Errorf("consumer: the retry window %v of %s (%s) is negative or above 50 years: no record could be kept for so long; lower what makes it long", p.Window, p.Scope, p.Why)
	case lease > year:
		return fmt.Errorf("consumer: the Guard's Lease %v is above a year: nobody would ever take over what a crash left behind; lower dedup.Options.Lease", lease)
	case time.Duration(p.MaxCrashes+1) > longestTries/(lease+p.HandlerTimeout):
		return fmt.Errorf("consumer: Policy.MaxCrashes %d with HandlerTimeout %v and the Guard's Lease %v could try one message for more than 10 years, and its record would be kept for so long; lower one of them",
			p.MaxCrashes, p.HandlerTimeout, lease)
	}
	return nil
}

// addRetryAfter makes room for handlers that ask for the longest delay each time, where it is waited for in memory. Up to
// a minute the margin has.
func (p *Plan) addRetryAfter() {
	longest := p.longestBackoff()
	if more := time.Duration(p.MaxAttempts-1)*longest - p.Waits(); p.Hold < 0 && more > time.Minute {
		p.Window += more
		p.Why = fmt.Sprintf("%s + RetryAfter of %v instead of shorter backoff = %v (declared)", p.Why, longest, more)
	}
}

// longestWindow has room for its terms, the longest of which is 10 years, and keeps what is added to it from overflowing.
const longestWindow = 50 * year

// fitsLimit refuses a policy that the broker's limit leaves no time for.
func (p *Plan) fitsLimit() error {
	if p.HandlerLimit <= 0 {
		return nil
	}
	if p.HandlerTimeout > p.HandlerLimit {
		return fmt.Errorf("consumer: HandlerTimeout %v is above the handler limit %v of %s: a second copy would start beside the first; lower Policy.HandlerTimeout or raise the source's limit",
			p.HandlerTimeout, p.HandlerLimit, p.Scope)
	}
	if p.HandlerTimeout > p.HandlerLimit-headroom {
		return fmt.Errorf("consumer: HandlerTimeout %v is less than %v below the handler limit %v of %s: no message could be claimed, run and settled in time; lower Policy.HandlerTimeout or raise the source's limit",
			p.HandlerTimeout, headroom, p.HandlerLimit, p.Scope)
	}
	if longest := p.longestBackoff(); p.Hold < 0 && longest > p.HandlerLimit-headroom-p.HandlerTimeout {
		return fmt.Errorf("consumer: Backoff %v and HandlerTimeout %v do not fit into the handler limit %v of %s, which keeps its messages in memory between attempts: the broker would take them back; lower Policy.Backoff or raise the source's limit",
			longest, p.HandlerTimeout, p.HandlerLimit, p.Scope)
	}
	return nil
}

// Plan is what New worked out, retention included; Run logs it.
func (c *Consumer) Plan() Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plan
}

// Stats is a snapshot for health pages and tests; metrics come through dedup.Options.Observe.
func (c *Consumer) Stats() Stats {
	c.mu.Lock()
	s := c.stats
	c.mu.Unlock()
	s.Receiving = s.Receiving && connected(c.source)
	return s
}

// Stats counts since Run began. Received = Done + Duplicates (of failed work too) + Retried + DeadLettered
// (mismatches too) + GivenBack (lost sessions too) + Running + Waiting.
type Stats struct {
	Received     int64
	Done         int64 // handled now, remembered and acknowledged
	Duplicates   int64 // acknowledged without running
	Retried      int64 // handed back to the broker, to come again later
	DeadLettered int64
	GivenBack    int64 // untouched or undecided; the broker brings it again
	Running      int64 // in a handler
	Waiting      int64 // held in any other way
	Zombies      int64 // handlers that do not end although their context has; any is a sign of ill health

	Receiving    bool // false while disconnected, before the store has answered, and while draining
	LastReceived time.Time
}
