package kafka

import (
	"context"
	"net"
	"sync"
)

// conns are the connections a source has dialled. The client's calls to a group's coordinator
// take no context and may wait half a minute for other members; cutting their
// connection is the only way to end them sooner.
type conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
	shut bool
}

type conn struct {
	net.Conn
	of *conns
}

func (c *conns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		n.Close()
		return nil, net.ErrClosed
	}
	if c.open == nil {
		c.open = make(map[*conn]struct{})
	}
	t := &conn{Conn: n, of: c}
	c.open[t] = struct{}{}
	return t, nil
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// cut closes what is open. With shut, nothing is dialled any more.
func (c *conns) cut(shut bool) {
	c.mu.Lock()
	c.shut = c.shut || shut
	var open []*conn
	for t := range c.open {
		open = append(open, t)
	}
	c.mu.Unlock()
	for _, t := range open {
		t.Close()
	}
}
