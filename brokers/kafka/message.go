package kafka

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/idemq/idemq/consumer"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// scopeOf is the scope of a consumer group.
func scopeOf(group string) string { return "kafka/" + group }

// MessageFrom turns a message of a reader of your own into a Message, named by the default
// rules, for dedup by hand. Its Scope is yours to set.
func MessageFrom(m kafka.Message) *consumer.Message {
	msg := new(consumer.Message)
	fill(msg, &m, m.Topic+"/"+strconv.Itoa(m.Partition))
	msg.Body = m.Value
	msg.Raw = m
	msg.Identify(consumer.DefaultRules(), true)
	return msg
}

// fill sets what of msg is text. All of it is one string, cut up: one allocation a message
// instead of one each for ID, key and every header.
func fill(msg *consumer.Message, m *kafka.Message, name string) (lane string) {
	var num [20]byte
	offset := strconv.AppendInt(num[:0], m.Offset, 10)
	size := 2*len(name) + 2 + len(offset) + len(m.Key)
	for i := range m.Headers {
		size += len(m.Headers[i].Value)
	}
	var b strings.Builder
	b.Grow(size)
	b.WriteString(name)
	b.WriteByte('/')
	b.Write(offset)
	id := b.Len()
	b.WriteString(name)
	b.WriteByte('/')
	key := b.Len()
	b.Write(m.Key)
	end := b.Len()
	for i := range m.Headers {
		b.Write(m.Headers[i].Value)
	}
	s := b.String()

	msg.ID, msg.Topic, msg.Key, msg.Time = s[:id], m.Topic, s[key:end], m.Time
	if n := len(m.Headers); n > 0 {
		msg.Headers = make(map[string]string, n)
		for i := range m.Headers { // of repeated ones the last stays
			h := &m.Headers[i]
			msg.Headers[h.Key] = s[end : end+len(h.Value)]
			end += len(h.Value)
		}
		msg.DeadCause = msg.Headers[consumer.CauseHeader]
	}
	return s[id : key+len(m.Key)]
}

// slab is how many deliveries share one allocation; a handler that keeps a message keeps its slab.
const slab = 16

// decode appends recs, numbered from seq, to ds.
func (p *partition) decode(ds []consumer.Delivery, recs []protocol.Record, seq uint64, high int64) []consumer.Delivery {
	var rs []record
	for i := range recs {
		if len(rs) == 0 {
			rs = make([]record, min(slab, len(recs)-i))
		}
		r := &rs[0]
		rs = rs[1:]
		in := &recs[i]
		m, err := p.raw(r, in.Offset, pages{in.Key}, pages{in.Value})
		if err != nil {
			p.src.fail(fmt.Errorf("kafka: %s/%d ends before its length, although its checksum was right: %w", p.name, in.Offset, err))
			return ds
		}
		m.Headers, m.Time, m.HighWaterMark = in.Headers, in.Time, high
		recs[i] = protocol.Record{} // the queue's array lives on
		r.part, r.seq = p, seq+uint64(i)
		ds = append(ds, r.delivery(&m, nil))
	}
	return ds
}

// delivery fills r from m; raw is m as an interface, if there is one already.
func (r *record) delivery(m *kafka.Message, raw any) consumer.Delivery {
	if raw == nil {
		raw = *m
	}
	p := r.part
	lane := fill(&r.msg, m, p.name)
	switch {
	case !p.src.opt.LaneByKey:
		lane = p.name
	case m.Key == nil:
		lane = ""
	}
	r.raw = raw
	r.msg.Raw, r.msg.Scope, r.msg.Body = raw, p.src.scope, r.body
	r.body = nil
	return consumer.Delivery{Message: &r.msg, Made: true, Lane: lane, Lost: p.lost, Settler: r}
}

// pages are bytes that the client keeps in pages of its own; nil ones are null.
type pages struct{ protocol.Bytes }

func (b pages) len() int {
	if b.Bytes == nil {
		return 0
	}
	return b.Len()
}

// read copies b into buf, which has its length, and gives the pages back.
func (b pages) read(buf []byte) ([]byte, error) {
	if b.Bytes == nil {
		return nil, nil
	}
	defer b.Close()
	_, err := io.ReadFull(b.Bytes, buf) // b itself would be moved to the heap
	return buf, err
}
