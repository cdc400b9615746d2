package rocketmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Codes of requests and replies, as in org.apache.rocketmq.remoting.protocol.
const (
	askSend          = 10
	askPull          = 11
	askOffset        = 14
	askCommit        = 15
	askCreateTopic   = 17
	askConfig        = 26
	askMaxOffset     = 30
	askMinOffset     = 31
	askHeartbeat     = 34
	askUnregister    = 35
	askEnd           = 37
	askMembers       = 38
	tellCheck        = 39
	askRoute         = 105
	askCluster       = 106
	tellMembersMoved = 40

	codeSuccess          = 0
	codeSystemError      = 1
	codeBusy             = 2
	codeFlushDiskTimeout = 10
	codeSlaveMissing     = 11
	codeFlushSlave       = 12
	codeIllegalMessage   = 13
	codeUnavailable      = 14
	codeNoPermission     = 16
	codeNoTopic          = 17
	codePullNotFound     = 19
	codePullRetry        = 20
	codePullMoved        = 21
	codeNotFound         = 22
	codeNoGroup          = 26
)

// route is where a topic's queues are, by the name of their broker.
type route struct {
	Queues []struct {
		Broker string `json:"brokerName"`
		Read   int    `json:"readQueueNums"`
		Write  int    `json:"writeQueueNums"`
		Perm   int    `json:"perm"`
	} `json:"queueDatas"`
	Brokers []struct {
		Name  string            `json:"brokerName"`
		Addrs map[string]string `json:"brokerAddrs"` // by number; "0" is the master
	} `json:"brokerDatas"`
}

const (
	permWrite = 2
	permRead  = 4
)

// queueOf names one queue; it is a key of maps.
type queueOf struct {
	topic, broker string
	id            int
}

func (q queueOf) String() string { return q.topic + "/" + q.broker + "/" + strconv.Itoa(q.id) }

func (r route) master(broker string) string {
	for _, b := range r.Brokers {
		if b.Name == broker {
			return b.Addrs["0"]
		}
	}
	return ""
}

// queues lists those with the given permission, in the order in which all clients allocate them.
func (r route) queues(topic string, perm int) (qs []queueOf) {
	for _, d := range r.Queues {
		n := d.Read
		if perm == permWrite {
			n = d.Write
		}
		for i := range n {
			if d.Perm&perm != 0 {
				qs = append(qs, queueOf{topic, d.Broker, i})
			}
		}
	}
	slices.SortFunc(qs, func(a, b queueOf) int {
		if c := strings.Compare(a.broker, b.broker); c != 0 {
			return c
		}
		return a.id - b.id
	})
	return qs
}

// bareKey finds the numbers that brokers before 5.0 write as keys of an object, which is no JSON.
var bareKey = regexp.MustCompile(`([{,])(\d+):`)

// route looks a topic up, by its name on the wire. A topic that the name server does not know is
// errNoTopic: it does not exist, or the server was just started and brokers have not told it yet,
// which they do each 30 s. So what is known of it stays known, see cachedRoute.
func (c *client) route(ctx context.Context, topic string) (r route, err error) {
	reply, err := c.ofNameServer(ctx, command{Code: askRoute, Fields: map[string]string{"topic": topic, "acceptStandardJsonOnly": "true"}})
	if isCode(err, codeNoTopic) {
		return r, fmt.Errorf("topic %q: %w", topic, errNoTopic)
	}
	if err != nil {
		return r, fmt.Errorf("route of topic %q: %w", topic, err)
	}
	body := bareKey.ReplaceAll(reply.body, []byte(`$1"$2":`))
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("route of topic %q: %w", topic, err)
	}
	c.mu.Lock()
	c.routes[topic] = r
	c.mu.Unlock()
	return r, nil
}

// cachedRoute is the last route that was found; with a miss it asks.
func (c *client) cachedRoute(ctx context.Context, topic string) (route, error) {
	if r, ok := c.knownRoute(topic); ok {
		return r, nil
	}
	return c.route(ctx, topic)
}

