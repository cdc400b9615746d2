package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// balanceEvery is how often the member says that it lives, and looks at routes and members. Brokers
// tell of members that come and go at once; this is for what they could not tell.
const balanceEvery = 5 * time.Second

// run keeps the membership until ctx ends.
func (s *Source) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := s.balance(ctx)
		if ctx.Err() != nil {
			return
		}
		s.connected.Store(err == nil)
		wait := balanceEvery
		switch {
		case err == nil:
			failures = 0
			s.quiet.forget("balance")
		case classify(err) == terminal:
			s.fail(err)
			return
		default:
			failures++
			wait = backoff(failures)
			if failures > 1 && s.quiet.allow("balance") { // the first may be a member not yet known
				s.log.Warn("rocketmq: the group cannot be joined in full; trying again", "error", err)
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-s.moved:
		}
		t.Stop()
	}
}

// commits makes what was acknowledged last, each second, until ctx ends.
func (s *Source) commits(ctx context.Context) {
	t := time.NewTicker(commitEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, q := range s.assigned() {
			if err := q.commit(ctx, n%30 == 0); err != nil && ctx.Err() == nil && s.quiet.allow("commit") {
				s.log.Warn("rocketmq: a position could not be committed; trying again", "queue", q.name, "error", err)
			}
		}
	}
}

