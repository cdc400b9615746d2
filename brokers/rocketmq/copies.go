package rocketmq

import (
	"context"
	"errors"
	"sync"
)

// copies publishes retries and dead letters, and creates their topics when they are first needed.
type copies struct {
	producer *producer
	mu       sync.Mutex
	made     map[string]bool
}

func newCopies(c *client) *copies {
	return &copies{producer: &producer{client: c}, made: make(map[string]bool)}
}

// publish returns once a broker has confirmed m; like is a topic where m's is to be created.
func (c *copies) publish(ctx context.Context, m *outgoing, like string) error {
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	c.mu.Lock()
	made := c.made[m.topic]
	c.mu.Unlock()
	if !made {
		if err := c.producer.client.ensure(ctx, m.topic, like); err != nil {
			return err
		}
		c.mu.Lock()
		c.made[m.topic] = true
		c.mu.Unlock()
	}
	err := c.producer.send(ctx, m)
	if errors.Is(err, errNoTopic) { // somebody has deleted it
		c.mu.Lock()
		delete(c.made, m.topic)
		c.mu.Unlock()
	}
	return err
}

// copyTimeout bounds one publish; who waits for it may try again.
const copyTimeout = callTimeout * 3
