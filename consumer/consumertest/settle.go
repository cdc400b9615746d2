package consumertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/consumer"
)

// settler is the Settler of one delivery.
type settler struct {
	b   *Broker
	it  *item
	to  *session
	msg *consumer.Message // as delivered: the Consumer names it

	said bool // guarded by queue.mu
}

var errSettled = errors.New("this delivery has been settled before")

func (s *settler) Ack(context.Context) error {
	q := s.b.q
	return s.say("Ack", false, func() { q.done(s.it) })
}

func (s *settler) GiveBack(context.Context) error {
	q := s.b.q
	return s.say("GiveBack", false, func() { q.again(s.it) })
}

func (s *settler) Retry(_ context.Context, d time.Duration, _ error) error {
	q := s.b.q
	return s.say("Retry", true, func() { q.postpone(s.it, time.Now().Add(d)) })
}

// say is the one final word, unless Broker.Fail spoils it: then it can be said again, or the
// message comes again by itself.
func (s *settler) say(word string, repeatable bool, do func()) error {
	q := s.b.q
	q.mu.Lock()
	if s.said {
		q.mu.Unlock()
		return fmt.Errorf("consumertest: %s of message %q: %w", word, s.it.msg.ID, errSettled)
	}
	s.said = true
	q.mu.Unlock()

	err := s.fail(word)

	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case s.to.over: // the session has let go of it already
		return nil
	case err != nil && repeatable:
		s.said = false
		return err
	}
	q.back(s.it)
	if err != nil {
		q.postpone(s.it, time.Now().Add(afterFault))
		return err
	}
	do()
	return nil
}

func (s *settler) fail(word string) error {
	if s.b.Fail == nil {
		return nil
	}
	m := clone(s.it.msg)
	if err := s.b.Fail(word, &m); err != nil {
		return fmt.Errorf("consumertest: %s of message %q: %w", word, s.it.msg.ID, err)
	}
	return nil
}

// DeadLetter publishes the copy whether or not the session is lost: the Consumer writes its
// verdict on the strength of it.
func (s *settler) DeadLetter(_ context.Context, redrive int, cause error) error {
	if err := s.fail("DeadLetter"); err != nil {
		return err
	}
	named := s.it.msg
	named.ID, named.Scope = s.msg.ID, scope
	m := clone(s.it.msg)
	m.Scope, m.Redrive = scope, redrive
	m.Headers = named.DeadLetterHeaders(redrive, cause)
	m.DeadCause = m.Headers[consumer.CauseHeader]
	q := s.b.q
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dead = append(q.dead, m)
	return nil
}