// balance takes the member's share of the queues. It is the only one that adds to the assignment.
func (s *Source) balance(ctx context.Context) error {
	var errs []error
	routes := s.look(ctx, &errs)
	brokers := s.heartbeats(ctx, routes, &errs)
	for _, topic := range slices.Sorted(maps.Keys(routes)) {
		s.meet(topic, routes[topic])
		if err := s.share(ctx, topic, routes[topic], brokers); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// meet takes note of the queues that a topic has when it is first looked at. Those that come later hold nothing that is older than
// the group. One that cannot be begun now, because its broker is away, is as old as the others all the same.
func (s *Source) meet(topic string, r route) {
	if s.seen[topic] {
		return
	}
	s.seen[topic] = true
	for _, q := range r.queues(topic, permRead|permWrite) {
		s.fresh[q] = true
	}
}

// look asks for the routes of everything the group reads. While no name server answers, or one
// was just started and knows none, those known before are good, until a broker says otherwise.
func (s *Source) look(ctx context.Context, errs *[]error) map[string]route {
	routes := make(map[string]route)
	find := func(topic string) error {
		r, err := s.client.route(ctx, topic)
		if err != nil && !errors.Is(err, errNoTopic) {
			*errs = append(*errs, err)
		}
		if known, ok := s.client.knownRoute(topic); err != nil && ok {
			r, err = known, nil
		}
		if err == nil {
			routes[topic] = r
		}
		return err
	}
	exists := ""
	for _, t := range s.topics {
		switch err := find(s.cluster.wire(t)); {
		case err == nil:
			exists = s.cluster.wire(t)
			s.quiet.forget("topic " + t)
		case errors.Is(err, errNoTopic):
			s.drop(s.cluster.wire(t)) // once it is there it is read from its beginning
			if s.quiet.allow("topic " + t) {
				s.log.Warn("rocketmq: the topic does not exist; it is consumed once it is created", "topic", t)
			}
		}
	}
	if exists == "" {
		return routes
	}
	if err := find(s.retryTopic); errors.Is(err, errNoTopic) {
		if err = s.client.ensure(ctx, s.retryTopic, exists); err == nil {
			err = find(s.retryTopic)
		}
		if err != nil && ctx.Err() == nil && s.quiet.allow("retry topic") {
			s.log.Error("rocketmq: there is no topic for retries, so none can be postponed", "topic", s.cluster.bare(s.retryTopic), "error", err)
		}
	}
	_ = find(s.bounceTopic) // brokers make it when they first hear of the group
	return routes
}

// share makes the assignment of one topic's queues what it should be.
func (s *Source) share(ctx context.Context, topic string, r route, brokers map[string]*conn) error {
	queues := r.queues(topic, permRead)
	if len(queues) == 0 {
		s.pauseTopic(ctx, topic)
		return nil
	}
	s.quiet.forget("unreadable " + topic)
	var members []string
	err := errNoBroker
	for _, q := range queues {
		if cn := brokers[q.broker]; cn != nil {
			call, cancel := context.WithTimeout(ctx, callTimeout)
			members, err = cn.members(call, s.wireGroup)
			cancel()
			silent(ctx, cn, err)
			break
		}
	}
	if err != nil {
		return fmt.Errorf("rocketmq: members of group %s: topic %q: %w", s.group, s.cluster.bare(topic), err)
	}
	mine, ok := allocate(queues, members, s.id)
	if !ok {
		return fmt.Errorf("rocketmq: group %s: topic %q: the broker does not count this member yet", s.group, s.cluster.bare(topic))
	}
	owned := make(map[queueOf]bool)
	for _, q := range s.assigned() {
		switch {
		case q.of.topic != topic:
		case !slices.Contains(mine, q.of):
			s.release(ctx, q)
		case !q.cn.alive():
			s.lose(q)
		default:
			owned[q.of] = true
		}
	}
	var errs []error
	for _, of := range mine {
		cn := brokers[of.broker]
		switch {
		case owned[of]:
		case cn == nil:
			errs = append(errs, fmt.Errorf("rocketmq: queue %s: %w", of, errNoBroker))
		default:
			if err := s.acquire(ctx, of, cn); err != nil {
				silent(ctx, cn, err)
				errs = append(errs, fmt.Errorf("rocketmq: begin queue %s: %w", of, err))
			}
		}
	}
	return errors.Join(errs...)
}

// pauseTopic gives up all queues of a topic whose permission to read was taken from it: operators do so to pause its consumers,
// or before they take a broker away. It is looked at again as long as the group lives.
func (s *Source) pauseTopic(ctx context.Context, topic string) {
	for _, q := range s.assigned() {
		if q.of.topic == topic {
			s.release(ctx, q)
		}
	}
	if s.quiet.allow("unreadable " + topic) {
		s.log.Warn("rocketmq: no queue of the topic may be read; it is consumed once its permission to read (perm) is back", "topic", s.cluster.bare(topic))
	}
}

// acquire begins an assignment at the group's position.
func (s *Source) acquire(ctx context.Context, of queueOf, cn *conn) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	k := s.kindOf(of.topic)
	at, err := cn.position(call, s.wireGroup, of)
	if err != nil {
		return err
	}
	committed := at
	if at < 0 {
		which := askMinOffset
		latest := s.opt.FromLatest && k == original && s.fresh[of]
		if latest {
			which = askMaxOffset
		}
		if at, err = cn.bound(call, which, of); err != nil {
			return err
		}
		at = max(at, 0)
		if latest {
			if err := cn.commit(call, s.wireGroup, of, at); err != nil {
				return err
			}
			committed = at
		}
	}
	delete(s.fresh, of)
	fetching, stop := context.WithCancel(ctx)
	q := newQueue(s, of, k, cn, at, committed, stop)
	s.mu.Lock()
	s.queues = append(s.queues, q)
	s.mu.Unlock()
	s.fetchers.Go(func() { q.fetch(fetching) })
	return nil
}

func (s *Source) kindOf(topic string) kind {
	switch topic {
	case s.retryTopic:
		return retried
	case s.bounceTopic:
		return bounced
	}
	return original
}

// release gives a queue to another member, with the position as it is.
func (s *Source) release(ctx context.Context, q *queue) {
	if err := q.commit(ctx, false); err != nil && ctx.Err() == nil {
		s.log.Warn("rocketmq: the position of a queue that goes to another member could not be committed; its messages come again there", "queue", q.name, "error", err)
	}
	s.forget(q)
}

// lose ends the assignment of a queue whose connection broke, and has it begun anew.
func (s *Source) lose(q *queue) {
	s.forget(q)
	s.connected.Store(false)
	s.rebalance()
}

// rebalance has balance look at once.
func (s *Source) rebalance() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// drop ends the assignments of a topic that is no more. What comes under its name will be new.
func (s *Source) drop(topic string) {
	s.seen[topic] = true
	maps.DeleteFunc(s.fresh, func(q queueOf, _ bool) bool { return q.topic == topic })
	for _, q := range s.assigned() {
		if q.of.topic == topic {
			s.forget(q)
		}
	}
}

func (s *Source) forget(q *queue) {
	q.detach()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues = slices.DeleteFunc(slices.Clone(s.queues), func(o *queue) bool { return o == q })
	s.again = slices.DeleteFunc(s.again, func(r retry) bool { return r.queue == q })
}

// assigned are the queues that are this member's.
func (s *Source) assigned() []*queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.queues)
}
