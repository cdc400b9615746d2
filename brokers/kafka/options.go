package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

// Cluster says how to reach Kafka.
type Cluster struct {
	Brokers []string // host:port of one broker or more, from which the others are learnt. Required.
	TLS     *tls.Config
	SASL    sasl.Mechanism
}

func (c Cluster) check() error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka: Cluster.Brokers is empty; name at least one broker as host:port")
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fmt.Errorf("kafka: Cluster.Brokers has %q, which is not host:port: %w", b, err)
		}
	}
	return nil
}

// transport is the connection pool of one source or publisher; ctx ends its goroutines. Its
// metadata are those of topics, or of all topics where none are named.
func (c Cluster) transport(ctx context.Context, ttl time.Duration, topics []string, dial dialFunc) *kafka.Transport {
	return &kafka.Transport{
		Context:        ctx,
		Dial:           dial,
		MetadataTTL:    ttl,
		MetadataTopics: topics,
		ClientID:       clientID,
		TLS:            c.TLS,
		SASL:           c.SASL,
	}
}

func (c Cluster) dialer(dial dialFunc) *kafka.Dialer {
	return &kafka.Dialer{
		ClientID:      clientID,
		DialFunc:      dial,
		Timeout:       dialTimeout,
		TLS:           c.TLS,
		SASLMechanism: c.SASL,
	}
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

const (
	clientID    = "idemq"
	dialTimeout = 5 * time.Second
)

// SourceOptions tune a Source; nil is the default.
type SourceOptions struct {
	// DeadLetterTopic takes the messages that are given up. It must not be compacted.
	// Default: the message's topic + ".dlt".
	DeadLetterTopic string
	// FromLatest: a new group begins at the end, which is committed at once. Default: at the beginning.
	FromLatest bool
	// LaneByKey keeps the order per record key instead of per partition: a lane is then a key
	// within its partition, so a message that waits holds back its own key alone. Records
	// without a key have no order.
	LaneByKey bool
	// MaxInFlight is how many deliveries of one partition may be unsettled. Default: 256.
	MaxInFlight int
	// Outage is the consumer outage that Plan.Window must outlast. Default: 24h.
	Outage time.Duration
	// SessionTimeout is how long the group waits for a member that is silent. It must lie
	// within the broker's group.min.session.timeout.ms and group.max.session.timeout.ms. Default: 30s.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the group waits for its members to join again; a third
	// of the shorter of both timeouts is what running handlers get to be counted when
	// partitions move. Default: SessionTimeout.
	RebalanceTimeout time.Duration
	// Logger takes what is worth knowing but is no error of Receive. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultInFlight = 256
	defaultOutage   = 24 * time.Hour
	defaultSession  = 30 * time.Second
	commitEvery     = time.Second
	maxWait         = 500 * time.Millisecond
	deadSuffix      = ".dlt"
	minSession      = 100 * time.Millisecond
	maxInFlight     = 1 << 20
	maxOutage       = 10 * 365 * 24 * time.Hour
	maxSession      = math.MaxInt32 * time.Millisecond // the protocol's
)

// fill returns a copy of o with its defaults.
func (o *SourceOptions) fill() SourceOptions {
	var f SourceOptions
	if o != nil {
		f = *o
	}
	f.MaxInFlight = cmp.Or(f.MaxInFlight, defaultInFlight)
	f.Outage = cmp.Or(f.Outage, defaultOutage)
	f.SessionTimeout = cmp.Or(f.SessionTimeout, defaultSession)
	f.RebalanceTimeout = cmp.Or(f.RebalanceTimeout, f.SessionTimeout)
	f.Logger = cmp.Or(f.Logger, slog.Default())
	return f
}

func (o *SourceOptions) check(group string, topics []string) error {
	switch {
	case group == "":
		return errors.New("kafka: the consumer group is empty; positions are kept, and messages deduplicated, per group")
	case len(topics) == 0:
		return errors.New("kafka: there is no topic to consume; name at least one")
	case o.MaxInFlight < 1:
		return fmt.Errorf("kafka: SourceOptions.MaxInFlight %d is below 1: nothing would ever be delivered; leave it zero for %d", o.MaxInFlight, defaultInFlight)
	case o.MaxInFlight > maxInFlight:
		return fmt.Errorf("kafka: SourceOptions.MaxInFlight %d is above %d: all of them are held in memory; leave it zero for %d", o.MaxInFlight, maxInFlight, defaultInFlight)
	case o.Outage > maxOutage:
		return fmt.Errorf("kafka: SourceOptions.Outage %v is above 10 years: records would be kept for so long; leave it zero for %v", o.Outage, defaultOutage)
	case o.SessionTimeout > maxSession:
		return fmt.Errorf("kafka: SourceOptions.SessionTimeout %v is above %v, the most that the protocol has room for; leave it zero for %v", o.SessionTimeout, maxSession, defaultSession)
	case o.RebalanceTimeout > maxSession:
		return fmt.Errorf("kafka: SourceOptions.RebalanceTimeout %v is above %v, the most that the protocol has room for; leave it zero for SessionTimeout %v", o.RebalanceTimeout, maxSession, o.SessionTimeout)
	case o.Outage < 0:
		return fmt.Errorf("kafka: SourceOptions.Outage %v is negative; leave it zero for %v", o.Outage, defaultOutage)
	case o.SessionTimeout < minSession:
		return fmt.Errorf("kafka: SourceOptions.SessionTimeout %v is below %v, too short for a heartbeat; leave it zero for %v", o.SessionTimeout, minSession, defaultSession)
	case o.RebalanceTimeout < minSession:
		return fmt.Errorf("kafka: SourceOptions.RebalanceTimeout %v is below %v; leave it zero for SessionTimeout %v", o.RebalanceTimeout, minSession, o.SessionTimeout)
	}
	for i, t := range topics {
		switch {
		case t == "":
			return fmt.Errorf("kafka: topic %d is empty", i+1)
		case !validTopic(t):
			return fmt.Errorf("kafka: topic %q is no name that Kafka takes: %s", t, topicRule)
		case !validTopic(o.deadLetterTopic(t)):
			return fmt.Errorf("kafka: the dead letter topic %q of topic %q is no name that Kafka takes, so no message could ever be given up; set SourceOptions.DeadLetterTopic to another: %s", o.deadLetterTopic(t), t, topicRule)
		case slices.Contains(topics[:i], t):
			return fmt.Errorf("kafka: topic %q is named twice; name it once", t)
		case t == o.DeadLetterTopic:
			return fmt.Errorf("kafka: SourceOptions.DeadLetterTopic %q is among the consumed topics: a message given up would come again at once, and for ever; dead-letter to another topic", t)
		case o.DeadLetterTopic == "" && slices.Contains(topics, t+deadSuffix):
			return fmt.Errorf("kafka: topics %q and %q are both consumed, and SourceOptions.DeadLetterTopic is unset, so the first dead-letters to the second: a message given up would come again at once; set DeadLetterTopic or consume %q in a group of its own", t, t+deadSuffix, t+deadSuffix)
		}
	}
	return nil
}

const topicRule = "letters, digits, '.', '_' and '-', at most 249 of them, and neither . nor .. alone"

// validTopic is the broker's own rule (its Topic.validate).
func validTopic(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 249 && strings.IndexFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r))
	}) < 0
}

