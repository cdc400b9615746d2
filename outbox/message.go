package outbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemq/idemq/dedup"
)

// The limits of a message, and of one Write.
const (
	maxID     = 255 // bytes
	maxTopic  = 512
	maxKey    = 1024
	maxWrite  = 1000    // messages
	maxVolume = 6 << 20 // bytes of bodies, headers and the rest of one Write, which is one statement
)

const shards = 64

// entry is a message on its way into the table.
type entry struct {
	*Message
	id      string
	lane    int64
	headers []byte
	content dedup.Fingerprint
}

// shardOf: 64 of them, so that a mask of shards is one integer.
func shardOf(lane int64) int { return int(uint64(lane) % shards) }

// newEntry checks m; at is its place among those of one Write, for the errors.
func newEntry(m *Message, at int, now time.Time) (entry, error) {
	e := entry{Message: m, id: m.ID}
	if e.id == "" {
		e.id = newID(now)
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{{"ID", e.id, maxID}, {"Topic", m.Topic, maxTopic}, {"Key", m.Key, maxKey}} {
		if err := checkText(f.value, f.limit); err != nil {
			return e, fmt.Errorf("message %d, ID %q: Message.%s %w", at, m.ID, f.name, err)
		}
	}
	if m.Topic == "" {
		return e, fmt.Errorf("message %d, ID %q: Message.Topic is empty", at, m.ID)
	}
	for k, v := range m.Headers {
		if k == "" {
			return e, fmt.Errorf("message %d, ID %q: Message.Headers has an empty name", at, m.ID)
		}
		for _, text := range []string{k, v} {
			if err := checkText(text, maxVolume); err != nil {
				return e, fmt.Errorf("message %d, ID %q: Message.Headers[%q] %w", at, m.ID, k, err)
			}
		}
	}
	if len(m.Headers) > 0 {
		e.headers, _ = json.Marshal(m.Headers) // of strings it cannot fail, and sorts them
	}
	e.lane = laneOf(m.Key, e.id)
	e.content = contentOf(m, e.headers)
	return e, nil
}

// size is what the entry takes in a statement, or a little more.
func (e *entry) size() int {
	return len(e.id) + len(e.Topic) + len(e.Key) + len(e.headers) + len(e.Body) + 100
}

func checkText(s string, limit int) error {
	switch {
	case len(s) > limit:
		return fmt.Errorf("has %d bytes; %d is the limit", len(s), limit)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("has a NUL byte; databases and brokers do not take it in text")
	case !utf8.ValidString(s):
		return fmt.Errorf("is not valid UTF-8; send other bytes in the body, or encoded")
	}
	return nil
}

// laneOf names what is published in order: a key, or a message without one by itself. Two keys that
// should ever share a lane are in order with each other, too.
func laneOf(key, id string) int64 {
	text := "k" + key
	if key == "" {
		text = "i" + id
	}
	sum := sha256.Sum256([]byte(text))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// contentOf tells two messages of one ID apart. Headers of tracing are no part of it: a handler that
// runs twice is traced twice, and writes the same message.
func contentOf(m *Message, headers []byte) dedup.Fingerprint {
	for k := range m.Headers {
		if tracing(k) {
			rest := make(map[string]string, len(m.Headers))
			for k, v := range m.Headers {
				if !tracing(k) {
					rest[k] = v
				}
			}
			headers = nil
			if len(rest) > 0 {
				headers, _ = json.Marshal(rest)
			}
			break
		}
	}
	body := []byte{0} // none is not the same as an empty one
	if m.Body != nil {
		body[0] = 1
	}
	return dedup.FingerprintOf([]byte(m.Topic), []byte(m.Key), headers, body, m.Body)
}

// tracing knows the headers of W3C Trace Context, Baggage, B3 and Jaeger.
func tracing(name string) bool {
	switch name = strings.ToLower(name); name {
	case "traceparent", "tracestate", "baggage", "b3", "uber-trace-id":
		return true
	}
	return strings.HasPrefix(name, "x-b3-")
}

// newID is a UUIDv7: a time, which keeps an index's new entries together, and 74 random bits.
func newID(now time.Time) string {
	var u [16]byte
	rand.Read(u[6:]) // never fails: crypto/rand aborts the process instead
	binary.BigEndian.PutUint64(u[:8], uint64(now.UnixMilli())<<16|uint64(u[6])<<8|uint64(u[7]))
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	var b [36]byte
	hex.Encode(b[0:], u[0:4])
	hex.Encode(b[9:], u[4:6])
	hex.Encode(b[14:], u[6:8])
	hex.Encode(b[19:], u[8:10])
	hex.Encode(b[24:], u[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}