func (c *client) knownRoute(topic string) (r route, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok = c.routes[topic]
	return r, ok
}

// forgetRoute is for when a broker itself has said that the topic does not exist.
func (c *client) forgetRoute(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.routes, topic)
}

type subscription struct {
	Topic      string   `json:"topic"`
	Expression string   `json:"subString"`
	Tags       []string `json:"tagsSet"`
	Codes      []int32  `json:"codeSet"`
	Version    int64    `json:"subVersion"`
	Type       string   `json:"expressionType"`
	ClassMode  bool     `json:"classFilterMode"`
}

type membership struct {
	Group         string         `json:"groupName"`
	Type          string         `json:"consumeType"`
	Model         string         `json:"messageModel"`
	From          string         `json:"consumeFromWhere"`
	Subscriptions []subscription `json:"subscriptionDataSet"`
	Unit          bool           `json:"unitMode"`
}

// heartbeat tells a broker, on the connection that is then the member's, that the member lives.
func (cn *conn) heartbeat(ctx context.Context, clientID string, m membership) error {
	body, err := json.Marshal(map[string]any{"clientID": clientID, "producerDataSet": []any{}, "consumerDataSet": []membership{m}})
	if err != nil {
		return err
	}
	_, err = cn.ask(ctx, command{Code: askHeartbeat, body: body})
	return err
}

func (cn *conn) unregister(ctx context.Context, clientID, group string) error {
	_, err := cn.ask(ctx, command{Code: askUnregister, Fields: map[string]string{"clientID": clientID, "consumerGroup": group}})
	return err
}

// members are the client IDs of a group that a broker knows.
func (cn *conn) members(ctx context.Context, group string) ([]string, error) {
	reply, err := cn.ask(ctx, command{Code: askMembers, Fields: map[string]string{"consumerGroup": group}})
	if err != nil {
		return nil, err
	}
	var list struct {
		IDs []string `json:"consumerIdList"`
	}
	if err := json.Unmarshal(reply.body, &list); err != nil {
		return nil, err
	}
	slices.Sort(list.IDs)
	return list.IDs, nil
}

func (q queueOf) fields(more ...string) map[string]string {
	f := map[string]string{"topic": q.topic, "queueId": strconv.Itoa(q.id), "bname": q.broker}
	for i := 0; i < len(more); i += 2 {
		f[more[i]] = more[i+1]
	}
	return f
}

// position is the group's committed offset, -1 for none. Brokers before 5.0 answer 0 for none
// while the queue's first message is there and in memory.
func (cn *conn) position(ctx context.Context, group string, q queueOf) (int64, error) {
	reply, err := cn.ask(ctx, command{Code: askOffset, Fields: q.fields("consumerGroup", group, "setZeroIfNotFound", "false")}, codeNotFound)
	if err != nil {
		return 0, err
	}
	if reply.Code == codeNotFound {
		return -1, nil
	}
	return reply.number("offset")
}

func (cn *conn) commit(ctx context.Context, group string, q queueOf, offset int64) error {
	_, err := cn.ask(ctx, command{Code: askCommit, Fields: q.fields("consumerGroup", group, "commitOffset", strconv.FormatInt(offset, 10))})
	return err
}

// bound is a queue's first offset (askMinOffset), or the one that its next message gets (askMaxOffset).
func (cn *conn) bound(ctx context.Context, which int, q queueOf) (int64, error) {
	reply, err := cn.ask(ctx, command{Code: which, Fields: q.fields()})
	if err != nil {
		return 0, err
	}
	return reply.number("offset")
}

func (c *command) number(field string) (int64, error) {
	n, err := strconv.ParseInt(c.Fields[field], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the reply's field %s: %w", field, err)
	}
	return n, nil
}

// pulled is the answer to a pull.
type pulled struct {
	messages []fetched
	next     int64 // where to go on
	min, max int64 // of the queue; max is the offset of the next message
	moved    bool  // the offset asked for is out of range, or was reset by an operator
}

