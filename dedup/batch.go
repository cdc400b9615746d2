package dedup

import (
	"context"
	"sync"
)

// maxBatch bounds one store call: above it a call takes longer than the round trip it saves.
const maxBatch = 1024

// maxCalls is how many store calls of one kind run at once. While they do, the next batch
// gathers; there is no timer, so an idle system pays no latency. The second call keeps the
// store busy while the first one's answers are read.
const maxCalls = 2

// batcher joins the requests of many callers into few store calls.
type batcher[Q, A any] struct {
	do   func(ctx context.Context, in []Q, out []A) error
	held func(*Q) *ClaimRequest
	// apart keeps two requests out of one store call. Those of one caller are not kept apart. May be nil.
	apart func(a, b *Q) bool
	// failed is the answer to an item of a store call that failed.
	failed func(error) A
	// fold answers a request from what its twin (the same work) was answered in the same
	// call. nil: a twin goes into the next call.
	fold func(follower *Q, leader A) A
	// orphaned cleans up answers that reach nobody, because the caller's ctx has ended. May be nil.
	orphaned func(in []Q, out []A)

	mu      sync.Mutex
	pending []*call[Q, A]
	running int
}

// call is one caller's request: its items may be answered by several store calls.
type call[Q, A any] struct {
	ctx    context.Context // values only
	in     []Q
	out    []A
	left   int   // items without an answer, guarded by batcher.mu
	next   int   // first item not yet sent
	outage error // of the last store call that failed
	done   chan struct{}
	gone   bool // the caller's ctx ended; guarded by batcher.mu
}

// submit answers out[i] for in[i]. What it is given is sent, even where ctx has ended or ends meanwhile,
// so that the caller knows; whoever does not want that looks at ctx first. It keeps in and out until every store call that carries
// them is over, which may be after it returned with ctx's error. outage is that of a store call that
// carried some of them and failed; they, and no others, are answered with it.
func (b *batcher[Q, A]) submit(ctx context.Context, in []Q, out []A) (outage, err error) {
	if len(in) == 0 {
		return nil, nil
	}
	c := &call[Q, A]{ctx: context.WithoutCancel(ctx), in: in, out: out, left: len(in), done: make(chan struct{})}
	b.mu.Lock()
	b.pending = append(b.pending, c)
	if b.running < maxCalls {
		b.running++
		go b.run()
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.outage, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.done: // answered meanwhile
		return c.outage, nil
	default:
		c.gone = true
		return nil, context.Cause(ctx)
	}
}

// run makes store calls until nothing is pending. Every call of submit outlives the run that
// serves it, or has been told by its ctx to leave.
func (b *batcher[Q, A]) run() {
	b.mu.Lock()
	for len(b.pending) > 0 {
		r := b.gather()
		b.mu.Unlock()
		err := b.do(r.ctx, r.in, r.out)
		b.mu.Lock()
		b.deliver(r, err)
	}
	b.running--
	b.mu.Unlock()
}

// round is the content of one store call.
type round[Q, A any] struct {
	ctx     context.Context
	in      []Q
	out     []A
	from    []slot[Q, A] // nil: all of one call, in place
	whole   *call[Q, A]
	folded  []slot[Q, A]
	leaders []int // of folded: index into in
}

type slot[Q, A any] struct {
	c *call[Q, A]
	i int
}

// gather takes pending requests, at most one per key. Called with b.mu held.
func (b *batcher[Q, A]) gather() *round[Q, A] {
	first := b.pending[0]
	r := &round[Q, A]{ctx: first.ctx}
	if len(b.pending) == 1 && first.next == 0 && b.distinct(first.in) { // nothing to copy
		b.pending[0] = nil
		b.pending = b.pending[:0]
		first.next = len(first.in)
		r.in, r.out, r.whole = first.in, first.out, first
		return r
	}
	seen := make(map[Key]int)
	rest := b.pending[:0]
	for _, c := range b.pending {
		for ; c.next < len(c.in) && len(r.in) < maxBatch; c.next++ {
			q := &c.in[c.next]
			if b.apart != nil && len(r.in) > 0 && b.apart(&r.in[0], q) {
				break
			}
			if at, twice := seen[b.held(q).Key]; twice {
				if b.fold == nil || !sameWork(b.held(&r.in[at]), b.held(q)) {
					break // in the next round; the caller's later items wait behind it
				}
				r.folded, r.leaders = append(r.folded, slot[Q, A]{c, c.next}), append(r.leaders, at)
				continue
			}
			seen[b.held(q).Key] = len(r.in)
			r.in, r.from = append(r.in, *q), append(r.from, slot[Q, A]{c, c.next})
		}
		if c.next < len(c.in) {
			rest = append(rest, c)
		}
	}
	clear(b.pending[len(rest):])
	b.pending = rest
	r.out = make([]A, len(r.in))
	return r
}

// distinct reports that in fits into one store call as it is.
func (b *batcher[Q, A]) distinct(in []Q) bool {
	if len(in) > maxBatch {
		return false
	}
	if len(in) == 1 {
		return true
	}
	seen := make(map[Key]struct{}, len(in))
	for i := range in {
		seen[b.held(&in[i]).Key] = struct{}{}
	}
	return len(seen) == len(in)
}

func sameWork(a, b *ClaimRequest) bool {
	return a.Redrive == b.Redrive && a.Fingerprint == b.Fingerprint && a.MustExist == b.MustExist
}

// deliver hands out the answers of r. Called with b.mu held.
func (b *batcher[Q, A]) deliver(r *round[Q, A], err error) {
	if err != nil { // whatever stands in out is no answer
		for i := range r.out {
			r.out[i] = b.failed(err)
		}
	}
	if r.whole != nil {
		b.answered(r.whole, len(r.in), err)
		return
	}
	for i, s := range r.from {
		s.c.out[s.i] = r.out[i]
		b.answered(s.c, 1, err)
	}
	for i, s := range r.folded {
		s.c.out[s.i] = b.fold(&s.c.in[s.i], r.out[r.leaders[i]])
		b.answered(s.c, 1, err)
	}
}

func (b *batcher[Q, A]) answered(c *call[Q, A], n int, err error) {
	if err != nil {
		c.outage = err
	}
	if c.left -= n; c.left > 0 {
		return
	}
	close(c.done)
	if c.gone && b.orphaned != nil {
		go b.orphaned(c.in, c.out)
	}
}
