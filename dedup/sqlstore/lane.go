package sqlstore

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"sync"
)

// lane is the connection on which beats go out while transactions of InTx run: those can hold all
// connections of the pool for longer than a lease, and a beat that waits for one would lose the
// claim whose transaction it waits for. It is taken before the first of the transactions begins and given
// back with the last, so an idle Store holds nothing. Only so many transactions are let in as leave the pool that one
// connection: were all taken, a lane that broke could not be had again before one of them ends.
type lane struct {
	db *sql.DB

	mu      sync.Mutex
	running int             // transactions that were let in
	waiting []chan struct{} // those that were not yet, first come first
	opening chan struct{}   // closed when conn has been asked for
	conn    *sql.Conn
	busy    bool // a beat is on it
}

// smallPool has no connection to keep for beats: with one taken, work that holds another of its own
// would wait for its transaction for ever.
const smallPool = 2

// room is how many transactions may run at a time, and whether a connection is kept beside them.
func (l *lane) room() (transactions int, keep bool) {
	switch limit := l.db.Stats().MaxOpenConnections; {
	case limit <= 0:
		return math.MaxInt, true
	case limit <= smallPool:
		return math.MaxInt, false
	default:
		return limit - 1, true
	}
}

// reserve is called before a transaction begins, and release after it ended. The error is ctx's.
func (l *lane) reserve(ctx context.Context) (release func(), err error) {
	turn := make(chan struct{})
	l.mu.Lock()
	l.waiting = append(l.waiting, turn)
	l.admit()
	l.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		l.giveUp(turn)
		return nil, context.Cause(ctx)
	}
	l.open(ctx)
	return l.release, nil
}

// admit lets in who waits, as far as there is room. Called with mu held.
func (l *lane) admit() {
	room, _ := l.room()
	for len(l.waiting) > 0 && l.running < room {
		l.running++
		close(l.waiting[0])
		l.waiting = slices.Delete(l.waiting, 0, 1)
	}
}

// giveUp takes back a wish to be let in, which may have been granted by now.
func (l *lane) giveUp(turn chan struct{}) {
	l.mu.Lock()
	at := slices.Index(l.waiting, turn)
	if at >= 0 {
		l.waiting = slices.Delete(l.waiting, at, at+1)
	}
	l.mu.Unlock()
	if at < 0 {
		l.release()
	}
}

func (l *lane) release() {
	l.mu.Lock()
	l.running--
	l.admit()
	c := l.idle()
	l.mu.Unlock()
	give(c)
}

// open takes a connection where one is to be kept and is not.
func (l *lane) open(ctx context.Context) {
	l.mu.Lock()
	_, keep := l.room()
	opening := l.opening
	switch {
	case !keep, l.conn != nil, l.running == 0:
		l.mu.Unlock()
		return
	case opening != nil:
		l.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
		}
		return
	}
	l.opening = make(chan struct{})
	l.mu.Unlock()
	c, err := l.db.Conn(ctx)
	l.mu.Lock()
	if err == nil {
		l.conn = c
	}
	close(l.opening)
	l.opening = nil
	c = l.idle() // the transactions may be over by now
	l.mu.Unlock()
	give(c)
}

// idle takes the connection out where nobody needs it any more; called with mu held.
func (l *lane) idle() *sql.Conn {
	if l.running > 0 || l.busy {
		return nil
	}
	c := l.conn
	l.conn = nil
	return c
}

// give returns c to the pool. Its error is that it was broken, which the pool knows by then.
func give(c *sql.Conn) {
	if c != nil {
		_ = c.Close()
	}
}

// run calls f with the reserved connection, or with nil, which is the pool, where there is none or
// another beat is on it.
func (l *lane) run(ctx context.Context, f func(c conn) error) error {
	l.open(ctx) // it may have broken
	l.mu.Lock()
	c := l.conn
	if l.busy || c == nil {
		l.mu.Unlock()
		return f(nil)
	}
	l.busy = true
	l.mu.Unlock()
	err := f(c)
	l.mu.Lock()
	l.busy = false
	if err != nil { // broken, perhaps
		l.conn = nil
	} else {
		c = l.idle()
	}
	l.mu.Unlock()
	give(c)
	if err != nil {
		l.open(ctx) // at once: somebody else would take its place in the pool
	}
	return err
}
