package rabbitmq

import (
	"slices"
	"sync"
)

// acks says one session's acknowledgements. To the server each word is nearly the work that a
// message is; so while some are on their way the next ones gather, and those that follow each
// other without a gap are said as one. Nothing waits for more to come.
type acks struct {
	say   func(tag uint64, multiple bool)
	ready chan struct{} // capacity 1: some are due

	saying sync.Mutex // held from taking words to saying them, so that words keep their order

	mu          sync.Mutex
	first, last *place   // what the server has delivered and nobody has settled, by tag
	due         []uint64 // acknowledged, and not yet said
}

// place is a delivery's, among those of its session.
type place struct {
	tag          uint64
	before, next *place
}

func newAcks(say func(tag uint64, multiple bool)) *acks {
	return &acks{say: say, ready: make(chan struct{}, 1)}
}

// arrive takes in a delivery. Their tags ascend.
func (a *acks) arrive(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.before = a.last; a.last != nil {
		a.last.next = p
	} else {
		a.first = p
	}
	a.last = p
}

// ack settles p. It is said by the next flush.
func (a *acks) ack(p *place) {
	a.mu.Lock()
	a.remove(p)
	a.due = append(a.due, p.tag)
	a.mu.Unlock()
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

// drop settles p, of which the server has been told otherwise: not before, or an acknowledgement
// of what lies around it would be one of p.
func (a *acks) drop(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(p)
}

// remove is with a.mu.
func (a *acks) remove(p *place) {
	if p.before != nil {
		p.before.next = p.next
	} else {
		a.first = p.next
	}
	if p.next != nil {
		p.next.before = p.before
	} else {
		a.last = p.before
	}
	p.before, p.next = nil, nil
}

// flush says what is due. It returns once everything acknowledged before is said.
func (a *acks) flush() {
	a.saying.Lock()
	defer a.saying.Unlock()
	a.mu.Lock()
	due, first := a.due, a.first
	a.due = nil
	a.mu.Unlock()
	slices.Sort(due)
	n := len(due) // of those that nothing unsettled lies before
	if first != nil {
		n, _ = slices.BinarySearch(due, first.tag)
	}
	if n > 0 {
		a.say(due[n-1], n > 1)
	}
	for _, tag := range due[n:] {
		a.say(tag, false)
	}
}

// run says what is due until lost is closed; written returns when what was said has left the process.
func (a *acks) run(lost <-chan struct{}, written func()) {
	for {
		select {
		case <-a.ready:
		case <-lost:
			return
		}
		a.flush()
		written()
	}
}
