package consumer

import (
	"container/heap"
	"time"

	"github.com/idemq/idemq/dedup"
)

// task is one delivery on its way from Receive to its settle. Only the engine's goroutine
// touches it, except while a call or a handler that was given it is under way.
type task struct {
	Delivery
	work    dedup.Work
	unnamed bool // no rule names it: it has no record
	rekeyed bool // its ID stood for other content: it works under ID and fingerprint

	state taskState
	lane  *lane
	own   lane // of a task that shares none

	countedIn *lane // by askers.count
	claim     *dedup.Claim
	tries     int // failed attempts of an unnamed task

	outcome dedup.Outcome // being written, or to be
	then    next          // what follows it
	answer  error         // of the store to outcome
	settled bool          // Ack or GiveBack has been called, beside the store call
	delay   time.Duration // before the next attempt

	cutOff   int   // transactions in a row that the database went away in
	cutOffBy error // set: they were too many

	result  error // of the handler
	started bool
	ended   error         // cause of the handler's context, if that had ended
	took    time.Duration // of the handler

	suspect   bool          // its record tells of a crash: it runs alone, in turn
	pause     time.Duration // before asking again after work in progress elsewhere
	heldSince time.Time     // when it was first found in progress elsewhere; counted in engine.holding
	readyAt   time.Time
	wakeAt    time.Time // while waiting; zero: for a turn, not for a time
	heapAt    int       // 1 + index in timers; 0: not in there

	leader            *task // while following
	followers         []*task
	passed            bool  // lanes go on without it: it has run, or never will
	prev, nextInOrder *task // in engine.live
}

type taskState uint8

const (
	queued    taskState = iota // to be claimed
	parked                     // behind a head that waits, so it must not be claimed
	claiming                   // in a claim call
	ready                      // claimed, to be run
	running                    // given to a worker
	ending                     // its outcome is being written, or the broker is being told
	waiting                    // for its time, or, as a suspect, for its turn
	following                  // a twin in this process is on its way; its fate decides
	gone                       // settled
)

// next is what follows an outcome that the store has taken.
type next uint8

const (
	thenAck      next = iota + 1 // done
	thenRetry                    // failed: again after delay
	thenBury                     // condemned: dead letter, then Failed
	thenAckDead                  // failed for good, its dead letter confirmed
	thenPark                     // released: ask again when it may be held
	thenGiveBack                 // released: for others
)

// twin is what deliveries share that are the same work.
type twin struct {
	id      string
	redrive int
	print   dedup.Fingerprint
}

func (t *task) twin() twin { return twin{t.work.ID, t.work.Redrive, t.work.Fingerprint} }

// isLost reports that the session behind t is gone.
func (t *task) isLost() bool {
	select {
	case <-t.Lost:
		return true
	default:
		return false
	}
}

// overdue reports that what is begun now and takes d could outlast t's deadline.
func (t *task) overdue(now time.Time, d time.Duration) bool {
	return !t.Deadline.IsZero() && !now.Add(d).Before(t.Deadline) // wait ends at this moment: what was not overdue then would only wait again
}

// lane is a sequence of deliveries that are handled one after the other.
type lane struct {
	name   string
	q      []*task // in the order of delivery; those that left have another lane
	busy   bool    // a worker has some of it
	listed bool    // in engine.runnable
	held   bool    // its head waits, so nothing behind it is claimed

	asked   []*task // to be claimed, in order; those that are not queued any more are passed over
	asking  bool    // in askers.ring
	claimed int     // of askers.held

	room, askedRoom [1]*task // of q and asked, while they hold one
}

// head drops what has left and returns the first task, or nil.
func (l *lane) head() *task {
	for len(l.q) > 0 && l.q[0].lane != l {
		l.q[0] = nil
		l.q = l.q[1:]
	}
	if len(l.q) == 0 {
		return nil
	}
	return l.q[0]
}

// timers is a heap of waiting tasks by wakeAt.
type timers []*task

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].wakeAt.Before(h[j].wakeAt) }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i+1, j+1
}
func (h *timers) Push(x any) {
	t := x.(*task)
	*h = append(*h, t)
	t.heapAt = len(*h)
}
func (h *timers) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.heapAt = 0
	return t
}

func (h *timers) set(t *task, at time.Time) {
	t.wakeAt = at
	if t.heapAt > 0 {
		heap.Fix(h, t.heapAt-1)
	} else {
		heap.Push(h, t)
	}
}

func (h *timers) drop(t *task) {
	if t.heapAt > 0 {
		heap.Remove(h, t.heapAt-1)
	}
}

// taskList holds every live task, in order of arrival.
type taskList struct {
	first, last *task
	n           int
}

func (l *taskList) add(t *task) {
	t.prev = l.last
	if l.last != nil {
		l.last.nextInOrder = t
	} else {
		l.first = t
	}
	l.last = t
	l.n++
}

func (l *taskList) remove(t *task) {
	if t.prev != nil {
		t.prev.nextInOrder = t.nextInOrder
	} else {
		l.first = t.nextInOrder
	}
	if t.nextInOrder != nil {
		t.nextInOrder.prev = t.prev
	} else {
		l.last = t.prev
	}
	t.prev, t.nextInOrder = nil, nil
	l.n--
}

// each calls f for every task that is live now; f may remove any.
func (l *taskList) each(f func(*task)) {
	all := make([]*task, 0, l.n)
	for t := l.first; t != nil; t = t.nextInOrder {
		all = append(all, t)
	}
	for _, t := range all {
		if t.state != gone {
			f(t)
		}
	}
}
