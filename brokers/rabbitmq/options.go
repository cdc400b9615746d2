package rabbitmq

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Cluster says how to reach RabbitMQ.
type Cluster struct {
	URLs []string // amqp[s]://user:pass@host:port/vhost of the nodes, tried in turn. Required.
	TLS  *tls.Config
}

// check refuses what cannot be meant. No message of it shows a URL, which may hold a password.
func (c Cluster) check() error {
	if len(c.URLs) == 0 {
		return errors.New("rabbitmq: Cluster.URLs is empty; name at least one node as amqp://user:pass@host:port/vhost")
	}
	for i, text := range c.URLs {
		u, err := amqp.ParseURI(text)
		if err != nil {
			var parse *url.Error
			if errors.As(err, &parse) {
				err = parse.Err
			}
			return fmt.Errorf("rabbitmq: Cluster.URLs[%d] is not amqp[s]://user:pass@host:port/vhost: %w", i, err)
		}
		if v := c.vhost(); u.Vhost != v {
			return fmt.Errorf("rabbitmq: Cluster.URLs[0] names virtual host %q and URLs[%d] %q: they would be two sets of queues; name one", v, i, u.Vhost)
		}
		if c.TLS != nil && u.Scheme != "amqps" {
			return fmt.Errorf("rabbitmq: Cluster.TLS is set, but URLs[%d] begins with %s, so it would be left unused and everything sent in the clear; write amqps", i, u.Scheme)
		}
	}
	return nil
}

// vhost is that of every URL.
func (c Cluster) vhost() string {
	u, err := amqp.ParseURI(c.URLs[0])
	if err != nil {
		return ""
	}
	return u.Vhost
}

// SourceOptions tune a Source; nil is the default.
type SourceOptions struct {
	// DeadLetterQueue takes the messages that are given up. Default: the queue + ".dead".
	DeadLetterQueue string
	// Delays are those of the wait queues, rounded up to milliseconds. Default: the policy's Backoff.
	Delays []time.Duration
	// Passive: wait and dead-letter queues are looked for instead of declared, for users
	// without the right to configure. [Topology] makes them.
	Passive bool
	// Prefetch is how many deliveries may be unsettled. It bounds what the process holds in
	// memory, and must not be below the policy's Concurrency. Default: twice the policy's Concurrency.
	Prefetch int
	// HandlerLimit is the server's consumer_timeout, which a client cannot read. Default: 30m, the server's own default.
	HandlerLimit time.Duration
	// Exclusive keeps the queue's order: its messages are one lane, and a message that has to be
	// tried again waits in memory and holds it. The queue must have a single active consumer
	// (see [Topology].Exclusive), or two processes share its messages out between them.
	Exclusive bool
	// Outage is the consumer outage that Plan.Window must outlast. Default: 24h.
	Outage time.Duration
	// Logger takes what is worth knowing but is no error of Receive. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultLimit  = 30 * time.Minute
	defaultOutage = 24 * time.Hour
	minLimit      = time.Second
	maxPrefetch   = 65535 // the protocol's
	maxName       = 255   // of anything the protocol calls a short string
	maxLimit      = 365 * 24 * time.Hour
	maxOutage     = 10 * maxLimit
	maxDelay      = math.MaxUint32 * time.Millisecond // the server's, of a time to live
	deadSuffix    = ".dead"
)

// fill returns a copy of o with its defaults.
func (o *SourceOptions) fill(queue string) SourceOptions {
	var f SourceOptions
	if o != nil {
		f = *o
	}
	f.DeadLetterQueue = cmp.Or(f.DeadLetterQueue, queue+deadSuffix)
	f.HandlerLimit = cmp.Or(f.HandlerLimit, defaultLimit)
	f.Outage = cmp.Or(f.Outage, defaultOutage)
	f.Logger = cmp.Or(f.Logger, slog.Default())
	f.Delays = slices.Clone(f.Delays)
	return f
}

func (o *SourceOptions) check(queue string) error {
	if err := checkQueue(queue, o.DeadLetterQueue, "SourceOptions.DeadLetterQueue"); err != nil {
		return err
	}
	if err := checkDelays(o.Delays, "SourceOptions.Delays"); err != nil {
		return err
	}
	switch {
	case o.Prefetch < 0:
		return fmt.Errorf("rabbitmq: SourceOptions.Prefetch %d is negative; leave it zero for twice the concurrency", o.Prefetch)
	case o.Prefetch > maxPrefetch:
		return fmt.Errorf("rabbitmq: SourceOptions.Prefetch %d is above %d, the most that the protocol has room for", o.Prefetch, maxPrefetch)
	case o.HandlerLimit < minLimit:
		return fmt.Errorf("rabbitmq: SourceOptions.HandlerLimit %v is below %v: no handler would ever start; leave it zero for %v", o.HandlerLimit, minLimit, defaultLimit)
	case o.HandlerLimit > maxLimit:
		return fmt.Errorf("rabbitmq: SourceOptions.HandlerLimit %v is above a year: it is part of the retry window, and records are kept for all of it; set what a handler may really take, and the server's consumer_timeout to no less", o.HandlerLimit)
	case o.Outage > maxOutage:
		return fmt.Errorf("rabbitmq: SourceOptions.Outage %v is above 10 years: records would be kept for so long; leave it zero for %v", o.Outage, defaultOutage)
	case o.Outage < 0:
		return fmt.Errorf("rabbitmq: SourceOptions.Outage %v is negative; leave it zero for %v", o.Outage, defaultOutage)
	case o.Exclusive && len(o.Delays) > 0:
		return errors.New("rabbitmq: SourceOptions.Exclusive and Delays are both set: a message in a wait queue would lose its place, so an exclusive source has none; leave Delays unset")
	}
	return nil
}

func checkQueue(queue, dead, option string) error {
	longest := len(queue) + len(".wait.9999h59m59.999s")
	switch {
	case queue == "":
		return errors.New("rabbitmq: the queue is empty; messages are consumed, and deduplicated, per queue")
	case queue == dead:
		return fmt.Errorf("rabbitmq: %s %q is the consumed queue: a message given up would come again at once, and for ever; dead-letter to another queue", option, dead)
	case longest > maxName || len(dead) > maxName:
		return fmt.Errorf("rabbitmq: queue %q is too long for its wait and dead letter queues to be named after it; the protocol allows names of %d bytes", queue, maxName)
	}
	return nil
}

func checkDelays(ds []time.Duration, option string) error {
	for _, d := range ds {
		if d <= 0 {
			return fmt.Errorf("rabbitmq: %s has %v; every delay must be above zero", option, d)
		}
		if d > maxDelay {
			return fmt.Errorf("rabbitmq: %s has %v; the server keeps no message for longer than %v", option, d, maxDelay)
		}
	}
	return nil
}

// usable is what of HandlerLimit handlers may use: the rest is for writing the verdict, and for
// clocks that do not agree.
func (o *SourceOptions) usable() time.Duration {
	return o.HandlerLimit - min(o.HandlerLimit/10, time.Minute)
}

// PublisherOptions tune a Publisher; nil is the default.
type PublisherOptions struct {
	// Timeout bounds one Publish or Redrive, reconnecting included. Default: 10s.
	Timeout time.Duration
}

const defaultPublishTimeout = 10 * time.Second
