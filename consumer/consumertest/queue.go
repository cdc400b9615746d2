package consumertest

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
)

// queue is what the members of a Broker share.
type queue struct {
	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when a waiting Receive or Drain may find something
	n       int           // published so far
	open    int           // published and not settled for good
	ready   []*item       // by seq
	later   []*item       // by due
	out     map[*item]bool
	past    map[*item]bool // settled for good, and never forgotten: Redeliver brings it again
	lanes   map[string]*lane
	dead    []consumer.Message
}

// item is one published message, wherever it is.
type item struct {
	msg consumer.Message // as published
	seq int
	due time.Time // in later

	// In out:
	to       *session
	deadline time.Time
}

// lane is a Key that has unsettled deliveries: until they are settled, one session has it.
type lane struct {
	to *session
	n  int
}

func newQueue() *queue {
	return &queue{
		changed: make(chan struct{}), lanes: make(map[string]*lane),
		out: make(map[*item]bool), past: make(map[*item]bool),
	}
}

// wake has everyone who waits look again. With q.mu, like everything below that says nothing else.
func (q *queue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// publish locks q.
func (q *queue) publish(ms []consumer.Message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range ms {
		q.n++
		q.open++
		q.ready = append(q.ready, &item{msg: m, seq: q.n}) // the highest seq
	}
	q.wake()
}

// again puts it back into its place, so that those of one lane keep their order.
func (q *queue) again(it *item) {
	i, _ := slices.BinarySearchFunc(q.ready, it, func(a, b *item) int { return cmp.Compare(a.seq, b.seq) })
	q.ready = slices.Insert(q.ready, i, it)
	q.wake()
}

// postpone keeps it until due.
func (q *queue) postpone(it *item, due time.Time) {
	it.due = due
	i, _ := slices.BinarySearchFunc(q.later, it, func(a, b *item) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.seq, b.seq))
	})
	q.later = slices.Insert(q.later, i, it)
	q.wake()
}

// done settles it for good.
func (q *queue) done(it *item) {
	q.open--
	q.past[it] = true
	q.wake()
}

// back takes it out of the hands of the session that has it.
func (q *queue) back(it *item) {
	delete(q.out, it)
	it.to.unsettled--
	it.to = nil
	if l := q.lanes[it.msg.Key]; l != nil {
		if l.n--; l.n == 0 {
			delete(q.lanes, it.msg.Key)
		}
	}
}

// lose ends s, or every session if it is nil; with past, what was settled for good comes
// again, too. It locks q.
func (q *queue) lose(s *session, past bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.loseLocked(s)
	if !past {
		return
	}
	for it := range q.past {
		delete(q.past, it)
		q.open++
		q.again(it)
	}
}

func (q *queue) loseLocked(s *session) {
	for it := range q.out {
		if s != nil && it.to != s {
			continue
		}
		it.to.end()
		q.back(it)
		q.again(it)
	}
	if s != nil {
		s.end()
	}
}

// pull hands up to max messages to s. Without any it tells when to look again at the latest,
// if ever.
func (q *queue) pull(s *session, max int, now time.Time) (its []*item, next time.Time) {
	for len(q.later) > 0 && !q.later[0].due.After(now) {
		it := q.later[0]
		q.later = q.later[1:]
		q.again(it)
	}
	var kept []*item // those that another session must have
	i := 0
	for ; i < len(q.ready) && len(its) < max; i++ {
		it := q.ready[i]
		if l := q.lanes[it.msg.Key]; l != nil && l.to != s {
			kept = append(kept, it)
			continue
		}
		q.hand(it, s)
		its = append(its, it)
	}
	clear(q.ready[:i-len(kept)])
	q.ready = q.ready[i-len(kept):]
	copy(q.ready, kept)
	if len(q.later) > 0 {
		next = q.later[0].due
	}
	return its, next
}

func (q *queue) hand(it *item, s *session) {
	it.to = s
	q.out[it] = true
	s.unsettled++
	if it.msg.Key == "" {
		return
	}
	l := q.lanes[it.msg.Key]
	if l == nil {
		l = &lane{to: s}
		q.lanes[it.msg.Key] = l
	}
	l.n++
}

// deadline returns the earliest deadline of what s has.
func (q *queue) deadline(s *session) (first time.Time) {
	for it := range q.out {
		if it.to == s && (first.IsZero() || it.deadline.Before(first)) {
			first = it.deadline
		}
	}
	return first
}