// deadLetterTopic is where messages of topic go that are given up.
func (o *SourceOptions) deadLetterTopic(topic string) string {
	return cmp.Or(o.DeadLetterTopic, topic+deadSuffix)
}

// drain is what handed-out deliveries get to be settled when their partition is taken away. The
// client sends no heartbeats meanwhile, so it must be well below both timeouts, and leave
// room for the last commit.
func (o *SourceOptions) drain() time.Duration {
	return min(o.SessionTimeout, o.RebalanceTimeout) / 3
}

// coordinatorTimeout bounds one call to the group's coordinator.
func (o *SourceOptions) coordinatorTimeout() time.Duration {
	return min(max(o.SessionTimeout/2, time.Second), 5*time.Second)
}

func (o *SourceOptions) heartbeat() time.Duration { return min(o.SessionTimeout/10, 3*time.Second) }

func (o *SourceOptions) joinBackoff() time.Duration { return min(o.SessionTimeout/10, time.Second) }

// PublisherOptions tune a Publisher; nil is the default.
type PublisherOptions struct {
	// Timeout bounds one Publish or Redrive, the client's own retries included. Default: 10s.
	Timeout time.Duration
}

const defaultPublishTimeout = 10 * time.Second

// broker is the address list as the client takes it.
func (c Cluster) addr() net.Addr { return kafka.TCP(c.Brokers...) }

func (c Cluster) String() string { return strings.Join(c.Brokers, ",") }
