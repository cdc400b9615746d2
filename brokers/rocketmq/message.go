package rocketmq

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/idemq/idemq/consumer"
)

// scopeOf is the scope of a consumer group.
func scopeOf(c Cluster, group string) string { return "rocketmq/" + c.wire(group) }

// MessageFrom turns a message of a consumer of your own into a Message, named by the default
// rules, for dedup by hand. Its Scope is yours to set; its Topic is as brokers have it, with the
// namespace that a Source takes off.
func MessageFrom(m *primitive.MessageExt) *consumer.Message {
	msg := new(consumer.Message)
	fill(msg, m, m.GetProperties())
	msg.Body, msg.Raw = m.Body, m
	msg.Identify(consumer.DefaultRules(), true)
	return msg
}

// fill sets everything of msg but Scope, Body and Raw. props are m's properties.
func fill(msg *consumer.Message, m *primitive.MessageExt, props map[string]string) {
	msg.ID = brokerID(m)
	msg.Topic = originOf(m)
	msg.Headers, msg.Key = decodeProperties(props)
	msg.Time = time.UnixMilli(m.BornTimestamp)
	msg.DeadCause = msg.Headers[consumer.CauseHeader]
}

// originOf is the topic to which a message, of which this may be a copy, was first sent.
func originOf(m *primitive.MessageExt) string {
	if t := m.GetProperty(primitive.PropertyRetryTopic); t != "" {
		return t
	}
	return m.Topic
}

// brokerID is the broker's own name of a message, the same on all its copies: the one that
// its producer's client made, or where it made none, the first one that a broker made.
func brokerID(m *primitive.MessageExt) string {
	for _, name := range [...]string{primitive.PropertyUniqueClientMessageIdKeyIndex, primitive.PropertyOriginMessageId} {
		if id := m.GetProperty(name); id != "" {
			return id
		}
	}
	return m.OffsetMsgId
}

// delivery fills r from its raw message, whose properties are props, whatever was done to earlier
// deliveries of it.
func (r *record) delivery(props map[string]string) consumer.Delivery {
	s := r.queue.src
	fill(&r.msg, r.raw, props)
	r.msg.Topic = s.cluster.bare(r.msg.Topic)
	r.msg.Scope, r.msg.Raw = s.scope, r.raw
	if r.msg.Body = r.raw.Body; r.msg.Body == nil { // there is no message without a body
		r.msg.Body = []byte{}
	}
	d := consumer.Delivery{Message: &r.msg, Made: true, Lost: r.queue.lost, Settler: r}
	if s.opt.Ordered {
		d.Lane = r.queue.name
	}
	return d
}

// uniqueKey is a name for a new message, of the length and with the time (ms since the month
// began) where RocketMQ's tools look for it. Clients fill the rest with address, process and a
// counter of 16 bits, which containers and fast producers repeat; this is random.
func uniqueKey() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	now := time.Now()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, now.Location())
	binary.BigEndian.PutUint32(b[10:], uint32(now.Sub(month).Milliseconds()))
	return strings.ToUpper(hex.EncodeToString(b[:]))
}
