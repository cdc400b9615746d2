package sqlstore

import (
	"context"
	"database/sql"
	"sync"
)

// lane is the connection on which beats go out while transactions of InTx run: those can hold all
// connections of the pool for longer than a lease, and a beat that waits for one would lose the
// claim whose transaction it waits for. It is taken before the first of the transactions begins and given
// back with the last, so an idle Store holds nothing.
type lane struct {
	db *sql.DB

	mu      sync.Mutex
	running int           // transactions
	opening chan struct{} // closed when conn has been asked for
	conn    *sql.Conn
	busy    bool // a beat is on it
}

// smallPool has no connection to keep for beats: with one taken, work that holds another of its own
// would wait for its transaction for ever.
const smallPool = 2

// reserve is called before a transaction begins, and release after it ended.
func (l *lane) reserve(ctx context.Context) (release func()) {
	l.mu.Lock()
	l.running++
	limit := l.db.Stats().MaxOpenConnections
	opening := l.opening
	switch {
	case l.conn != nil, limit > 0 && limit <= smallPool:
		l.mu.Unlock()
	case opening != nil:
		l.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
		}
	default:
		l.opening = make(chan struct{})
		l.mu.Unlock()
		c, err := l.db.Conn(ctx)
		l.mu.Lock()
		if err == nil {
			l.conn = c
		}
		close(l.opening)
		l.opening = nil
		l.mu.Unlock()
	}
	return l.release
}

func (l *lane) release() {
	l.mu.Lock()
	l.running--
	c := l.idle()
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
func (l *lane) run(f func(c conn) error) error {
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
	if err != nil { // broken, perhaps: the next transaction takes another
		l.conn = nil
	} else {
		c = l.idle()
	}
	l.mu.Unlock()
	give(c)
	return err
}
