package consumer

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"strconv"
	"strings"

	"github.com/idemq/idemq/dedup"
)

// IDRule is one way to name a message.
type IDRule struct {
	Name string                  // for logs and counters
	Of   func(m *Message) string // "" is no answer. While it runs, m.ID is the broker's own name.
	// BusinessKey: the ID names a piece of business within its topic, whatever the body says
	// ("charge order 7"); the topic becomes part of Message.ID and bodies are not compared. Default:
	// the ID names the message itself, and the same ID with another body is dead-lettered, run neither twice nor never.
	BusinessKey bool

	made bool // the broker's own name, which a machine may have made
}

var (
	// CloudEventsID is source and id, from headers (ce_source and ce_id, or cloudEvents:source
	// and cloudEvents:id) or, where the content type says application/cloudevents+json or
	// there is none, from a JSON body with specversion, source and id.
	CloudEventsID = IDRule{Name: "cloudevents", Of: cloudEventsID}
	// BrokerID is RabbitMQ's MessageId property, RocketMQ's message ID, Kafka's topic/partition/offset. The last two
	// are made by machines that can repeat themselves, so a hash of the body is part of them.
	BrokerID = IDRule{Name: "broker", Of: func(m *Message) string { return m.ID }, made: true}
	// BodyID is a hash of topic and body: it merges equal messages.
	BodyID = IDRule{Name: "body", Of: func(m *Message) string {
		return hexPrint(dedup.FingerprintOf([]byte(m.Topic), m.Body))
	}}
)

// HeaderID takes the ID from a header or property, whatever its case; an empty one is none. The ID names the message
// in the whole group, whatever its topic: producers of several topics that one group reads must not share their numbers.
func HeaderID(name string) IDRule {
	return IDRule{Name: "header:" + name, Of: func(m *Message) string { return m.header(name) }}
}

// DefaultRules name a message where Options.MessageID is empty.
func DefaultRules() []IDRule {
	return []IDRule{HeaderID("message-id"), HeaderID("idempotency-key"), CloudEventsID, BrokerID}
}

// Identify names m by the first of rules with an answer, as a Consumer does, and reports whether
// one had. m.ID must be the broker's own name; made as in [Delivery]. The name of a dead letter
// that came back, in its headers, outranks every rule. A rule that panics leaves m without a name.
func (m *Message) Identify(rules []IDRule, made bool) bool {
	named, _ := m.identify(rules, made)
	return named
}

// identify returns as an error what a rule panicked with: such a message must not go on under
// the name that a lesser rule would give it.
func (m *Message) identify(rules []IDRule, made bool) (named bool, err error) {
	var rule *IDRule
	defer func() {
		if p := recover(); p != nil {
			m.ID, m.IDFrom, m.print = "", "", dedup.Fingerprint{}
			named, err = false, fmt.Errorf("consumer: Options.MessageID rule %q panicked: %v", rule.Name, p)
		}
	}()
	const most = 1 << 30 // beyond it a number could not grow any more
	m.Redrive, _ = strconv.Atoi(m.Headers[RedriveHeader])
	m.Redrive = min(max(m.Redrive, 0), most)
	if id := m.Headers[IDHeader]; id != "" {
		m.ID, m.IDFrom, m.print = id, "header:"+IDHeader, bodyPrint(m.Body)
		return true, nil
	}
	for i := range rules {
		rule = &rules[i]
		id := rule.Of(m)
		if id == "" {
			continue
		}
		m.print = dedup.Fingerprint{}
		switch {
		case rule.BusinessKey:
			id = m.Topic + "/" + id
		case rule.made && made:
			id += "/" + hexPrint(bodyPrint(m.Body))
		default:
			m.print = bodyPrint(m.Body)
		}
		m.ID, m.IDFrom = id, rule.Name
		return true, nil
	}
	m.ID, m.IDFrom, m.print = "", "", dedup.Fingerprint{}
	return false, nil
}

// bodyPrint tells no value (a tombstone) from an empty one: under one ID they are two messages.
func bodyPrint(body []byte) dedup.Fingerprint {
	if body == nil {
		return dedup.FingerprintOf()
	}
	return dedup.FingerprintOf(body)
}

func hexPrint(f dedup.Fingerprint) string { return hex.EncodeToString(f[:]) }

func cloudEventsID(m *Message) string {
	for _, prefix := range [...]string{"ce_", "ce-", "cloudEvents:", "cloudEvents_"} {
		if id, source := m.header(prefix+"id"), m.header(prefix+"source"); id != "" && source != "" {
			return joinCloudEvent(source, id)
		}
	}
	if t := m.header("content-type"); t != "" {
		media, _, err := mime.ParseMediaType(t)
		if err != nil || media != "application/cloudevents+json" {
			return ""
		}
	}
	body := bytes.TrimPrefix(m.Body, []byte("\xef\xbb\xbf"))
	if body = bytes.TrimLeft(body, " \t\r\n"); len(body) == 0 || body[0] != '{' || !bytes.Contains(body, []byte(`"specversion"`)) {
		return ""
	}
	// The id is a string by the standard; numbers are taken as they are written, so that two
	// that differ only beyond a float's precision stay two.
	var e struct{ SpecVersion, Source, ID json.RawMessage }
	if json.Unmarshal(body, &e) != nil || len(e.SpecVersion) == 0 {
		return ""
	}
	source, id := jsonText(e.Source), jsonText(e.ID)
	if source == "" || id == "" {
		return ""
	}
	return joinCloudEvent(source, id)
}

// joinCloudEvent keeps (a, b/c) and (a/b, c) apart.
func joinCloudEvent(source, id string) string {
	return strings.ReplaceAll(source, " ", "%20") + " " + id
}

func jsonText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if s = string(raw); s == "null" {
		return ""
	}
	return s
}
