package rocketmq

import (
	"bytes"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
)

// Properties are one string on the wire, in which these two bytes separate names from values and
// pairs from each other; brokers drop pairs without a value.
const (
	valueMark = "\x01"
	pairMark  = "\x02"
)

// encodedHeaders is the property that holds, as a JSON list of base64 names and values, the headers
// that cannot be properties of their own. An empty name stands for Message.Key.
const encodedHeaders = "idemq-headers"

// keyProperty is where other clients, too, put the key that chooses the queue.
const keyProperty = primitive.PropertyShardingKey

// reserved are the properties by which clients and brokers steer a message: a header of such a
// name must not, and none of them is a header. A copy that kept DELAY would wait once more.
var reserved = map[string]bool{
	primitive.PropertyWaitStoreMsgOk: true, primitive.PropertyDelayTimeLevel: true, primitive.PropertyRetryTopic: true,
	primitive.PropertyTimerDeliverMS: true, "TIMER_DELAY_SEC": true, "TIMER_DELAY_MS": true, "TIMER_OUT_MS": true,
	"TIMER_ENQUEUE_MS": true, "TIMER_DEQUEUE_MS": true, "TIMER_ROLL_TIMES": true, "TIMER_DEL_UNIQKEY": true,
	"TIMER_DELAY_LEVEL": true, "TIMER_LOG_ENABLE": true,
	primitive.PropertyRealTopic: true, primitive.PropertyRealQueueId: true, primitive.PropertyTransactionPrepared: true,
	primitive.PropertyProducerGroup: true, primitive.PropertyMinOffset: true, primitive.PropertyMaxOffset: true,
	primitive.PropertyOriginMessageId: true, primitive.PropertyTransferFlag: true, primitive.PropertyCorrectionFlag: true,
	primitive.PropertyMQ2Flag: true, primitive.PropertyReconsumeTime: true, primitive.PropertyMsgRegion: true,
	primitive.PropertyTraceSwitch: true, primitive.PropertyUniqueClientMessageIdKeyIndex: true,
	primitive.PropertyMaxReconsumeTimes: true, primitive.PropertyConsumeStartTime: true,
	primitive.PropertyTranscationPreparedQueueOffset: true, primitive.PropertyTranscationCheckTimes: true,
	primitive.PropertyCheckImmunityTimeInSeconds: true, primitive.PropertyShardingKey: true, primitive.PropertyTransactionID: true,
	primitive.PropertyCluster: true, primitive.PropertyMsgType: true, "EXTEND_UNIQ_INFO": true, "POP_CK": true, "POP_CK_OFFSET": true,
	"1ST_POP_TIME": true, "INNER_NUM": true, "INNER_BASE": true, "INNER_MULTI_DISPATCH": true,
	"INNER_MULTI_QUEUE_OFFSET": true, "__CRC32#": true, "DUP_INFO": true, "INSTANCE_ID": true, encodedHeaders: true, homeProperty: true,
}

// kept are the reserved properties that a copy has from its original: they name the message and
// choose its queue.
var kept = map[string]bool{
	primitive.PropertyUniqueClientMessageIdKeyIndex: true, primitive.PropertyOriginMessageId: true,
	primitive.PropertyShardingKey: true, encodedHeaders: true,
}

// propertyLimit is below the 32,767 bytes that brokers take, by what they add themselves.
const propertyLimit = 32_000

// flagCompressed says in sysFlag that the body is compressed, with zlib.
const flagCompressed = 1

// outgoing is a message on its way to a broker.
type outgoing struct {
	topic      string // on the wire
	key        string // chooses the queue; "": any
	properties string
	body       []byte
	flag       int32
	sysFlag    int
}

// holds reports whether s can be a name or value of a property.
func holds(s string) bool {
	return s != "" && utf8.ValidString(s) && !strings.ContainsAny(s, valueMark+pairMark)
}

