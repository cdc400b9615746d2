package rabbitmq

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// window is how many messages of one call may be without an answer.
	window = 500
	// room is how many of one line may be. Each can come back as unroutable before anybody
	// looks, and where there is no room for it the client stands still.
	room = 2000
)

// line is a connection with one channel in confirm mode.
type line struct {
	*link
	ch      *amqp.Channel
	returns chan amqp.Return
	room    chan struct{}
	blocked atomic.Bool
	ended   context.Context // when it is of no use any more, and why
	end     context.CancelCauseFunc

	mu      sync.Mutex
	waiting []*pending
}

// pending is a message without an answer.
type pending struct {
	*publishing
	confirm *amqp.DeferredConfirmation

	// Guarded by line.mu.
	returned  string // the server's reason
	abandoned bool   // nobody waits for the answer any more
}

func (p *producer) dial(ctx context.Context, node int) (*line, error) {
	k, err := p.cluster.connect(ctx, &p.conns, node, p.name)
	if err != nil {
		return nil, err
	}
	l := &line{link: k, returns: make(chan amqp.Return, room), room: make(chan struct{}, room)}
	l.ended, l.end = context.WithCancelCause(context.Background())
	lost := k.NotifyClose(make(chan *amqp.Error, 1))
	blocked := k.NotifyBlocked(make(chan amqp.Blocking, 4))
	closed := make(chan *amqp.Error, 1)
	l.ch, err = k.channel(ctx)
	if err == nil {
		closed = l.ch.NotifyClose(closed)
		l.ch.NotifyReturn(l.returns)
		err = k.call(ctx, func() error { return l.ch.Confirm(false) })
	}
	if err != nil {
		k.net.Close()
		return nil, err
	}
	p.wg.Go(func() { l.watch(p.ctx, lost, closed, blocked) })
	return l, nil
}

// watch waits for the end of l and ends what hangs on it.
func (l *line) watch(ctx context.Context, lost, closed <-chan *amqp.Error, blocked <-chan amqp.Blocking) {
	var why *amqp.Error
	for open := true; open; {
		select {
		case b, ok := <-blocked:
			l.blocked.Store(b.Active)
			if !ok { // closed with the connection
				blocked = nil
			}
			continue
		case why = <-closed:
		case why = <-lost:
		case <-ctx.Done():
		case <-l.ended.Done():
		}
		open = false
	}
	if why != nil {
		l.end(why)
	} else {
		l.end(amqp.ErrClosed)
	}
	goodbye, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	l.link.end(goodbye)
}

// send publishes those of ms that open names and returns those that got no answer.
func (l *line) send(ctx context.Context, ms []publishing, errs []error, open []int) (left []int) {
	var flying []*pending
	settled := 0
	settle := func() {
		i := open[settled]
		if err, known := l.await(ctx, flying[0]); known {
			errs[i] = err
		} else {
			left = append(left, i)
		}
		flying, settled = flying[1:], settled+1
	}
	for _, i := range open {
		if len(flying) == window {
			settle()
		}
		entered := l.enter(ctx, len(flying) == 0)
		for !entered && len(flying) > 0 {
			settle() // who waits with answers to come could wait for somebody who does the same
			entered = l.enter(ctx, len(flying) == 0)
		}
		if !entered {
			break
		}
		w := l.publish(ctx, &ms[i])
		if w == nil {
			break
		}
		flying = append(flying, w)
	}
	for len(flying) > 0 {
		settle()
	}
	return append(left, open[settled:]...)
}

// enter takes a place among those without an answer, and with wait waits for one.
func (l *line) enter(ctx context.Context, wait bool) bool {
	select {
	case l.room <- struct{}{}:
		return true
	default:
	}
	l.mu.Lock()
	l.sweep()
	l.mu.Unlock()
	if !wait {
		select {
		case l.room <- struct{}{}:
			return true
		default:
			return false
		}
	}
	select {
	case l.room <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-l.ended.Done():
	}
	return false
}

// publish sends m, whose place is taken, or gives the place back and returns nil.
func (l *line) publish(ctx context.Context, m *publishing) *pending {
	w := &pending{publishing: m}
	l.mu.Lock()
	l.waiting = append(l.waiting, w) // before it can come back
	l.mu.Unlock()
	var err error
	w.confirm, err = l.ch.PublishWithDeferredConfirmWithContext(ctx, m.exchange, m.key, true, false, m.Publishing)
	if err != nil {
		l.leave(w)
		return nil
	}
	return w
}

// await waits for the server's answer to w, and reports whether there was one.
func (l *line) await(ctx context.Context, w *pending) (err error, known bool) {
	select {
	case <-w.confirm.Done():
	case <-ctx.Done():
		l.mu.Lock()
		w.abandoned = true // its place is taken until it is answered
		l.mu.Unlock()
		return nil, false
	}
	why := l.leave(w)
	switch {
	case !w.confirm.Acked() && l.ch.IsClosed():
		<-l.ended.Done() // for the reason
		return nil, false
	case !w.confirm.Acked():
		return ErrRefused, true
	case why != "":
		return fmt.Errorf("%w: the server says %s", ErrUnroutable, why), true
	}
	return nil, true
}

// leave gives w's place back and returns why the server returned it, if it did: a return comes
// before the confirmation, so it is in the channel by now.
func (l *line) leave(w *pending) (why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for more := true; more; {
		select {
		case r, ok := <-l.returns:
			if more = ok; ok {
				l.came(&r)
			}
		default:
			more = false
		}
	}
	w.abandoned = true
	l.sweep()
	return w.returned
}

// sweep gives the places back of those whose answer has come and been seen, or is not waited for. With l.mu.
func (l *line) sweep() {
	l.waiting = slices.DeleteFunc(l.waiting, func(w *pending) bool {
		if !w.abandoned || !w.answered() {
			return false
		}
		<-l.room
		return true
	})
}

// answered is true, too, of what was never sent.
func (w *pending) answered() bool {
	if w.confirm == nil {
		return true
	}
	select {
	case <-w.confirm.Done():
		return true
	default:
		return false
	}
}

// came marks the message that came back. A return does not say which it is; of two that are
// equal either may be meant, since one of them has found a queue. With l.mu.
func (l *line) came(r *amqp.Return) {
	for _, w := range l.waiting {
		if w.returned == "" && w.exchange == r.Exchange && w.key == r.RoutingKey && w.MessageId == r.MessageId && bytes.Equal(w.Body, r.Body) {
			w.returned = fmt.Sprintf("%d %s", r.ReplyCode, r.ReplyText)
			return
		}
	}
}
