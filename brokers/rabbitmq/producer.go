package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemq/idemq/outbox"
	amqp "github.com/rabbitmq/amqp091-go"
)

// publishing is a message and where it goes.
type publishing struct {
	exchange, key string
	amqp.Publishing
}

// producer publishes with confirms, mandatory and persistent, on a connection of its own: one
// that publishes is stopped by the server when that is low on memory, acknowledgements included.
type producer struct {
	cluster Cluster
	name    string
	conns   conns

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	dialling chan struct{} // capacity 1: whose turn it is to dial

	mu     sync.Mutex
	line   *line // nil: none
	node   int   // of cluster.URLs, to begin with
	closed bool
}

func newProducer(c Cluster, name string) *producer {
	p := &producer{cluster: c, name: name, dialling: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background()) // ends with close
	return p
}

// send publishes ms in their order and answers errs[i] for ms[i]. What is without an answer when
// a connection breaks is sent again. The returned error means that the server could not be asked.
func (p *producer) send(ctx context.Context, ms []publishing, errs []error) error {
	open := make([]int, len(ms)) // without an answer
	for i := range ms {
		open[i] = i
	}
	dials := 0
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		l, err := p.get(ctx)
		if err != nil {
			// A connection may break while it is being made, as it may at any other time.
			if dials++; dials < maxDials && mayHelp(err) && sleep(ctx, pause) {
				continue
			}
			if len(open) == len(ms) {
				return err
			}
			fill(errs, open, outbox.Unavailable(err))
			return nil
		}
		open = l.send(ctx, ms, errs, open)
		if len(open) == 0 {
			return nil
		}
		cause := context.Cause(l.ended)
		if channelError(cause) {
			p.oneByOne(ctx, ms, errs, open)
			return nil
		}
		if ctx.Err() != nil || !sleep(ctx, pause) {
			away := cause == nil // it answers for others, and is silent about these
			if l.blocked.Load() {
				cause, away = errBlocked, true
			}
			err := fmt.Errorf("%w: %w", errUnknown, cmp.Or(cause, context.Cause(ctx)))
			if away {
				err = outbox.Unavailable(err)
			}
			fill(errs, open, err)
			return nil
		}
	}
}

// maxDials is how often one call tries to connect. Who called can wait for longer as it likes.
const maxDials = 3

// mayHelp reports whether connecting again at once may help.
func mayHelp(err error) bool {
	return !errors.Is(err, ErrClosed) && !errors.Is(err, errBlocked) && classify(err) != terminal
}

// oneByOne finds out which of those that open names makes the server close the channel, and so
// takes the answers of the others away. Its lines are its own: nobody else's message can be the one.
func (p *producer) oneByOne(ctx context.Context, ms []publishing, errs []error, open []int) {
	var l *line
	defer func() {
		if l != nil {
			l.end(ErrClosed)
		}
	}()
	for n, i := range open {
		if l == nil || l.ended.Err() != nil {
			var err error
			if l, err = p.dial(ctx, 0); err != nil {
				fill(errs, open[n:], outbox.Unavailable(err))
				return
			}
		}
		if len(l.send(ctx, ms, errs, open[n:n+1])) == 0 {
			continue
		}
		if cause := context.Cause(l.ended); channelError(cause) {
			errs[i] = cause
		} else {
			errs[i] = fmt.Errorf("%w: %w", errUnknown, cmp.Or(cause, context.Cause(ctx)))
		}
	}
}

func fill(errs []error, at []int, err error) {
	for _, i := range at {
		errs[i] = err
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// get is the open line, or a new one. It is an error while the server blocks publishers: what is
// sent then is taken when that is over, long after its sender has given it up.
func (p *producer) get(ctx context.Context) (*line, error) {
	select {
	case p.dialling <- struct{}{}:
		defer func() { <-p.dialling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	l, node, closed := p.line, p.node, p.closed
	p.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case l != nil && l.ended.Err() == nil && l.blocked.Load():
		return nil, errBlocked
	case l != nil && l.ended.Err() == nil:
		return l, nil
	}
	l, err := p.dial(ctx, node)
	if err != nil {
		p.mu.Lock()
		p.node++
		p.mu.Unlock()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = l
	return l, nil
}

// close ends what is under way once ctx ends.
func (p *producer) close(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	stop := context.AfterFunc(ctx, func() { p.conns.cut(true) })
	defer stop()
	p.wg.Wait()
	p.conns.cut(true)
}

// frame is the largest that the server takes, as far as it is known.
func (p *producer) frame() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == nil {
		return defaultFrame
	}
	return p.line.Config.FrameSize
}

// defaultFrame is the server's own default.
const defaultFrame = 128 << 10

// declare makes q on a connection of the producer.
func (p *producer) declare(ctx context.Context, q queue) error {
	l, err := p.get(ctx)
	if err != nil {
		return err
	}
	return l.declare(ctx, q)
}
