package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Message is one delivery. It and everything in it belong to the handler, for good.
type Message struct {
	ID        string            // names the work within Scope; logs and dedup.Work use the same string
	IDFrom    string            // the rule that named it
	Scope     string            // broker and group or queue, as in "kafka/billing"
	Topic     string            // topic, or exchange/routing key
	Key       string            // ordering key; never used as an ID
	Headers   map[string]string // of repeated headers the last; other types as text
	Body      []byte            // nil where the broker tells "no value" from an empty one
	Time      time.Time         // when it was produced
	Attempt   int               // 1 is the first
	Redrive   int               // how often an operator has ordered it to be run again
	Epoch     uint64            // fencing token; higher with every claim
	DeadCause string            // on messages read from a dead-letter destination
	Raw       any               // kafka.Message, *primitive.MessageExt or amqp091.Delivery; not to be acknowledged

	print dedup.Fingerprint // zero where bodies are not compared
}

// Headers that a dead letter carries beside the message's own. A tool that copies it back
// to where it came from, headers and all, thereby redrives it.
const (
	IDHeader      = "idemq-id"      // the message's name; outranks every IDRule
	RedriveHeader = "idemq-redrive" // the number under which a redrive runs
	CauseHeader   = "idemq-cause"   // why it was dead-lettered
	OriginHeader  = "idemq-origin"  // the topic it came from, or exchange/routing key
	ScopeHeader   = "idemq-scope"   // the group or queue that gave it up, the only one that a redrive is for
	KeptHeader    = "idemq-kept"    // on one that a Redrive has copied to the end of its topic: which
)

// redriveOf returns for whose scope m was redriven; "": it was not. It was if it is in the topic it was given up in:
// a dead letter stands in another, and headers that a handler passed on to a topic of its own name another as well.
func (m *Message) redriveOf() string {
	if origin := m.Headers[OriginHeader]; origin == "" || origin != m.Topic || m.Headers[RedriveHeader] == "" {
		return ""
	}
	return m.Headers[ScopeHeader]
}

// OutgoingHeaders are h without the headers of dead letters and redrives ("idemq-…"), for Publishers: those
// belong to the message that came, and a handler may pass its headers on to what it sends. It is h itself where
// there are none.
func OutgoingHeaders(h map[string]string) map[string]string {
	const own = "idemq-"
	var rest map[string]string
	for name := range h {
		if len(name) < len(own) || !strings.EqualFold(name[:len(own)], own) {
			continue
		}
		if rest == nil {
			rest = maps.Clone(h)
		}
		delete(rest, name)
	}
	if rest == nil {
		return h
	}
	return rest
}

// clone is m with headers and body of its own.
func (m *Message) clone() *Message {
	c := *m
	c.Body = slices.Clone(m.Body)
	c.Headers = maps.Clone(m.Headers)
	return &c
}

// DeadLetterHeaders are m's headers and those that a dead letter adds.
func (m *Message) DeadLetterHeaders(redrive int, cause error) map[string]string {
	h := make(map[string]string, len(m.Headers)+5)
	maps.Copy(h, m.Headers)
	if m.ID != "" {
		h[IDHeader] = m.ID
	}
	h[RedriveHeader] = strconv.Itoa(redrive)
	h[CauseHeader] = deadCause(cause)
	h[OriginHeader] = m.Topic
	h[ScopeHeader] = m.Scope
	return h
}

// deadCause is cause as a header can hold it everywhere: one line of text, at most 1 KiB.
func deadCause(cause error) string {
	if cause == nil {
		return ""
	}
	s := cause.Error()
	if len(s) > 1024 {
		s = s[:1024]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// Work is m's work as the consumer claims it, for dedup in a loop of your own.
func (m *Message) Work() dedup.Work {
	return dedup.Work{Scope: m.Scope, ID: m.ID, Fingerprint: m.print, Redrive: m.Redrive}
}

// ChildID returns the ID of the n-th message or call that handling m gives rise to: the same
// however often, wherever and by whichever redrive m is handled, and different in every scope.
func (m *Message) ChildID(n int) string {
	h := sha256.New()
	for _, p := range [...]string{m.Scope, m.ID, strconv.Itoa(n)} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// header finds a header whatever its case.
func (m *Message) header(name string) string {
	if v, ok := m.Headers[name]; ok {
		return v
	}
	for k, v := range m.Headers {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}
