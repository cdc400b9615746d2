package rocketmq

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Cluster says how to reach RocketMQ by the remoting protocol.
type Cluster struct {
	NameServers []string // host:port of each; the host may be a name. Required.
	TLS         *tls.Config
	Credentials primitive.Credentials
	Namespace   string // goes in front of the names of topics and groups. Default: none.
}

func (c Cluster) check() error {
	if len(c.NameServers) == 0 {
		return errors.New("rocketmq: Cluster.NameServers is empty; name at least one name server as host:port")
	}
	for _, s := range c.NameServers {
		if strings.ContainsAny(s, ",;") {
			return fmt.Errorf("rocketmq: Cluster.NameServers has %q, which is a list in one string; give each name server a string of its own", s)
		}
		if _, _, err := net.SplitHostPort(s); err != nil {
			return fmt.Errorf("rocketmq: Cluster.NameServers has %q, which is not host:port: %w", s, err)
		}
	}
	if n := c.Namespace; n != "" && !nameForm.MatchString(n) {
		return fmt.Errorf("rocketmq: Cluster.Namespace %q has other characters than letters, digits, - and _", n)
	}
	if k := c.Credentials; (k.AccessKey == "") != (k.SecretKey == "") {
		return errors.New("rocketmq: Cluster.Credentials has only one of AccessKey and SecretKey; set both or none")
	}
	return nil
}

// nameForm are the names that brokers take.
var nameForm = regexp.MustCompile(`^[%|a-zA-Z0-9_-]+$`)

const (
	topicLimit = 127
	groupLimit = 120
)

// wire is a topic or group as brokers know it.
func (c Cluster) wire(name string) string {
	if c.Namespace == "" || strings.HasPrefix(name, c.Namespace+"%") {
		return name
	}
	return c.Namespace + "%" + name
}

// bare undoes wire.
func (c Cluster) bare(name string) string {
	if c.Namespace == "" {
		return name
	}
	return strings.TrimPrefix(name, c.Namespace+"%")
}

// SourceOptions tune a Source; nil is the default. There is none for broadcasting: every member
// would get every message and a failed one would be dropped, which is the opposite of what this
// package is for. Use a group per process instead.
type SourceOptions struct {
	// Tags chooses messages by tag, as in "a || b". Every member of the group must have the same. Default: all.
	Tags string
	// FromLatest: a new group begins at the end of the queues that its topics have when it first looks, which is committed
	// as soon as their broker answers; topics and queues that come later are read from their beginning, and so are those of a
	// broker that the name servers do not know then. Default: at the beginning.
	// Brokers before 5.0 do not tell a new group from one at offset 0 while a queue's first message
	// is still in memory; it then begins at the beginning.
	FromLatest bool
	// Ordered keeps the order per queue: retries wait in memory and hold their queue. Default: no order.
	Ordered bool
	// DeadLetterTopic takes the messages that are given up. Default: the group + "-dead".
	DeadLetterTopic string
	// MaxInFlight is how many deliveries of one queue may be unsettled, at most 1,000,000. Default: 256.
	MaxInFlight int
	// Outage is the consumer outage that Plan.Window must outlast. Default: 24h.
	Outage time.Duration
	// DelayLevels is the broker's messageDelayLevel, for brokers that do not let it be read.
	// Default: as read from the broker; until then the broker's own default, 1s to 2h in 18 steps.
	DelayLevels []time.Duration
	// Logger takes what is worth knowing but is no error of Receive. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultInFlight = 256
	mostInFlight    = 1_000_000 // of which half are read ahead, and 64 times as many kept in mind
	defaultOutage   = 24 * time.Hour
	commitEvery     = time.Second
	allTags         = "*"
	retrySuffix     = "-retry"
	deadSuffix      = "-dead"
	bounceMark      = "%RETRY%" // of the topics to which brokers copy what push consumers failed at
)

