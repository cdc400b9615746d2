package rocketmq

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemq/idemq/outbox"
)

// SendAsIs sends ms with all of their headers, as a tool does that copies a dead letter back.
func (p *Publisher) SendAsIs(ctx context.Context, ms []outbox.Message) error {
	out, errs := make([]*outgoing, len(ms)), make([]error, len(ms))
	for i := range ms {
		var err error
		if out[i], err = p.cluster.newMessage(&ms[i]); err != nil {
			return err
		}
	}
	return errors.Join(p.send(ctx, out, errs), errors.Join(errs...))
}

// Cut breaks every connection that s has.
func (s *Source) Cut() { s.client.cut() }

// CreateTopic makes a topic on every broker that the name servers know of, and waits for its route.
func CreateTopic(ctx context.Context, c Cluster, brokerAddr, topic string, queues int) error {
	cl := newClient(c, nil)
	defer cl.close()
	if err := cl.createTopic(ctx, brokerAddr, c.wire(topic), queues); err != nil {
		return err
	}
	for n := 1; ; n++ {
		if _, err := cl.route(ctx, c.wire(topic)); err == nil {
			return nil
		}
		if sleep(ctx, backoff(n)); ctx.Err() != nil {
			return fmt.Errorf("topic %s: %w", topic, ctx.Err())
		}
	}
}

// SetPermission changes what a topic allows: 2 to write, 4 to read, 6 both.
func SetPermission(ctx context.Context, c Cluster, brokerAddr, topic string, queues, perm int) error {
	cl := newClient(c, nil)
	defer cl.close()
	n := fmt.Sprint(queues)
	_, err := cl.call(ctx, brokerAddr, command{Code: askCreateTopic, Fields: map[string]string{
		"topic": c.wire(topic), "defaultTopic": defaultTopic, "readQueueNums": n, "writeQueueNums": n,
		"perm": fmt.Sprint(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
	}})
	return err
}

// Permission is what the name servers say that a topic allows.
func Permission(ctx context.Context, c Cluster, topic string) (int, error) {
	cl := newClient(c, nil)
	defer cl.close()
	r, err := cl.route(ctx, c.wire(topic))
	if err != nil {
		return 0, err
	}
	return r.Queues[0].Perm, nil
}

// Committed is a group's position in a queue, -1 for none.
func Committed(ctx context.Context, c Cluster, brokerAddr, broker, group, topic string, queue int) (int64, error) {
	cl := newClient(c, nil)
	defer cl.close()
	cn, err := cl.connect(ctx, brokerAddr)
	if err != nil {
		return 0, err
	}
	return cn.position(ctx, c.wire(group), queueOf{c.wire(topic), broker, queue})
}

// BrokerAddr is where the first broker is that the name servers know of.
func BrokerAddr(ctx context.Context, c Cluster) (string, error) {
	cl := newClient(c, nil)
	defer cl.close()
	r, err := cl.route(ctx, "SELF_TEST_TOPIC") // every broker has it
	if err != nil {
		return "", err
	}
	return r.Brokers[0].Addrs["0"], nil
}

// Kill ends s as the end of its process would: without a word to anybody.
func (s *Source) Kill() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.client.close()
	if s.cancel != nil {
		s.cancel()
	}
	s.loops.Wait()
	for _, q := range s.assigned() {
		s.forget(q)
	}
	s.fetchers.Wait()
}

// Commit sets a group's position in a queue.
func Commit(ctx context.Context, c Cluster, brokerAddr, broker, group, topic string, queue int, offset int64) error {
	cl := newClient(c, nil)
	defer cl.close()
	cn, err := cl.connect(ctx, brokerAddr)
	if err != nil {
		return err
	}
	return cn.commit(ctx, c.wire(group), queueOf{c.wire(topic), broker, queue}, offset)
}

// MemberID is a new member's ID.
func MemberID() string { return memberID() }

// ResetOffset is an operator's order to read a queue again from offset on (code 222, with the
// broker resetting by itself).
func ResetOffset(ctx context.Context, c Cluster, brokerAddr, group, topic string, queue int, offset int64) error {
	cl := newClient(c, nil)
	defer cl.close()
	_, err := cl.call(ctx, brokerAddr, command{Code: 222, Fields: map[string]string{
		"topic": c.wire(topic), "group": c.wire(group), "queueId": fmt.Sprint(queue), "offset": fmt.Sprint(offset),
		"timestamp": "-1", "isForce": "true",
	}})
	return err
}
