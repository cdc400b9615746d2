package rocketmq

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/idemq/idemq/outbox"
)

// marker is what a marker row holds of its message.
type marker struct {
	topic      string
	head, body []byte
}

// envelope is a message without topic and body, as a row has it: any bytes may be in it.
type envelope struct {
	ID, Key []byte
	Headers [][2][]byte `json:",omitempty"`
}

func newMarker(m *outbox.Message) (marker, error) {
	e := envelope{ID: []byte(m.ID), Key: []byte(m.Key)}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		e.Headers = append(e.Headers, [2][]byte{[]byte(name), []byte(m.Headers[name])})
	}
	head, err := json.Marshal(e)
	return marker{topic: m.Topic, head: head, body: m.Body}, err
}

func (r *marker) message() (m outbox.Message, err error) {
	var e envelope
	if err := json.Unmarshal(r.head, &e); err != nil {
		return m, err
	}
	m = outbox.Message{ID: string(e.ID), Topic: r.topic, Key: string(e.Key), Body: r.body}
	for _, h := range e.Headers {
		if m.Headers == nil {
			m.Headers = make(map[string]string, len(e.Headers))
		}
		m.Headers[string(h[0])] = string(h[1])
	}
	return m, nil
}