// encodeProperties adds headers and key to props and answers them as one string. Equal ones are equal strings.
func encodeProperties(props map[string]string, headers map[string]string, key string) (string, error) {
	var odd [][]byte
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if v := headers[name]; reserved[name] || !holds(name) || !holds(v) {
			odd = append(odd, []byte(name), []byte(v))
		} else {
			props[name] = v
		}
	}
	switch {
	case holds(key):
		props[keyProperty] = key
	case key != "":
		odd = append(odd, nil, []byte(key))
	}
	if odd != nil {
		list, err := json.Marshal(odd)
		if err != nil {
			return "", err
		}
		props[encodedHeaders] = string(list)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(props)) {
		b.WriteString(name + valueMark + props[name] + pairMark)
	}
	if b.Len() > propertyLimit {
		return "", fmt.Errorf("key and headers take %d bytes, of which RocketMQ has room for %d; put what is large into the body: %w", b.Len(), propertyLimit, errTooLarge)
	}
	return b.String(), nil
}

// decodeProperties tells the headers, and the key, from what clients and brokers added.
func decodeProperties(props map[string]string) (headers map[string]string, key string) {
	headers = make(map[string]string, len(props))
	for name, v := range props {
		if !reserved[name] {
			headers[name] = v
		}
	}
	key = props[keyProperty]
	var odd [][]byte
	if list := props[encodedHeaders]; list == "" || json.Unmarshal([]byte(list), &odd) != nil {
		return headers, key
	}
	for ; len(odd) > 1; odd = odd[2:] {
		if name := string(odd[0]); name != "" {
			headers[name] = string(odd[1])
		} else {
			key = string(odd[1])
		}
	}
	return headers, key
}

// newMessage is m as it goes to the broker.
func (c Cluster) newMessage(m *outbox.Message) (*outgoing, error) {
	return c.encode(m, map[string]string{primitive.PropertyUniqueClientMessageIdKeyIndex: uniqueKey()})
}

// encode is m with props, by which clients and brokers steer it.
func (c Cluster) encode(m *outbox.Message, props map[string]string) (*outgoing, error) {
	headers := m.Headers
	if m.ID != "" {
		headers = make(map[string]string, len(m.Headers)+1)
		for name, v := range m.Headers {
			if !strings.EqualFold(name, IDHeader) {
				headers[name] = v
			}
		}
		headers[IDHeader] = m.ID
	}
	text, err := encodeProperties(props, headers, m.Key)
	if err != nil {
		return nil, err
	}
	out := &outgoing{topic: c.wire(m.Topic), key: m.Key, properties: text}
	return out, out.setBody(m.Body, false)
}

// copyOf is a copy of what was received, with headers, for topic; more are further properties.
// It keeps the broker's own name of the message.
func copyOf(raw *primitive.MessageExt, topic string, headers map[string]string, key string, more map[string]string) (*outgoing, error) {
	props := make(map[string]string)
	for name, v := range raw.GetProperties() {
		if kept[name] && name != encodedHeaders && name != keyProperty {
			props[name] = v
		}
	}
	// Under this property and no other: to a message without it brokers add one of their own making,
	// which would outrank whatever else the name stood in.
	if props[primitive.PropertyUniqueClientMessageIdKeyIndex] == "" {
		props[primitive.PropertyUniqueClientMessageIdKeyIndex] = brokerID(raw)
	}
	maps.Copy(props, more)
	text, err := encodeProperties(props, headers, key)
	if err != nil {
		return nil, err
	}
	out := &outgoing{topic: topic, key: key, properties: text, flag: raw.Flag}
	// As it is, what came compressed may be larger than brokers take.
	return out, out.setBody(raw.Body, raw.SysFlag&flagCompressed != 0)
}

// setBody compresses empty bodies, too: brokers fail at a message without a body, but carry one
// that becomes empty where it is decompressed, which clients do by themselves.
func (m *outgoing) setBody(body []byte, compressed bool) error {
	if !compressed && len(body) > 0 {
		m.body = body
		return nil
	}
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	if _, err := w.Write(body); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	m.body, m.sysFlag = b.Bytes(), flagCompressed
	return nil
}

// deadCopy is the dead letter of raw. Where there is no room for a long cause, it is cut.
func deadCopy(raw *primitive.MessageExt, topic string, added map[string]string) (*outgoing, error) {
	headers, key := decodeProperties(raw.GetProperties())
	maps.DeleteFunc(headers, func(name, _ string) bool { return ours(name) })
	for _, name := range ownHeaders {
		if v, ok := added[name]; ok {
			headers[name] = v
		}
	}
	out, err := copyOf(raw, topic, headers, key, nil)
	if err != nil {
		delete(headers, consumer.CauseHeader)
		out, err = copyOf(raw, topic, headers, key, nil)
	}
	return out, err
}
