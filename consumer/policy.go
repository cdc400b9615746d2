package consumer

import (
	"errors"
	"fmt"
	"time"
)

// Policy is how messages are tried. Zero fields take the source's defaults, which suit its
// broker: seconds in process for Kafka, a ladder up to half an hour for RabbitMQ, RocketMQ's levels.
type Policy struct {
	MaxAttempts    int             // failed attempts before dead-lettering. Default: Kafka 5, RabbitMQ 6, RocketMQ 16.
	MaxCrashes     int             // crashes before dead-lettering, the first one, in company, not counted. Default: 3.
	Backoff        []time.Duration // before attempt 2, 3, …; the last repeats. Default: by source.
	HandlerTimeout time.Duration   // of one attempt. Default: 1m.
	Concurrency    int             // handlers at once. Default: 16.
}

// Complete fills p's zero fields from d and refuses what cannot be meant. For sources.
func (p Policy) Complete(d Policy) (Policy, error) {
	if p.MaxAttempts == 0 {
		p.MaxAttempts = d.MaxAttempts
	}
	if p.MaxCrashes == 0 {
		p.MaxCrashes = max(d.MaxCrashes, 3)
	}
	if len(p.Backoff) == 0 {
		p.Backoff = d.Backoff
	}
	if p.HandlerTimeout == 0 {
		p.HandlerTimeout = d.HandlerTimeout
	}
	if p.HandlerTimeout == 0 {
		p.HandlerTimeout = time.Minute
	}
	if p.Concurrency == 0 {
		p.Concurrency = max(d.Concurrency, 16)
	}
	for _, b := range p.Backoff {
		if b < 0 {
			return p, fmt.Errorf("consumer: Policy.Backoff has a negative delay %v; every one must be zero or more", b)
		}
	}
	switch {
	case p.MaxAttempts < 1:
		return p, fmt.Errorf("consumer: Policy.MaxAttempts %d is below 1: nothing would ever run; leave it zero for the source's default", p.MaxAttempts)
	case p.MaxCrashes < 1:
		return p, fmt.Errorf("consumer: Policy.MaxCrashes %d is below 1: one crash would dead-letter everything in progress; leave it zero for 3", p.MaxCrashes)
	case p.HandlerTimeout < 0:
		return p, fmt.Errorf("consumer: Policy.HandlerTimeout %v is negative; leave it zero for 1m", p.HandlerTimeout)
	case p.Concurrency < 0:
		return p, fmt.Errorf("consumer: Policy.Concurrency %d is negative; leave it zero for 16", p.Concurrency)
	case len(p.Backoff) == 0:
		return p, errors.New("consumer: Policy.Backoff is empty and the source has no default")
	}
	return p, nil
}

// backoff is the delay after the given failed attempt, 1 the first.
func (p *Policy) backoff(attempt int) time.Duration {
	return p.Backoff[min(attempt, len(p.Backoff))-1]
}

// Waits is the sum of all delays between the attempts at one message. For sources, whose retry
// window it is part of.
func (p Policy) Waits() (sum time.Duration) {
	for a := 1; a < p.MaxAttempts; a++ {
		sum += p.backoff(a)
	}
	return sum
}