// fill returns a copy of o with its defaults.
func (o *SourceOptions) fill(group string) SourceOptions {
	var f SourceOptions
	if o != nil {
		f = *o
	}
	f.Tags = cmp.Or(strings.TrimSpace(f.Tags), allTags)
	f.DeadLetterTopic = cmp.Or(f.DeadLetterTopic, group+deadSuffix)
	f.MaxInFlight = cmp.Or(f.MaxInFlight, defaultInFlight)
	f.Outage = cmp.Or(f.Outage, defaultOutage)
	f.DelayLevels = slices.Clone(f.DelayLevels)
	f.Logger = cmp.Or(f.Logger, slog.Default())
	return f
}

func (o *SourceOptions) check(c Cluster, group string, topics []string) error {
	switch {
	case group == "":
		return errors.New("rocketmq: the consumer group is empty; positions are kept, and messages deduplicated, per group")
	case !nameForm.MatchString(group) || len(c.wire(group)) > groupLimit || strings.HasPrefix(group, bounceMark):
		return fmt.Errorf("rocketmq: the consumer group %q is no name that brokers take: letters, digits, - and _, at most %d with the namespace", group, groupLimit)
	case len(topics) == 0:
		return errors.New("rocketmq: there is no topic to consume; name at least one")
	case o.MaxInFlight < 1:
		return fmt.Errorf("rocketmq: SourceOptions.MaxInFlight %d is below 1: nothing would ever be delivered; leave it zero for %d", o.MaxInFlight, defaultInFlight)
	case o.MaxInFlight > mostInFlight:
		return fmt.Errorf("rocketmq: SourceOptions.MaxInFlight %d is above %d: whole queues would be read into memory; lower it, or leave it zero for %d", o.MaxInFlight, mostInFlight, defaultInFlight)
	case o.Outage < 0:
		return fmt.Errorf("rocketmq: SourceOptions.Outage %v is negative; leave it zero for %v", o.Outage, defaultOutage)
	case !slices.IsSorted(o.DelayLevels) || len(o.DelayLevels) > 0 && o.DelayLevels[0] <= 0:
		return fmt.Errorf("rocketmq: SourceOptions.DelayLevels %v must be positive and ascend, as in the broker's messageDelayLevel", o.DelayLevels)
	}
	for _, t := range append(slices.Clone(topics), o.DeadLetterTopic) {
		if !nameForm.MatchString(t) || len(c.wire(t)) > topicLimit {
			return fmt.Errorf("rocketmq: %q is no topic that brokers take: letters, digits, - and _, at most %d with the namespace", t, topicLimit)
		}
	}
	for i, t := range topics {
		switch {
		case slices.Contains(topics[:i], t):
			return fmt.Errorf("rocketmq: topic %q is named twice; name it once", t)
		case t == o.DeadLetterTopic:
			return fmt.Errorf("rocketmq: SourceOptions.DeadLetterTopic %q is among the consumed topics: a message given up would come again at once, and for ever; dead-letter to another topic", t)
		case t == group+retrySuffix:
			return fmt.Errorf("rocketmq: topic %q is where group %q keeps its own retries, and is consumed by itself; leave it out", t, group)
		}
	}
	if o.DeadLetterTopic == group+retrySuffix {
		return fmt.Errorf("rocketmq: SourceOptions.DeadLetterTopic %q is where group %q keeps its retries: a message given up would come again at once; dead-letter to another topic", o.DeadLetterTopic, group)
	}
	return nil
}

// tagSet are the tags of an expression; nil: all.
func tagSet(expression string) map[string]bool {
	if expression == allTags {
		return nil
	}
	set := make(map[string]bool)
	for tag := range strings.SplitSeq(expression, "||") {
		if tag = strings.TrimSpace(tag); tag != "" {
			set[tag] = true
		}
	}
	return set
}

// PublisherOptions tune a Publisher; nil is the default.
type PublisherOptions struct {
	// Timeout bounds one Publish or Redrive, repetitions included. Default: 10s.
	Timeout time.Duration
}

const defaultPublishTimeout = 10 * time.Second

func (c Cluster) String() string { return strings.Join(c.NameServers, ",") }
