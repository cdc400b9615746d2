package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	amqp "github.com/rabbitmq/amqp091-go"
)

// session is one connection with one channel that consumes the queue. Delivery tags begin at 1 in
// each, so a word must never reach another than its own.
type session struct {
	src    *Source
	link   *link
	ch     *amqp.Channel
	in     <-chan amqp.Delivery
	closed chan *amqp.Error // why the channel ended
	broken chan *amqp.Error // why the connection ended
	lost   chan struct{}    // closed when it is over; with Source.mu
	acks   *acks
}

func (e *session) isLost() bool {
	select {
	case <-e.lost:
		return true
	default:
		return false
	}
}

// tell says a word that the server does not answer. When the session is over, or ends by it, the
// message comes again.
func (e *session) tell(say func(ch *amqp.Channel) error) error {
	if e.isLost() {
		return nil
	}
	err := say(e.ch)
	if err == nil || errors.Is(err, amqp.ErrClosed) || errors.Is(err, net.ErrClosed) || e.isLost() {
		return nil
	}
	return fmt.Errorf("rabbitmq: settle a delivery of %s: %w", e.src.queue, err)
}

// backoff is the pause before the n-th attempt to connect, spread so that many consumers do not
// come back at once.
func (s *Source) backoff(n int) time.Duration {
	d := min(s.pause<<min(n, 16), s.longest)
	return d/2 + rand.N(d/2+1)
}

// run keeps a session until ctx ends, or waiting cannot help.
func (s *Source) run(ctx context.Context) {
	refusals := 0
	for failures := 0; ; {
		e, err := s.open(ctx)
		if err == nil {
			failures, refusals = 0, 0
			begun := time.Now()
			why := s.serve(ctx, e)
			if ctx.Err() != nil {
				return
			}
			if why == nil { // a restart that was asked for
				continue
			}
			if time.Since(begun) < s.longest {
				failures = 1 // it does not last
			}
			s.log.Warn("rabbitmq: session lost; what was not settled comes again", "err", why)
		} else {
			if ctx.Err() != nil {
				return
			}
			c := classify(err)
			if c == refused {
				refusals++
			} else {
				refusals = 0
			}
			if c == terminal || refusals == maxRefusals && !s.ever.Load() {
				s.fail(fmt.Errorf("rabbitmq: consume %s: %w", s.queue, err))
				return
			}
			failures++
			s.log.Warn("rabbitmq: no session yet, will try again", "err", err)
		}
		if failures > 0 && !sleep(ctx, s.backoff(failures-1)) {
			return
		}
	}
}

// maxRefusals is how many logins in a row may end without an answer before they count as
// refused: the server closes the connection of who comes with a wrong password, and so does a
// server that is being stopped.
const maxRefusals = 3

