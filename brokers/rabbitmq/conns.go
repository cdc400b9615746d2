package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	dialTimeout = 5 * time.Second  // of one node: to connect and to agree on everything
	callTimeout = 10 * time.Second // of one call that waits for the server's answer
	// writeTimeout is for how long a write may find no room. A server that is low on memory or
	// disk space stops reading, and without this a write to it would never return.
	writeTimeout = 10 * time.Second
	heartbeat    = 10 * time.Second
	closeGrace   = 2 * time.Second // for the server to say goodbye
)

// conns are the network connections that a source or publisher has dialled. The client's calls
// take no context; closing the connection under them is the only way to end them.
type conns struct {
	mu   sync.Mutex
	open map[*conn]struct{}
	shut bool
}

type conn struct {
	net.Conn
	of  *conns
	out *writer
}

func (c *conns) dial(ctx context.Context, network, address string) (*conn, error) {
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
	t := &conn{Conn: n, of: c, out: newWriter(n)}
	c.open[t] = struct{}{}
	return t, nil
}

func (c *conn) Write(b []byte) (int, error) { return c.out.Write(b) }

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	c.out.close(net.ErrClosed)
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

// link is a connection to the server, and what it takes to end a call on it.
type link struct {
	*amqp.Connection
	net *conn
}

// connect tries c's nodes in turn, beginning with the from-th. The error is that of the last
// one, unless another's tells that waiting may help.
func (c Cluster) connect(ctx context.Context, cs *conns, from int, name string) (*link, error) {
	var result error
	for i := range c.URLs {
		l, err := c.connectTo(ctx, cs, c.URLs[(from+i)%len(c.URLs)], name)
		if err == nil {
			return l, nil
		}
		if result == nil || classify(result) == terminal {
			result = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, result
}

func (c Cluster) connectTo(ctx context.Context, cs *conns, url, name string) (*link, error) {
	l := new(link)
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var address string
	stop := func() bool { return true }
	config := amqp.Config{
		Heartbeat:  heartbeat,
		Properties: amqp.NewConnectionProperties(),
		Dial: func(network, addr string) (net.Conn, error) {
			address = addr
			n, err := cs.dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			l.net = n
			stop = context.AfterFunc(ctx, func() { n.Close() }) // the handshake knows no deadline of its own
			return n, nil
		},
	}
	if c.TLS != nil {
		config.TLSClientConfig = c.TLS.Clone() // the client writes the server's name into it
	}
	config.Properties.SetClientConnectionName(name)
	var err error
	l.Connection, err = amqp.DialConfig(url, config)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if l.net != nil {
			l.net.Close()
		}
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return l, nil
}

// call runs f, which waits for the server, and cuts the connection when ctx or callTimeout ends first.
func (l *link) call(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.net.Close() })
	err := f()
	if !stop() {
		return fmt.Errorf("the server does not answer: %w", context.Cause(ctx))
	}
	return err
}

// channel opens a channel within ctx.
func (l *link) channel(ctx context.Context) (ch *amqp.Channel, err error) {
	err = l.call(ctx, func() (err error) {
		ch, err = l.Channel()
		return err
	})
	return ch, err
}

// end says goodbye, or closes the connection where the server does not answer in time.
func (l *link) end(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { l.net.Close() })
	defer stop()
	cut := time.AfterFunc(closeGrace, func() { l.net.Close() })
	defer cut.Stop()
	_ = l.Connection.Close() // what it did not say, its end says
	l.net.Close()
}
