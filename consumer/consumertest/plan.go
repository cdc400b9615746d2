package consumertest

import (
	"fmt"
	"time"

	"github.com/idemq/idemq/consumer"
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
