// Package mqadmin makes, counts and deletes topics of RocketMQ for the example and for tests, as
// RocketMQ's own tool of that name does: the client library's admin has to be told the
// brokers' addresses, and knows no group's position. A call has a connection of its own.
package mqadmin

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"time"
)

// ErrNoTopic is the answer for a topic that does not exist.
var ErrNoTopic = errors.New("mqadmin: no such topic")

// Codes of requests and answers, as in org.apache.rocketmq.remoting.protocol.
const (
	askCommitted    = 14
	askCreate       = 17
	askEnd          = 30
	askRoute        = 105
	askDeleteGroup  = 207
	askDelete       = 215 // of a broker
	askDeleteRoute  = 216 // of a name server
	answerNoTopic   = 17
	answerNotFound  = 22
	callTimeout     = 5 * time.Second
	everywhereTopic = "SELF_TEST_TOPIC" // every broker has it
)

// Cluster is the addresses of its name servers, host:port each.
type Cluster []string

// Create makes a topic with so many queues on every broker, where it is missing, and waits until the name servers know it.
func (c Cluster) Create(ctx context.Context, topic string, queues int) error {
	if _, err := c.route(ctx, topic); !errors.Is(err, ErrNoTopic) {
		return err
	}
	at, err := c.route(ctx, everywhereTopic)
	if err != nil {
		return err
	}
	n := strconv.Itoa(queues)
	for _, broker := range at.masters() {
		_, err := ask(ctx, broker, askCreate, map[string]string{"topic": topic, "defaultTopic": "TBW102", "readQueueNums": n, "writeQueueNums": n,
			"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"})
		if err != nil {
			return fmt.Errorf("mqadmin: create topic %s at %s: %w", topic, broker, err)
		}
	}
	for {
		if _, err = c.route(ctx, topic); !errors.Is(err, ErrNoTopic) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Delete removes topics; those that do not exist are passed over.
func (c Cluster) Delete(ctx context.Context, topics ...string) error {
	var errs []error
	for _, topic := range topics {
		at, err := c.route(ctx, topic)
		if errors.Is(err, ErrNoTopic) {
			continue
		}
		errs = append(errs, err)
		for _, broker := range at.masters() {
			_, err := ask(ctx, broker, askDelete, map[string]string{"topic": topic})
			errs = append(errs, err)
		}
		for _, server := range c {
			_, err := ask(ctx, server, askDeleteRoute, map[string]string{"topic": topic})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// DeleteGroups removes consumer groups and their positions.
func (c Cluster) DeleteGroups(ctx context.Context, groups ...string) error {
	at, err := c.route(ctx, everywhereTopic)
	errs := []error{err}
	for _, broker := range at.masters() {
		for _, group := range groups {
			_, err := ask(ctx, broker, askDeleteGroup, map[string]string{"groupName": group, "cleanOffset": "true"})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Brokers are the addresses of all brokers.
func (c Cluster) Brokers(ctx context.Context) ([]string, error) {
	at, err := c.route(ctx, everywhereTopic)
	return at.masters(), err
}

// Messages is how many messages were ever sent to a topic; none where there is none.
func (c Cluster) Messages(ctx context.Context, topic string) (int64, error) {
	return c.sum(ctx, topic, func(broker string, queue map[string]string) (int64, error) {
		return number(ctx, broker, askEnd, queue)
	})
}

// Left is how many messages of a topic a group has not committed.
func (c Cluster) Left(ctx context.Context, topic, group string) (int64, error) {
	return c.sum(ctx, topic, func(broker string, queue map[string]string) (int64, error) {
		end, err := number(ctx, broker, askEnd, queue)
		if err != nil || end == 0 {
			return 0, err
		}
		queue["consumerGroup"] = group
		committed, err := number(ctx, broker, askCommitted, queue)
		return end - committed, err
	})
}

// sum adds up what of answers for each queue of a topic.
func (c Cluster) sum(ctx context.Context, topic string, of func(broker string, queue map[string]string) (int64, error)) (sum int64, err error) {
	at, err := c.route(ctx, topic)
	if errors.Is(err, ErrNoTopic) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, d := range at.Queues {
		for i := range d.Read {
			n, err := of(at.master(d.Broker), map[string]string{"topic": topic, "queueId": strconv.Itoa(i), "bname": d.Broker})
			if err != nil {
				return 0, fmt.Errorf("mqadmin: queue %d of topic %s: %w", i, topic, err)
			}
			sum += n
		}
	}
	return sum, nil
}

// route is where a topic's queues are.
type route struct {
	Queues []struct {
		Broker string `json:"brokerName"`
		Read   int    `json:"readQueueNums"`
	} `json:"queueDatas"`
	Brokers []struct {
		Name  string            `json:"brokerName"`
		Addrs map[string]string `json:"brokerAddrs"` // "0" is the master
	} `json:"brokerDatas"`
}

func (r route) master(broker string) string {
	for _, b := range r.Brokers {
		if b.Name == broker {
			return b.Addrs["0"]
		}
	}
	return ""
}

func (r route) masters() (addrs []string) {
	for _, b := range r.Brokers {
		addrs = append(addrs, b.Addrs["0"])
	}
	return addrs
}

// bareKey finds numbers as keys of an object, which is how name servers write JSON.
var bareKey = regexp.MustCompile(`([{,])(\d+):`)

// route asks the name servers in turn.
func (c Cluster) route(ctx context.Context, topic string) (r route, err error) {
	err = errors.New("there is no name server")
	for _, server := range c {
		var a answer
		if a, err = ask(ctx, server, askRoute, map[string]string{"topic": topic}); err == nil {
			if a.Code == answerNoTopic {
				return r, fmt.Errorf("%w: %s", ErrNoTopic, topic)
			}
			err = json.Unmarshal(bareKey.ReplaceAll(a.body, []byte(`$1"$2":`)), &r)
		}
		if err == nil {
			return r, nil
		}
	}
	return r, fmt.Errorf("mqadmin: route of topic %s: %w", topic, err)
}

// number asks for an offset; 0 is none.
func number(ctx context.Context, addr string, code int, fields map[string]string) (int64, error) {
	a, err := ask(ctx, addr, code, fields)
	if err != nil || a.Code == answerNotFound {
		return 0, err
	}
	return strconv.ParseInt(a.Fields["offset"], 10, 64)
}

type answer struct {
	Code   int               `json:"code"`
	Remark string            `json:"remark"`
	Fields map[string]string `json:"extFields"`
	body   []byte
}

// ask sends one request of the remoting protocol. That something does not exist is an answer.
func ask(ctx context.Context, addr string, code int, fields map[string]string) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return a, err
	}
	head, err := json.Marshal(map[string]any{"code": code, "language": "GO", "version": 317, "opaque": 1, "flag": 0, "extFields": fields})
	if err != nil {
		return a, err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(head)+4))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(head)))
	if _, err := conn.Write(append(frame, head...)); err != nil {
		return a, err
	}
	var sizes [8]byte
	if _, err := io.ReadFull(conn, sizes[:]); err != nil {
		return a, err
	}
	size, headSize := binary.BigEndian.Uint32(sizes[:]), binary.BigEndian.Uint32(sizes[4:])&0xffffff
	if size < 4+headSize || size > 64<<20 {
		return a, fmt.Errorf("%s does not speak the protocol", addr)
	}
	text := make([]byte, size-4)
	if _, err := io.ReadFull(conn, text); err != nil {
		return a, err
	}
	a.body = text[headSize:]
	if err := json.Unmarshal(text[:headSize], &a); err != nil {
		return a, err
	}
	switch a.Code {
	case 0, answerNoTopic, answerNotFound:
		return a, nil
	}
	return a, fmt.Errorf("%s answers with code %d: %s", addr, a.Code, a.Remark)
}