// open connects, sees to the queues that belong to the consumed one, and consumes.
func (s *Source) open(ctx context.Context) (_ *session, err error) {
	l, err := s.cluster.connect(ctx, &s.conns, s.node, "idemq consume "+s.queue)
	if err != nil {
		s.node++
		return nil, err
	}
	defer func() {
		if err != nil {
			l.net.Close()
		}
	}()
	if err := l.exists(ctx, s.queue); err != nil {
		if classify(err) == missing {
			return nil, fmt.Errorf("queue %s does not exist; declare it, by Topology.Declare say: %w", s.queue, err)
		}
		return nil, fmt.Errorf("look for queue %s: %w", s.queue, err)
	}
	if !s.ever.Load() && !s.opt.Passive {
		if err := s.recognise(ctx, l); err != nil {
			return nil, err
		}
	}
	if err := s.prepare(ctx, l); err != nil {
		return nil, err
	}
	e := &session{
		src: s, link: l, lost: make(chan struct{}),
		closed: make(chan *amqp.Error, 1), broken: l.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if e.ch, err = l.channel(ctx); err != nil {
		return nil, err
	}
	e.ch.NotifyClose(e.closed)
	s.mu.Lock()
	prefetch := s.prefetch
	s.mu.Unlock()
	e.acks = newAcks(func(tag uint64, multiple bool) {
		_ = e.ch.Ack(tag, multiple) // it fails with the session, and then the message comes again
	})
	err = l.call(ctx, func() error {
		if err := e.ch.Qos(prefetch, 0, false); err != nil {
			return err
		}
		e.in, err = e.ch.Consume(s.queue, consumerTag, false, false, false, false, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("consume: %w", err)
	}
	return e, nil
}

// recognise finds out whether the queue is as Topology makes it: no client can read a queue's
// settings, but the server tells when a declaration would change them.
func (s *Source) recognise(ctx context.Context, l *link) error {
	made := func(exclusive bool) (bool, error) {
		for _, classic := range []bool{false, true} {
			t := Topology{Queue: s.queue, DeadLetterQueue: s.opt.DeadLetterQueue, Classic: classic, Exclusive: exclusive}
			var e *amqp.Error
			if err := l.declare(ctx, t.main()); err == nil {
				return true, nil
			} else if !errors.As(err, &e) {
				return false, err
			}
		}
		return false, nil
	}
	ours, err := made(s.opt.Exclusive)
	if ours || err != nil {
		return err
	}
	if strings.HasSuffix(s.queue, deadSuffix) { // any other queue that looks like one of dead letters is no such
		if dead, err := l.isDeadQueue(ctx, s.queue); dead || err != nil {
			return err
		}
	}
	if s.opt.Exclusive {
		if shared, err := made(false); shared || err != nil {
			return cmp.Or(err, errShared)
		}
	}
	s.log.Warn("rabbitmq: the queue was not declared by Topology, so its settings cannot be known; see that a quorum queue's delivery limit, its policies' included, is high enough for messages given back, and that what exceeds it goes to the dead letter queue",
		"dead_letter_queue", s.opt.DeadLetterQueue, "delivery_limit", deliveryLimit)
	return nil
}

// prepare sees to the wait queues and the dead letter queue.
func (s *Source) prepare(ctx context.Context, l *link) error {
	s.mu.Lock()
	delays := s.delays
	s.mu.Unlock()
	// Whoever made the dead letter queue may have made it otherwise.
	err := l.exists(ctx, s.opt.DeadLetterQueue)
	if classify(err) == missing && !s.opt.Passive {
		err = l.declare(ctx, s.deadQueue())
	}
	if err != nil {
		return s.unprepared(s.opt.DeadLetterQueue, err)
	}
	for _, d := range delays {
		q := waitQueue(s.queue, d)
		if s.opt.Passive {
			err = l.exists(ctx, q.name)
		} else {
			err = l.declare(ctx, q)
		}
		if err != nil {
			return s.unprepared(q.name, err)
		}
	}
	return nil
}

func (s *Source) unprepared(queue string, err error) error {
	if classify(err) == missing && s.opt.Passive {
		return fmt.Errorf("queue %s does not exist, and SourceOptions.Passive forbids to declare it; declare it, by Topology.Declare say: %w", queue, err)
	}
	var e *amqp.Error
	if errors.As(err, &e) && e.Code == amqp.PreconditionFailed {
		return fmt.Errorf("queue %s exists with other settings than this source relies on; delete it when it is empty: %w", queue, err)
	}
	if errors.As(err, &e) && e.Code == amqp.AccessRefused {
		return fmt.Errorf("queue %s may not be declared; have it declared by Topology.Declare and set SourceOptions.Passive: %w", queue, err)
	}
	return fmt.Errorf("declare queue %s: %w", queue, err)
}

func (s *Source) deadQueue() queue { return deadQueue(s.opt.DeadLetterQueue, false) }

// serve hands on what e brings until it is over, and tells why; nil: it was restarted.
func (s *Source) serve(ctx context.Context, e *session) error {
	s.mu.Lock()
	s.live = e
	s.mu.Unlock()
	s.ever.Store(true)
	s.connected.Store(true)
	stop := context.AfterFunc(ctx, e.goodbye)
	var saying sync.WaitGroup
	saying.Go(func() { e.acks.run(e.lost, e.link.net.out.written) })
	for d := range e.in {
		s.arrived(e, d)
	}
	stop()
	s.connected.Store(false)
	restarted := s.lose(e)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	e.link.end(bye)
	saying.Wait()
	if restarted {
		return nil
	}
	return e.reason()
}

// reason is what is known of a session's end. A queue that is deleted, or whose node goes away,
// ends the consumer alone.
func (e *session) reason() error {
	for _, told := range [...]<-chan *amqp.Error{e.closed, e.broken} {
		select {
		case err := <-told:
			if err != nil {
				return err
			}
		default:
		}
	}
	return errors.New("the server cancelled the consumer: its queue was deleted or moved")
}

// lose ends e for everybody, and reports whether that was asked for.
func (s *Source) lose(e *session) (asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked = s.again == e
	s.live, s.again = nil, nil
	s.buffer = nil
	s.held = nil
	close(e.lost)
	return asked
}

// arrived takes in what the client has received.
func (s *Source) arrived(e *session, raw amqp.Delivery) {
	raw.Acknowledger = nil // whoever acknowledged it there would do so twice
	d := &delivery{raw: raw, of: e, at: time.Now()}
	d.own.tag = raw.DeliveryTag
	d.place = &d.own
	e.acks.arrive(d.place)
	s.mu.Lock()
	s.buffer = append(s.buffer, d)
	first := len(s.buffer) == 1
	s.mu.Unlock()
	if first {
		s.wake()
	}
}

// fresh is d as the consumer gets it for the first time.
func (d *delivery) fresh() consumer.Delivery {
	raw := d.raw.(amqp.Delivery)
	if fillMessage(&d.msg, &raw) {
		d.raw = raw
	}
	return d.handOut()
}

// handOut makes a consumer.Delivery of d, which nobody has seen yet.
func (d *delivery) handOut() consumer.Delivery {
	s := d.of.src
	d.msg.Raw, d.msg.Scope = d.raw, s.scope
	lane := ""
	if s.opt.Exclusive {
		lane = s.queue
	}
	return consumer.Delivery{
		Message: &d.msg, Lane: lane, Lost: d.of.lost, Settler: d,
		Deadline: d.deadline(),
	}
}

// deadline is when the server is soon to take d away.
func (d *delivery) deadline() time.Time { return d.at.Add(d.of.src.opt.usable()) }

// repeated is d as a new delivery, from the message as it came.
func (d *delivery) repeated() consumer.Delivery {
	n := &delivery{place: d.place, of: d.of, at: d.at}
	raw := d.raw.(amqp.Delivery)
	raw.Body = append([]byte{}, raw.Body...)
	fillMessage(&n.msg, &raw)
	n.raw = raw
	return n.handOut()
}

// stop ends e without a word; what is unacknowledged goes back to the queue in its order.
func (e *session) stop() { e.link.net.Close() }

// goodbye says what is due and ends the session by closing the channel, behind whose answer every word said on it has
// been taken. A quorum queue needs more: of many words the server's channel process keeps all but 32 to itself
// until the queue has applied those, and loses them if it is closed before. Cancelling the
// consumer waits for the queue. But it makes another consumer the active one, which would get what
// comes later while this session still holds what comes first: where there is an order, no more than
// one message at a time is acknowledged, and only the channel is closed.
func (e *session) goodbye() {
	_ = e.link.call(context.Background(), func() error { // else it is cut
		e.acks.flush()
		if e.src.opt.Exclusive {
			return e.ch.Close()
		}
		return errors.Join(e.ch.Cancel(consumerTag, false), e.ch.Close())
	})
	e.stop()
}

// consumerTag names the one consumer of a session's channel.
const consumerTag = "idemq"
