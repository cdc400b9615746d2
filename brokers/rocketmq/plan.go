package rocketmq

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemq/idemq/consumer"
)

// standardLevels are those of a broker whose messageDelayLevel nobody has changed.
var standardLevels = []time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute,
	8 * time.Minute, 9 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
}

const (
	defaultAttempts = 16
	firstRetryLevel = 3               // as RocketMQ's own: the k-th retry waits for level k + 2
	inProgressHold  = 5 * time.Second // in memory, for a message in progress elsewhere
	memberTimeout   = 2 * time.Minute // after which a broker drops a silent member
)

// orderedDefaults suit a queue that its head holds: retries are few and short.
var orderedDefaults = consumer.Policy{
	MaxAttempts: 5,
	Backoff:     []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
}

// concurrentDefaults are RocketMQ's own attempts and ladder, from the broker's levels.
func concurrentDefaults(levels []time.Duration) consumer.Policy {
	ladder := levels[min(firstRetryLevel, len(levels))-1:]
	return consumer.Policy{MaxAttempts: defaultAttempts, Backoff: slices.Clone(ladder)}
}

// levelFor is the lowest level that waits for at least d, 0 if the longest is too short, and its delay.
func levelFor(levels []time.Duration, d time.Duration) (level int, delay time.Duration) {
	for i, l := range levels {
		if l >= d {
			return i + 1, l
		}
	}
	return 0, levels[len(levels)-1]
}

// parseLevels reads a broker's messageDelayLevel.
func parseLevels(text string) ([]time.Duration, error) {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	var levels []time.Duration
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.Atoi(word[:len(word)-1])
		unit := units[word[len(word)-1]]
		if err != nil || unit == 0 || n < 0 {
			return nil, fmt.Errorf("messageDelayLevel %q: %q is no number of s, m, h or d", text, word)
		}
		levels = append(levels, time.Duration(n)*unit)
	}
	if len(levels) == 0 {
		return nil, fmt.Errorf("messageDelayLevel %q is empty", text)
	}
	return levels, nil
}

// settings are what was read from the brokers; zero before that.
type settings struct {
	levels   []time.Duration
	reserved time.Duration // how long messages are kept
}

// delayLevels are the delays that the broker can keep, and where they are known from.
func (s *Source) delayLevels() (levels []time.Duration, tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.read.levels != nil:
		return s.read.levels, "read"
	case s.opt.DelayLevels != nil:
		return s.opt.DelayLevels, "declared"
	}
	return standardLevels, "assumed"
}

// Plan tells how long after its handling a message can still come back. Once a broker is
// connected the delays are those of its messageDelayLevel.
func (s *Source) Plan(p consumer.Policy) (consumer.Plan, error) {
	levels, known := s.delayLevels()
	defaults := concurrentDefaults(levels)
	if s.opt.Ordered {
		defaults = orderedDefaults
	}
	p, err := p.Complete(defaults)
	if err == nil {
		err = s.contradiction(p, levels, known)
	}
	if err != nil {
		return consumer.Plan{}, fmt.Errorf("rocketmq: plan of %s: %w", s.scope, err)
	}
	o := s.opt
	waits, waitsTag, hold := p.Waits(), tag(slices.Equal(p.Backoff, defaults.Backoff)), time.Duration(-1)
	if !o.Ordered {
		waits, waitsTag, hold = delays(p, levels), known, inProgressHold
	}
	terms := []struct {
		text string
		d    time.Duration
		tag  string
	}{
		{"outage", o.Outage, tag(o.Outage == defaultOutage)},
		{"silent member", memberTimeout, "assumed"},
		{"commit", commitEvery, "read"},
		{fmt.Sprintf("%d attempts x HandlerTimeout %v =", p.MaxAttempts, short(p.HandlerTimeout)), time.Duration(p.MaxAttempts) * p.HandlerTimeout,
			tag(p.MaxAttempts == defaults.MaxAttempts && p.HandlerTimeout == time.Minute)},
		{fmt.Sprintf("%d delays", p.MaxAttempts-1), waits, waitsTag},
		{"in progress elsewhere", max(hold, 0), "read"},
	}
	var sum time.Duration
	var texts []string
	for _, t := range terms {
		if t.d > 0 {
			sum += t.d
			texts = append(texts, fmt.Sprintf("%s %s (%s)", t.text, short(t.d), t.tag))
		}
	}
	return consumer.Plan{Policy: p, Scope: s.scope, Window: sum, Hold: hold, Why: strings.Join(texts, " + ")}, nil
}

// contradiction is what p, the options and the broker's settings cannot mean together.
func (s *Source) contradiction(p consumer.Policy, levels []time.Duration, known string) error {
	s.mu.Lock()
	read := s.read
	s.mu.Unlock()
	if d := s.opt.DelayLevels; d != nil && read.levels != nil && !slices.Equal(d, read.levels) {
		return fmt.Errorf("SourceOptions.DelayLevels %v are not the broker's messageDelayLevel %v: retries would come at other times than the retention is computed from; leave DelayLevels unset", d, read.levels)
	}
	longest := slices.Max(p.Backoff)
	if _, most := levelFor(levels, longest); !s.opt.Ordered && longest > most && known != "assumed" {
		return fmt.Errorf("Policy.Backoff has %v, the longest delay of the broker (messageDelayLevel, %s) is %v: the retry would come too soon; lower Backoff or give the broker a longer level", longest, known, most)
	}
	if read.reserved > 0 && s.opt.Outage > read.reserved {
		return fmt.Errorf("SourceOptions.Outage %v is longer than the broker keeps messages (fileReservedTime %v): what comes during such an outage would be deleted before it is read; raise fileReservedTime or lower Outage", short(s.opt.Outage), short(read.reserved))
	}
	return nil
}

// delays is the sum of the delays between p's attempts as the broker keeps them: each is
// rounded up to a level.
func delays(p consumer.Policy, levels []time.Duration) (sum time.Duration) {
	for k := 1; k < p.MaxAttempts; k++ {
		_, d := levelFor(levels, p.Backoff[min(k, len(p.Backoff))-1])
		sum += d
	}
	return sum
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
