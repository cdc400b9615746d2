package rocketmq

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// fetched is a message as it came, with its properties, of which the client's type gives copies only.
type fetched struct {
	*primitive.MessageExt
	props map[string]string
}

// decodeMessages reads the body of an answer to a pull: stored messages, one after the other, each
// with numbers, body, topic and properties. What it returns shares b.
func decodeMessages(b []byte) (ms []fetched, err error) {
	d := decoder{rest: b}
	for len(d.rest) > 0 && err == nil {
		var m fetched
		if m, err = d.message(); err == nil {
			ms = append(ms, m)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("message %d of a pull's answer of %d bytes: %w", len(ms), len(b), err)
	}
	return ms, nil
}

// decoder takes numbers and bytes off rest. Where there are too few it yields zeros, and short says so.
type decoder struct {
	rest  []byte
	short bool

	// As the message before has it, most often.
	topic       string
	born, store host
}

type host struct {
	raw  string
	text string
}

var errShort = errors.New("it ends within a message")

func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.rest) {
		d.short, d.rest = true, nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) int16() int {
	if b := d.bytes(2); b != nil {
		return int(int16(binary.BigEndian.Uint16(b)))
	}
	return 0
}

func (d *decoder) int32() int32 {
	if b := d.bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if b := d.bytes(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// Flags of sysFlag: an address has 16 bytes instead of 4.
const (
	flagBornV6  = 1 << 4
	flagStoreV6 = 1 << 5
)

// message reads one message, into one piece of memory with its queue.
func (d *decoder) message() (fetched, error) {
	var of struct {
		primitive.MessageExt
		queue primitive.MessageQueue
	}
	m := &of.MessageExt
	m.Queue = &of.queue
	m.StoreSize = d.int32()
	d.int32() // magic
	m.BodyCRC = d.int32()
	m.Queue.QueueId = int(d.int32())
	m.Flag = d.int32()
	m.QueueOffset = d.int64()
	m.CommitLogOffset = d.int64()
	m.SysFlag = d.int32()
	m.BornTimestamp = d.int64()
	m.BornHost = d.host(m.SysFlag&flagBornV6 != 0, &d.born)
	m.StoreTimestamp = d.int64()
	m.StoreHost = d.host(m.SysFlag&flagStoreV6 != 0, &d.store)
	m.ReconsumeTimes = d.int32()
	m.PreparedTransactionOffset = d.int64()
	m.Body = d.bytes(int(d.int32()))
	if m.SysFlag&flagCompressed != 0 {
		m.Body = inflate(m.Body)
	}
	if n := d.bytes(1); n != nil {
		if topic := d.bytes(int(n[0])); string(topic) != d.topic {
			d.topic = string(topic)
		}
	}
	m.Topic = d.topic
	props := parseProperties(string(d.bytes(d.int16())))
	if d.short {
		return fetched{}, errShort
	}
	m.WithProperties(props)
	m.OffsetMsgId = offsetID(d.store.raw, m.CommitLogOffset)
	if m.MsgId = props[primitive.PropertyUniqueClientMessageIdKeyIndex]; m.MsgId == "" {
		m.MsgId = m.OffsetMsgId
	}
	return fetched{m, props}, nil
}

// host reads an address and a port.
func (d *decoder) host(v6 bool, before *host) string {
	n := 4
	if v6 {
		n = 16
	}
	raw := d.bytes(n + 4)
	if raw == nil || string(raw) == before.raw {
		return before.text
	}
	ip, _ := netip.AddrFromSlice(raw[:n])
	port := int32(binary.BigEndian.Uint32(raw[n:]))
	*before = host{string(raw), ip.Unmap().String() + ":" + strconv.Itoa(int(port))}
	return before.text
}

// offsetID is a broker's own name for a message: where it is stored.
func offsetID(host string, offset int64) string {
	var room [28]byte
	id := binary.BigEndian.AppendUint64(append(room[:0], host...), uint64(offset))
	var text [56]byte
	n := hex.Encode(text[:], id)
	return strings.ToUpper(string(text[:n]))
}

// parseProperties splits what encodeProperties joins. Pairs that are none are left out.
func parseProperties(s string) map[string]string {
	props := make(map[string]string, strings.Count(s, pairMark)+1)
	for len(s) > 0 {
		var pair string
		pair, s, _ = strings.Cut(s, pairMark)
		if name, v, ok := strings.Cut(pair, valueMark); ok && !strings.Contains(v, valueMark) {
			props[name] = v
		}
	}
	return props
}

// inflate is b as it was before its producer compressed it, or b where it cannot be told: other
// ways to compress are for the handler to know.
func inflate(b []byte) []byte {
	r, err := zlib.NewReader(bytes.NewReader(b))
	if err != nil {
		return b
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		return b
	}
	return out
}
