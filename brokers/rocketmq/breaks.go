package rocketmq

import (
	"fmt"
	"time"
)

// breaks counts the connections to one broker that broke before they brought an answer to a pull. The first is made anew at once;
// without a delay behind the others a broker that hangs up on each pull would be connected to hundreds of times a second.
type breaks struct {
	n     int
	last  *conn
	until time.Time // it is not connected to before
}

// broke takes note of it once for all queues of the connection.
func (s *Source) broke(cn *conn, err error) {
	s.mu.Lock()
	b := s.breaks[cn.addr]
	again := b.last == cn
	if !again {
		b.n++
		b.last = cn
		if b.n > 1 {
			b.until = time.Now().Add(backoff(b.n - 1))
		}
		s.breaks[cn.addr] = b
	}
	closed := s.closed
	s.mu.Unlock()
	if !again && !closed && s.quiet.allow("broken "+cn.addr) {
		s.log.Warn("rocketmq: the connection to a broker is lost, and its queues with it; connecting again", "broker", cn.addr, "error", err)
	}
}

func (s *Source) healed(cn *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.breaks, cn.addr)
}

// reconnectable is an error while a broker is left alone.
func (s *Source) reconnectable(addr string) error {
	s.mu.Lock()
	b := s.breaks[addr]
	s.mu.Unlock()
	if d := time.Until(b.until); d > 0 {
		return fmt.Errorf("%d connections to it broke one after the other; the next is made in %v", b.n, d.Round(time.Millisecond))
	}
	return nil
}
