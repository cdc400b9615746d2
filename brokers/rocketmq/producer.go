package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"
)

// producer sends messages and waits for the broker's word on each.
type producer struct {
	client *client
	create bool // topics that are missing, where brokers create them by themselves
	turn   atomic.Uint32
}

// send publishes m and returns once a broker has confirmed it, the error is final, or ctx ends. A
// repetition may write it twice, when the answer to the first was lost; consumers drop the copy
// by its ID.
func (p *producer) send(ctx context.Context, m *outgoing) error {
	for n := 1; ; n++ {
		err := p.once(ctx, m)
		if err == nil || classify(err) == terminal && !outdated(err, n) {
			return err
		}
		if errors.Is(err, errNoTopic) && n > 1 {
			return err
		}
		if isCode(err, codeNoTopic) {
			p.client.forgetRoute(m.topic)
		}
		if sleep(ctx, backoff(n)); ctx.Err() != nil {
			return err
		}
		_, _ = p.client.route(ctx, m.topic) // where it cannot be told, the old one is tried again
	}
}

// outdated reports whether the n-th refusal may be of a route that is old: the permission to write (perm) was taken from the topic or the
// broker since, as before a broker is taken away. Else it is access control's, and final.
func outdated(err error, n int) bool { return n == 1 && isCode(err, codeNoPermission) }

func (p *producer) once(ctx context.Context, m *outgoing) error {
	q, addr, err := p.choose(ctx, m)
	if err != nil {
		return err
	}
	if err := p.client.send(ctx, addr, q, m); err != nil {
		return sendError(m, q, err)
	}
	return nil
}

func sendError(m *outgoing, q queueOf, err error) error {
	return fmt.Errorf("topic %q queue %d of %s: %w", m.topic, q.id, q.broker, err)
}

// choose finds the queue for m, and its broker.
func (p *producer) choose(ctx context.Context, m *outgoing) (queueOf, string, error) {
	r, err := p.client.cachedRoute(ctx, m.topic)
	if errors.Is(err, errNoTopic) && p.create {
		r, err = p.template(ctx, err)
	}
	if err != nil {
		return queueOf{}, "", err
	}
	qs := r.queues(m.topic, permWrite)
	at := 0
	if m.key != "" {
		h := fnv.New32a()
		h.Write([]byte(m.key))
		at = int(h.Sum32())
	} else {
		at = int(p.turn.Add(1))
	}
	for i := range qs {
		q := qs[(at+i)%len(qs)]
		addr := r.master(q.broker)
		if addr == "" {
			if m.key != "" {
				break // its order would break
			}
			continue
		}
		return q, addr, nil
	}
	return queueOf{}, "", fmt.Errorf("topic %q: %w", m.topic, errNoBroker)
}

// template is the route to brokers that create missing topics by themselves (autoCreateTopicEnable).
func (p *producer) template(ctx context.Context, missing error) (route, error) {
	r, err := p.client.cachedRoute(ctx, defaultTopic)
	if errors.Is(err, errNoTopic) {
		return r, missing
	}
	r.Queues = slices.Clone(r.Queues) // the cache's stay
	for i := range r.Queues {
		r.Queues[i].Write = min(r.Queues[i].Write, newQueues)
	}
	return r, err
}
