package sqlstore

import (
	"context"
	"database/sql"
	"sync"
)

// lane is the connection on which beats go out while transactions of InTx run: those can hold all
// connections of the pool for longer than a lease, and a beat that waits for one would lose the
// claim whose transaction it waits for. It is taken with the first of the transactions and given back with
// the last, so an idle Store holds nothing.
type lane struct {
	db *sql.DB

	mu      sync.Mutex
	running int       // transactions
	conn    *sql.Conn // nil: none was free
	busy    bool      // a beat is on it
}

// reserve is called before a transaction begins. It takes a connection only where the pool has at least one
// more than that for the transaction itself, so two are never needed at once.
func (l *lane) reserve(ctx context.Context) (release func()) {
	l.mu.Lock()
	l.running++
	take := l.conn == nil && l.spare()
	l.mu.Unlock()
	if take {
		if c, err := l.db.Conn(ctx); err == nil {
			l.mu.Lock()
			if l.conn == nil {
				l.conn, c = c, nil
			}
			l.mu.Unlock()
			give(c)
		}
	}
	return l.release
}

// spare reports that two connections can be had now, of a pool of at least two.
func (l *lane) spare() bool {
	s := l.db.Stats()
	return s.MaxOpenConnections == 0 || s.InUse+2 <= s.MaxOpenConnections
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
