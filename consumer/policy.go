package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Policy is how messages are tried. Zero fields take the source's defaults, which suit its
// broker: seconds in process for Kafka, a ladder up to half an hour for RabbitMQ, RocketMQ's levels.
type Policy struct {
	MaxAttempts    int             // failed attempts before dead-lettering. Default: Kafka 5, RabbitMQ 6, RocketMQ 16.
	MaxCrashes     int             // crashes before dead-lettering, the first one, in company, not counted. Default: 3.
	Backoff        []time.Duration // before attempt 2, 3, …; the last repeats. The longest is what RetryAfter may ask of Kafka. Default: by source.
	HandlerTimeout time.Duration   // of one attempt. Default: 1m.
	Concurrency    int             // handlers at once. Default: 16.
}

// Beyond these a value is a slip, or meant as "no limit", and the sums of a plan would overflow.
const (
	year         = 365 * 24 * time.Hour
	mostTries    = 100_000
	mostHandlers = 1 << 20
	longestTries = 10 * year // of all attempts at one message
)

// Complete fills p's zero fields from d and refuses what cannot be meant. What it returns shares nothing with p and d, and its
// attempts take 10 years at most, so that their sum does not overflow. For sources.
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
	p.Backoff = slices.Clone(p.Backoff)
	if p.HandlerTimeout == 0 {
		p.HandlerTimeout = d.HandlerTimeout
	}
	if p.HandlerTimeout == 0 {
		p.HandlerTimeout = time.Minute
	}
	if p.Concurrency == 0 {
		p.Concurrency = max(d.Concurrency, 16)
	}
	return p, p.check()
}

func (p *Policy) check() error {
	switch {
	case p.MaxAttempts < 1:
		return fmt.Errorf("consumer: Policy.MaxAttempts %d is below 1: nothing would ever run; leave it zero for the source's default", p.MaxAttempts)
	case p.MaxAttempts > mostTries:
		return fmt.Errorf("consumer: Policy.MaxAttempts %d is above %d: each attempt lengthens the retry window, and records are kept for all of it; lower it, and let Backoff make the attempts rarer", p.MaxAttempts, mostTries)
	case p.MaxCrashes < 1:
		return fmt.Errorf("consumer: Policy.MaxCrashes %d is below 1: one crash would dead-letter everything in progress; leave it zero for 3", p.MaxCrashes)
	case p.MaxCrashes > mostTries:
		return fmt.Errorf("consumer: Policy.MaxCrashes %d is above %d: a message that kills the process would kill it so often; leave it zero for 3", p.MaxCrashes, mostTries)
	case p.HandlerTimeout < 0:
		return fmt.Errorf("consumer: Policy.HandlerTimeout %v is negative; leave it zero for 1m", p.HandlerTimeout)
	case p.HandlerTimeout > year:
		return fmt.Errorf("consumer: Policy.HandlerTimeout %v is above a year: a handler that hangs would never be found; set what an attempt may really take", p.HandlerTimeout)
	case p.Concurrency < 0:
		return fmt.Errorf("consumer: Policy.Concurrency %d is negative; leave it zero for 16", p.Concurrency)
	case p.Concurrency > mostHandlers:
		return fmt.Errorf("consumer: Policy.Concurrency %d is above %d: so many handlers never run at once; leave it zero for 16", p.Concurrency, mostHandlers)
	case len(p.Backoff) == 0:
		return errors.New("consumer: Policy.Backoff is empty and the source has no default")
	}
	for _, b := range p.Backoff {
		if b < 0 {
			return fmt.Errorf("consumer: Policy.Backoff has a negative delay %v; every one must be zero or more", b)
		}
		if b > year {
			return fmt.Errorf("consumer: Policy.Backoff has the delay %v, above a year; shorten it", b)
		}
	}
	if one := p.HandlerTimeout + p.longestBackoff(); one > 0 && time.Duration(p.MaxAttempts) > longestTries/one {
		return fmt.Errorf("consumer: Policy.MaxAttempts %d with HandlerTimeout %v and a Backoff of up to %v could try one message for more than 10 years, and its record would be kept for so long; lower one of them",
			p.MaxAttempts, p.HandlerTimeout, p.longestBackoff())
	}
	return nil
}

// backoff is the delay after the given failed attempt, 1 the first.
func (p *Policy) backoff(attempt int) time.Duration {
	return p.Backoff[min(attempt, len(p.Backoff))-1]
}

// Room is what must be left until a delivery's deadline for its handler to start: it may run for so long before it is a zombie.
// For sources, which otherwise deliver once more what the consumer can only give back.
func (p Policy) Room() time.Duration { return p.HandlerTimeout + zombieGrace + zombieLook }

func (p *Policy) longestBackoff() time.Duration { return slices.Max(p.Backoff) }

// Waits is the sum of all delays between the attempts at one message. For sources, whose retry
// window it is part of.
func (p Policy) Waits() (sum time.Duration) {
	waits, n := p.MaxAttempts-1, len(p.Backoff)
	for _, b := range p.Backoff[:min(max(waits, 0), n)] {
		sum += b
	}
	if waits > n && n > 0 {
		sum += time.Duration(waits-n) * p.Backoff[n-1]
	}
	return sum
}
