package rocketmq

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// homeProperty says on a half message which table of markers knows its transaction.
const homeProperty = "idemq-home"

// A bit of sysFlag, and the answers of END_TRANSACTION.
const (
	flagPrepared = 1 << 2
	sayCommit    = 2 << 2
	sayRollback  = 3 << 2
)

func halfProperties(key, group, home string) map[string]string {
	return map[string]string{
		primitive.PropertyUniqueClientMessageIdKeyIndex: key, primitive.PropertyTransactionPrepared: "true",
		primitive.PropertyProducerGroup: group, homeProperty: home,
	}
}

// position is where a broker has a half message. It moves each time the broker asks.
type position struct {
	queueOffset, logOffset string
	messageID              string
	transaction            string
}

// position of a message that was stored: the ID that the broker made ends with the offset in its log.
func (c *command) position() (position, error) {
	p := position{queueOffset: c.Fields["queueOffset"], messageID: c.Fields["msgId"], transaction: c.Fields["transactionId"]}
	const digits = 16
	if len(p.messageID) < digits {
		return p, fmt.Errorf("the reply's message ID %q is too short", p.messageID)
	}
	offset, err := strconv.ParseInt(p.messageID[len(p.messageID)-digits:], 16, 64)
	if err != nil {
		return p, fmt.Errorf("the reply's message ID: %w", err)
	}
	p.logOffset = strconv.FormatInt(offset, 10)
	return p, nil
}

// endOf is the last word on the half message at p.
func endOf(p position, group, key string, word int, asked bool) command {
	return command{Code: askEnd, Fields: map[string]string{
		"producerGroup": group, "tranStateTableOffset": p.queueOffset, "commitLogOffset": p.logOffset,
		"commitOrRollback": strconv.Itoa(word), "fromTransactionCheck": strconv.FormatBool(asked), "msgId": key, "transactionId": p.transaction,
	}}
}

// check is a broker's question about a half message.
type check struct {
	cn  *conn // which the answer must take
	at  position
	key string
	// What the half message says of itself.
	group, home string
}

// readCheck takes a question apart.
func readCheck(cn *conn, c *command) (q check, ok bool) {
	ms := primitive.DecodeMessage(c.body)
	if len(ms) != 1 {
		return q, false
	}
	f := c.Fields
	q = check{
		cn:    cn,
		at:    position{queueOffset: f["tranStateTableOffset"], logOffset: f["commitLogOffset"], messageID: f["offsetMsgId"], transaction: f["transactionId"]},
		key:   ms[0].GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex),
		group: ms[0].GetProperty(primitive.PropertyProducerGroup), home: ms[0].GetProperty(homeProperty),
	}
	return q, q.key != "" && q.at.queueOffset != "" && q.at.logOffset != ""
}

// greetAsProducer tells a broker, on the connection that it will ask on, that a producer of the group lives.
func (cn *conn) greetAsProducer(ctx context.Context, clientID, group string) error {
	body, err := json.Marshal(map[string]any{
		"clientID": clientID, "producerDataSet": []map[string]string{{"groupName": group}}, "consumerDataSet": []any{},
	})
	if err != nil {
		return err
	}
	_, err = cn.ask(ctx, command{Code: askHeartbeat, body: body})
	return err
}

func (cn *conn) leaveAsProducer(ctx context.Context, clientID, group string) error {
	_, err := cn.ask(ctx, command{Code: askUnregister, Fields: map[string]string{"clientID": clientID, "producerGroup": group}})
	return err
}

// masters are the addresses of all brokers that take messages. The name server leaves out those that
// it has not heard of for two minutes.
func (c *client) masters(ctx context.Context) ([]string, error) {
	reply, err := c.ofNameServer(ctx, command{Code: askCluster})
	if err != nil {
		return nil, fmt.Errorf("brokers of the cluster: %w", err)
	}
	var all struct {
		Brokers map[string]struct {
			Addrs map[string]string `json:"brokerAddrs"`
		} `json:"brokerAddrTable"`
	}
	if err := json.Unmarshal(bareKey.ReplaceAll(reply.body, []byte(`$1"$2":`)), &all); err != nil {
		return nil, fmt.Errorf("brokers of the cluster: %w", err)
	}
	set := make(map[string]bool)
	for _, b := range all.Brokers {
		if addr := b.Addrs["0"]; addr != "" {
			set[addr] = true
		}
	}
	return slices.Sorted(maps.Keys(set)), nil
}
