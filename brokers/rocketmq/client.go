package rocketmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// client reaches name servers and brokers. It opens a connection to each when it is first
// asked for and keeps it until it breaks.
type client struct {
	cluster Cluster
	notify  func(*conn, *command)

	mu     sync.Mutex
	conns  map[string]*conn
	closed bool
	routes map[string]route
	server int // the name server asked last
}

const (
	dialTimeout = 5 * time.Second
	callTimeout = 5 * time.Second
)

func newClient(c Cluster, notify func(*conn, *command)) *client {
	if notify == nil {
		notify = func(*conn, *command) {}
	}
	return &client{cluster: c, notify: notify, conns: make(map[string]*conn), routes: make(map[string]route)}
}

// connect answers the connection to addr, made anew where the last one is broken.
func (c *client) connect(ctx context.Context, addr string) (*conn, error) {
	c.mu.Lock()
	cn, closed := c.conns[addr], c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case cn != nil && cn.alive():
		return cn, nil
	}
	n, err := c.dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		n.Close()
		return nil, ErrClosed
	}
	if cn := c.conns[addr]; cn != nil && cn.alive() { // another call was quicker
		c.mu.Unlock()
		n.Close()
		return cn, nil
	}
	cn = newConn(n, addr, c.cluster.Credentials, c.notify)
	c.conns[addr] = cn
	c.mu.Unlock()
	return cn, nil
}

func (c *client) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if c.cluster.TLS != nil {
		return (&tls.Dialer{Config: c.cluster.TLS}).DialContext(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// call asks addr and answers a reply whose code is one of ok; any other code is an *Error.
func (c *client) call(ctx context.Context, addr string, cmd command, ok ...int) (*command, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cn, err := c.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	return cn.ask(ctx, cmd, ok...)
}

// ask is call on one connection.
func (c *conn) ask(ctx context.Context, cmd command, ok ...int) (*command, error) {
	reply, err := c.call(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if reply.Code == codeSuccess || slices.Contains(ok, reply.Code) {
		return reply, nil
	}
	return nil, &Error{Code: reply.Code, Remark: reply.Remark}
}

// cut breaks every connection; new ones are made when they are needed.
func (c *client) cut() {
	c.mu.Lock()
	cns := c.conns
	c.conns = make(map[string]*conn)
	c.mu.Unlock()
	for _, cn := range cns {
		cn.close()
	}
}

// close ends every connection, for good.
func (c *client) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cut()
}

// ofNameServer asks the name servers one after the other, beginning with the one that
// answered last, until one answers.
func (c *client) ofNameServer(ctx context.Context, cmd command) (*command, error) {
	servers := c.cluster.NameServers
	c.mu.Lock()
	first := c.server
	c.mu.Unlock()
	var errs []error
	for i := range servers {
		at := (first + i) % len(servers)
		reply, err := c.call(ctx, servers[at], cmd)
		var refused *Error
		if err == nil || errors.As(err, &refused) {
			c.mu.Lock()
			c.server = at
			c.mu.Unlock()
			return reply, err
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("no name server answers: %w", errors.Join(errs...))
}