const (
	pullCount   = 32 // brokers give no more at once, from memory
	suspendFor  = 15 * time.Second
	pullTimeout = suspendFor + 10*time.Second
	flagSuspend = 2
	flagFilter  = 4
)

// pull waits at the broker for messages from offset on.
func (cn *conn) pull(ctx context.Context, group string, q queueOf, offset int64, tags string) (p pulled, err error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	reply, err := cn.ask(ctx, command{Code: askPull, Fields: q.fields(
		"consumerGroup", group, "queueOffset", strconv.FormatInt(offset, 10), "maxMsgNums", strconv.Itoa(pullCount),
		"sysFlag", strconv.Itoa(flagSuspend|flagFilter), "commitOffset", "0",
		"suspendTimeoutMillis", strconv.FormatInt(suspendFor.Milliseconds(), 10),
		"subscription", tags, "subVersion", "0", "expressionType", "TAG",
	)}, codePullNotFound, codePullRetry, codePullMoved)
	if err != nil {
		return p, err
	}
	if p, err = readPulled(reply); err != nil {
		return p, fmt.Errorf("%w: %w", errUnread, err)
	}
	return p, nil
}

// errUnread is an answer that came, but cannot be read: the connection is well.
var errUnread = errors.New("the answer cannot be read")

func readPulled(reply *command) (p pulled, err error) {
	if p.next, err = reply.number("nextBeginOffset"); err != nil {
		return p, err
	}
	if p.min, err = reply.number("minOffset"); err != nil {
		return p, err
	}
	if p.max, err = reply.number("maxOffset"); err != nil {
		return p, err
	}
	p.moved = reply.Code == codePullMoved
	if reply.Code == codeSuccess {
		p.messages, err = decodeMessages(reply.body)
	}
	return p, err
}

// send stores a message on a broker. A reply that it was stored but not yet flushed or copied,
// where the broker is set up to wait for that, is an error: it is not safe.
func (c *client) send(ctx context.Context, addr string, q queueOf, m *outgoing) error {
	_, err := c.store(ctx, addr, q, m, producerGroup)
	return err
}

// store is send in the name of a group; the reply says where the message is.
func (c *client) store(ctx context.Context, addr string, q queueOf, m *outgoing, group string) (*command, error) {
	fields := q.fields(
		"producerGroup", group, "defaultTopic", defaultTopic, "defaultTopicQueueNums", strconv.Itoa(newQueues),
		"sysFlag", strconv.Itoa(m.sysFlag), "bornTimestamp", strconv.FormatInt(time.Now().UnixMilli(), 10),
		"flag", strconv.Itoa(int(m.flag)), "properties", m.properties, "reconsumeTimes", "0", "unitMode", "false",
		"maxReconsumeTimes", "0", "batch", "false",
	)
	return c.call(ctx, addr, command{Code: askSend, Fields: fields, body: m.body})
}

const (
	producerGroup = "idemq"
	defaultTopic  = "TBW102" // the template of topics where brokers create them by themselves
	newQueues     = 4        // of a topic that is created
)

func (c *client) createTopic(ctx context.Context, addr, topic string, queues int) error {
	n := strconv.Itoa(queues)
	_, err := c.call(ctx, addr, command{Code: askCreateTopic, Fields: map[string]string{
		"topic": topic, "defaultTopic": defaultTopic, "readQueueNums": n, "writeQueueNums": n,
		"perm": strconv.Itoa(permRead | permWrite), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
	}})
	return err
}

// config is a broker's own settings.
func (cn *conn) config(ctx context.Context) (map[string]string, error) {
	reply, err := cn.ask(ctx, command{Code: askConfig})
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(reply.body)) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			all[name] = v
		}
	}
	return all, nil
}

// Error is a broker's or name server's refusal.
type Error struct {
	Code   int // as in org.apache.rocketmq.remoting.protocol.ResponseCode
	Remark string
}

func (e *Error) Error() string {
	remark, _, _ := strings.Cut(e.Remark, "\n")
	return fmt.Sprintf("refused with code %d: %s", e.Code, remark)
}

func isCode(err error, codes ...int) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}
