package kafka

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemq/idemq/consumer"
)

// defaults suit Kafka, which cannot postpone a message: retries take place in process and
// hold their lane, so they are few and short.
var defaults = consumer.Policy{
	MaxAttempts: 5,
	Backoff:     []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
}

// Plan tells how long after its handling a message can still come back: as long as no
// later offset is committed. It depends on no setting of the broker.
func (s *Source) Plan(p consumer.Policy) (consumer.Plan, error) {
	p, err := p.Complete(defaults)
	if err != nil {
		return consumer.Plan{}, fmt.Errorf("kafka: plan of %s: %w", s.scope, err)
	}
	tries := time.Duration(p.MaxAttempts) * p.HandlerTimeout
	o := s.opt
	terms := []struct {
		text string
		d    time.Duration
		tag  string
	}{
		{"outage", o.Outage, tag(o.Outage, defaultOutage)},
		{"session", o.SessionTimeout, tag(o.SessionTimeout, defaultSession)},
		{"rebalance", o.RebalanceTimeout, tag(o.RebalanceTimeout, defaultSession)},
		{"commit", commitEvery, "read"},
		{fmt.Sprintf("%d attempts x HandlerTimeout %v =", p.MaxAttempts, short(p.HandlerTimeout)), tries, policyTag(p.MaxAttempts == defaults.MaxAttempts && p.HandlerTimeout == time.Minute)},
		{"backoff", p.Waits(), policyTag(slices.Equal(p.Backoff, defaults.Backoff))},
	}
	var sum time.Duration
	texts := make([]string, len(terms))
	for i, t := range terms {
		sum += t.d
		texts[i] = fmt.Sprintf("%s %s (%s)", t.text, short(t.d), t.tag)
	}
	return consumer.Plan{
		Policy: p,
		Scope:  s.scope,
		Window: sum,
		Hold:   -1,
		Why:    strings.Join(texts, " + "),
	}, nil
}

// tag says where a term comes from; a value that is the default is taken for one.
func tag(d, def time.Duration) string { return policyTag(d == def) }

func policyTag(isDefault bool) string {
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
