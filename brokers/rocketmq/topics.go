package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

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

// ensureTimeout bounds the making of a topic: a member that waits for it says meanwhile to no broker that it lives.
const ensureTimeout = 2 * callTimeout

// ensure creates a topic on the brokers of another one, if it does not exist, and waits for its route.
func (c *client) ensure(ctx context.Context, topic, like string) error {
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	_, err := c.route(ctx, topic)
	if !errors.Is(err, errNoTopic) {
		return err
	}
	r, err := c.cachedRoute(ctx, like)
	if err != nil {
		return err
	}
	for _, b := range r.Brokers {
		addr := b.Addrs["0"]
		if addr == "" {
			continue
		}
		if err := c.createTopic(ctx, addr, topic, newQueues); err != nil {
			return fmt.Errorf("topic %q does not exist and could not be created; create it: %w", topic, err)
		}
	}
	for n := 1; ; n++ { // brokers tell the name servers a moment later
		_, err := c.route(ctx, topic)
		if !errors.Is(err, errNoTopic) {
			return err
		}
		if sleep(ctx, backoff(n)); ctx.Err() != nil {
			return err
		}
	}
}

// allocate is a member's share of the queues: consecutive ones, the first members one more where
// it does not come out even. All clients of a group must count alike; this is what RocketMQ's do by
// default. ok is false where the member is not among the members.
func allocate(queues []queueOf, members []string, me string) (mine []queueOf, ok bool) {
	at := slices.Index(members, me)
	if at < 0 {
		return nil, false
	}
	n, m := len(queues), len(members)
	size, more := n/m, n%m
	first := at*size + min(at, more)
	if at < more {
		size++
	}
	return queues[first : first+size], true
}
