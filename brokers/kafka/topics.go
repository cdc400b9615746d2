package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// pollEvery is how often topics are looked at for partitions that were added and leaders
// that have moved. The client's own watcher takes its first look after the assignment,
// so that it may miss a change for ever, and joins in a hot loop while a topic is missing.
const pollEvery = 3 * time.Second

// warnEvery bounds how often one and the same trouble is logged.
const warnEvery = 30 * time.Second

// limiter lets each thing pass once per warnEvery.
type limiter struct {
	mu   sync.Mutex
	next map[string]time.Time
}

func (l *limiter) allow(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next[what]) {
		return false
	}
	if l.next == nil {
		l.next = make(map[string]time.Time)
	}
	l.next[what] = now.Add(warnEvery)
	return true
}

// forget lets what pass again at once: the trouble was over.
func (l *limiter) forget(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.next, what)
}

// backoff is the delay after the n-th failure in a row, 1 the first: 100 ms doubling to 2 s,
// of which a random half, so that members do not come in step.
func backoff(n int) time.Duration {
	d := min(2*time.Second, 100*time.Millisecond<<min(n-1, 5))
	return d/2 + rand.N(d/2)
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// layout is what a cluster says of topics: the leader of each partition, -1 for none.
type layout map[string][]int

func (l layout) counts() map[string]int {
	n := make(map[string]int, len(l))
	for t, ps := range l {
		n[t] = len(ps)
	}
	return n
}

// lookUp asks for the topics that exist; fresh asks the cluster instead of the pool's cache.
func lookUp(ctx context.Context, client *kafka.Client, pool *kafka.Transport, topics []string, fresh bool) (layout, error) {
	if fresh {
		pool.CloseIdleConnections()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	res, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, err
	}
	l := make(layout, len(topics))
	for _, t := range res.Topics {
		switch {
		case errors.Is(t.Error, kafka.UnknownTopicOrPartition), errors.Is(t.Error, kafka.LeaderNotAvailable) && len(t.Partitions) == 0:
			continue
		case t.Error != nil && classify(t.Error) == terminal:
			return nil, fmt.Errorf("topic %q: %w", t.Name, t.Error)
		}
		leaders := make([]int, len(t.Partitions))
		for i := range leaders {
			leaders[i] = -1
		}
		for _, p := range t.Partitions {
			if p.ID < len(leaders) && p.Leader.Host != "" {
				leaders[p.ID] = p.Leader.ID
			}
		}
		l[t.Name] = leaders
	}
	return l, nil
}

// awaitTopics waits for the first of the source's topics to exist. The group is not joined
// before: a member without partitions would have to be told later, and with one topic missing
// the client's group leader assigns nothing of the others.
func (s *Source) awaitTopics(ctx context.Context) (layout, error) {
	for n := 1; ; n++ {
		l, err := lookUp(ctx, s.client, s.pool, s.topics, n > 1)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && classify(err) == terminal:
			return nil, fmt.Errorf("kafka: look up topics of %s: %w", s.scope, err)
		case err != nil:
			if s.quiet.allow("lookup") {
				s.log.Warn("kafka: brokers cannot be asked for the topics, trying on", "brokers", s.cluster.String(), "error", err)
			}
		default:
			s.quiet.forget("lookup")
			s.warnMissing(l)
			if len(l) > 0 {
				return l, nil
			}
		}
		sleep(ctx, backoff(n))
	}
}

func (s *Source) warnMissing(l layout) {
	for _, t := range s.topics {
		if _, ok := l[t]; !ok && s.quiet.allow("topic "+t) {
			s.log.Warn("kafka: the topic does not exist; it is consumed from when it does", "topic", t)
		}
	}
}

// checkDeadLetters looks at the dead letter topics once. A missing one is made when it is
// needed. A compacted one is refused: it takes no keyless record, and of two dead letters
// with one key it keeps the last. One that takes less than its origin is pointed out.
func (s *Source) checkDeadLetters(ctx context.Context, l layout) error {
	var names []string
	for t := range l {
		if d := s.opt.deadLetterTopic(t); !slices.Contains(names, d) {
			names = append(names, d)
		}
	}
	have, err := lookUp(ctx, s.client, s.pool, names, false)
	if err != nil {
		return nil // no rights to look, or no broker: DeadLetter will tell
	}
	for _, d := range names {
		if _, ok := have[d]; !ok {
			s.log.Warn("kafka: the dead letter topic does not exist; the first dead letter will try to create it", "topic", d)
		}
	}
	known := slices.Concat(slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(l)))
	settings, err := topicSettings(ctx, s.client, known, cleanupPolicy, maxMessageBytes)
	if err != nil {
		return nil // as above
	}
	for d := range have {
		if policy := settings[d][cleanupPolicy]; strings.Contains(policy, "compact") {
			return fmt.Errorf("kafka: dead letter topic %q has cleanup.policy=%s: it refuses dead letters without a key and drops all but the last of a key; set cleanup.policy=delete or another SourceOptions.DeadLetterTopic", d, policy)
		}
	}
	for t := range l {
		d := s.opt.deadLetterTopic(t)
		takes, err := strconv.Atoi(settings[d][maxMessageBytes])
		comes, e := strconv.Atoi(settings[t][maxMessageBytes])
		if err == nil && e == nil && takes < comes {
			s.log.Warn("kafka: the dead letter topic takes smaller messages than its origin; one that is too large for it could not be given up, and would hold its partition's position; raise its max.message.bytes",
				"topic", d, maxMessageBytes, takes, "origin", t, "origin_takes", comes)
		}
	}
	return nil
}

// Settings of topics.
const (
	cleanupPolicy   = "cleanup.policy"
	maxMessageBytes = "max.message.bytes"
)

// topicSettings are the named settings of topics, without those of topics that may not be looked at.
func topicSettings(ctx context.Context, client *kafka.Client, topics []string, names ...string) (map[string]map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	req := new(kafka.DescribeConfigsRequest)
	for _, t := range topics {
		req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: t, ConfigNames: names,
		})
	}
	res, err := client.DescribeConfigs(ctx, req)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]string)
	for _, r := range res.Resources {
		if r.Error != nil {
			continue
		}
		all[r.ResourceName] = make(map[string]string)
		for _, e := range r.ConfigEntries {
			all[r.ResourceName][e.ConfigName] = e.ConfigValue
		}
	}
	return all, nil
}
