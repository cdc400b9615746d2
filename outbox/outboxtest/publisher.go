package outboxtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// PublisherConfig says how to test a Publisher.
type PublisherConfig struct {
	// Open returns a publisher to a broker that works; the test closes it. Required.
	Open func(tb testing.TB) outbox.Publisher
	// Topic returns a topic that nobody else uses and that exists. Required.
	Topic func(tb testing.TB) string
	// Received returns all that is in the topic, of each key in the broker's order, once there are at least n
	// messages. Required.
	Received func(tb testing.TB, topic string, n int) []outbox.Message
	// Missing is a topic that takes no message until somebody makes it. Required.
	Missing string
	// TooLarge is the size of a body that the broker does not take. Zero: it takes everything.
	TooLarge int
	// Down returns a publisher to a broker that does not answer. Required.
	Down func(tb testing.TB) outbox.Publisher
	// Cut breaks every connection of the publishers opened so far. Nil: it cannot be done.
	Cut func(tb testing.TB)
	// NilIsEmpty: the broker does not tell a body of no bytes from none.
	NilIsEmpty bool
	// Report is told of each case that did not fail, and why it did not apply; "" where it did. Nil: nobody is.
	Report func(name, inapplicable string)
}

// inapplicable says why the case of that name cannot be run with c; "" for all others.
func (c PublisherConfig) inapplicable(name string) (why string) {
	if c.Cut == nil && name == "WhatACutLeftOpenIsNotTakenForSent" {
		return "its connections cannot be cut (PublisherConfig.Cut)"
	}
	return ""
}

// TestPublisher runs every rule of the port that applies. config is called for t, to know which do, and for each
// case, and cleans up with tb.
func TestPublisher(t *testing.T, config func(tb testing.TB) PublisherConfig) {
	about := config(t)
	for _, c := range publisherCases {
		if why := about.inapplicable(c.name); why != "" {
			t.Logf("%s does not apply: %s", c.name, why)
			if about.Report != nil {
				about.Report(c.name, why)
			}
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := &publishing{TB: t, PublisherConfig: config(t)}
			if p.Report != nil {
				t.Cleanup(func() {
					if !t.Failed() {
						p.Report(c.name, "")
					}
				})
			}
			c.run(p)
		})
	}
}

var publisherCases = []struct {
	name string
	run  func(p *publishing)
}{
	{"MessagesArriveAsTheyWereGiven", (*publishing).asGiven},
	{"EachMessageHasItsOwnAnswer", (*publishing).ownAnswers},
	{"OnlyWhatWillNeverBeTakenIsFinal", (*publishing).final},
	{"MessagesOfAKeyStayInOrderOverCalls", (*publishing).order},
	{"AWindowOfAThousandIsAnsweredAtOnce", (*publishing).window},
	{"ABrokerThatCannotBeAskedSaysNothingOfAnyMessage", (*publishing).cannotBeAsked},
	{"PublishEndsSoonAfterItsContext", (*publishing).endsSoon},
	{"WhatACutLeftOpenIsNotTakenForSent", (*publishing).cut},
}

type publishing struct {
	testing.TB
	PublisherConfig
}

func (p *publishing) open() outbox.Publisher {
	pub := p.Open(p.TB)
	p.Cleanup(func() { closePublisher(pub) })
	return pub
}

func closePublisher(pub outbox.Publisher) {
	if c, ok := pub.(interface{ Close() error }); ok {
		_ = c.Close()
	}
}

// send publishes ms and returns their answers.
func (p *publishing) send(pub outbox.Publisher, ms ...outbox.Message) []error {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), eventually)
	defer cancel()
	errs := make([]error, len(ms))
	require.NoError(p, pub.Publish(ctx, ms, errs))
	return errs
}

func (p *publishing) sent(errs []error) {
	p.Helper()
	for i, err := range errs {
		require.NoError(p, err, "message %d", i)
	}
}

// received finds what is in the topic by ID; each is there once.
func (p *publishing) received(topic string, n int) map[string]outbox.Message {
	p.Helper()
	got := make(map[string]outbox.Message)
	for _, m := range p.Received(p.TB, topic, n) {
		require.NotContains(p, got, m.ID, "it is there twice")
		got[m.ID] = m
	}
	require.Len(p, got, n)
	return got
}

// ofAnother are headers by which a consumer would name or steer the message, as a handler has them from
// the message that it handles, and may pass on.
var ofAnother = map[string]string{
	"message-id": "another", "Message-ID": "another", "idempotency-key": "another",
	"idemq-id": "another", "idemq-redrive": "another", "idemq-scope": "another", "idemq-cause": "another", "idemq-origin": "another",
}

func (p *publishing) asGiven() {
	topic := p.Topic(p.TB)
	ms := []outbox.Message{
		{ID: "full", Topic: topic, Key: "key ü", Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x": "größe \"\\"}, Body: []byte("\x00\xff{}")},
		{ID: "none", Topic: topic, Key: "k2"},
		{ID: "empty", Topic: topic, Body: []byte{}},
		{ID: "large", Topic: topic, Body: make([]byte, 500_000)},
		{ID: "passed on", Topic: topic, Headers: ofAnother, Body: []byte("b")},
	}
	p.sent(p.send(p.open(), ms...))
	got := p.received(topic, len(ms))
	for k := range ofAnother {
		if k != "idempotency-key" { // which may be somebody else's, and names nothing beside the ID
			require.NotEqual(p, "another", got["passed on"].Headers[k], k)
		}
	}
	ms[4].Headers = nil
	for _, m := range ms {
		g := got[m.ID]
		require.Equal(p, m.Key, g.Key, m.ID)
		for k, v := range m.Headers {
			require.Equal(p, v, g.Headers[k], k)
		}
		if len(m.Body) > 0 || !p.NilIsEmpty {
			require.Equal(p, m.Body, g.Body, m.ID)
		} else {
			require.Empty(p, g.Body, m.ID)
		}
	}
}

func (p *publishing) ownAnswers() {
	topic := p.Topic(p.TB)
	ms := []outbox.Message{
		{ID: "0", Topic: topic, Key: "a"}, {ID: "1", Topic: p.Missing, Key: "b"}, {ID: "2", Topic: topic, Key: "c"},
		{ID: "3"}, {ID: "4", Topic: topic},
	}
	good := 3
	if p.TooLarge > 0 {
		ms = append(ms, outbox.Message{ID: "5", Topic: topic, Key: "d", Body: make([]byte, p.TooLarge)}, outbox.Message{ID: "6", Topic: topic, Key: "e"})
		good++
	}
	bad := map[int]bool{1: true, 3: true, 5: true}
	for i, err := range p.send(p.open(), ms...) {
		if bad[i] {
			require.Error(p, err, "message %d", i)
			require.ErrorContains(p, err, fmt.Sprintf("%q", ms[i].ID), "the answer names the message")
		} else {
			require.NoError(p, err, "message %d", i)
		}
	}
	p.received(topic, good)
}

func (p *publishing) final() {
	pub := p.open()
	topic := p.Topic(p.TB)
	require.False(p, outbox.IsPermanent(p.send(pub, outbox.Message{ID: "missing", Topic: p.Missing})[0]), "somebody may make the topic")
	require.True(p, outbox.IsPermanent(p.send(pub, outbox.Message{ID: "nowhere"})[0]), "a message without a topic")
	if p.TooLarge > 0 {
		errs := p.send(pub, outbox.Message{ID: "large", Topic: topic, Body: make([]byte, p.TooLarge)}, outbox.Message{ID: "small", Topic: topic})
		require.True(p, outbox.IsPermanent(errs[0]), "too large: %v", errs[0])
		require.NoError(p, errs[1])
	}
}

func (p *publishing) order() {
	topic, pub := p.Topic(p.TB), p.open()
	const keys, each = 7, 30
	for n := range each {
		ms := make([]outbox.Message, keys)
		for k := range keys {
			ms[k] = outbox.Message{ID: fmt.Sprintf("%d.%d", k, n), Topic: topic, Key: fmt.Sprint("key", k)}
		}
		p.sent(p.send(pub, ms...))
	}
	next := make(map[string]int)
	for _, m := range p.Received(p.TB, topic, keys*each) {
		require.Equal(p, fmt.Sprintf("%s.%d", m.Key[3:], next[m.Key]), m.ID)
		next[m.Key]++
	}
	require.Len(p, next, keys)
}

func (p *publishing) window() {
	topic := p.Topic(p.TB)
	ms := make([]outbox.Message, 1000)
	for i := range ms {
		ms[i] = outbox.Message{ID: fmt.Sprint(i), Topic: topic, Key: fmt.Sprint("k", i), Body: make([]byte, 256)}
	}
	p.sent(p.send(p.open(), ms...))
	p.received(topic, len(ms))
}

func (p *publishing) cannotBeAsked() {
	pub := p.Down(p.TB)
	p.Cleanup(func() { closePublisher(pub) })
	ctx, cancel := context.WithTimeout(p.Context(), 2*time.Second)
	defer cancel()
	errs := make([]error, 2)
	require.Error(p, pub.Publish(ctx, []outbox.Message{{ID: "1", Topic: "t", Key: "a"}, {ID: "2", Topic: "t", Key: "b"}}, errs))
	require.Equal(p, []error{nil, nil}, errs)
}

func (p *publishing) endsSoon() {
	pub := p.Down(p.TB)
	p.Cleanup(func() { closePublisher(pub) })
	ctx, cancel := context.WithTimeout(p.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	require.Error(p, pub.Publish(ctx, []outbox.Message{{ID: "1", Topic: "t"}}, make([]error, 1)))
	require.Less(p, time.Since(began), 3*time.Second)
	ended, end := context.WithCancel(p.Context())
	end()
	topic := p.Topic(p.TB)
	errs := make([]error, 1)
	if err := p.open().Publish(ended, []outbox.Message{{ID: "1", Topic: topic}}, errs); err == nil {
		require.Error(p, errs[0], "it had no time to ask")
	}
}

// cut breaks the connections while a relay would be publishing: a message that is not answered with nil comes
// again, and none that is may be missing.
func (p *publishing) cut() {
	topic, pub := p.Topic(p.TB), p.open()
	p.sent(p.send(pub, outbox.Message{ID: "first", Topic: topic}))
	sent := map[string]bool{"first": true}
	for round := range 5 {
		ms, errs := make([]outbox.Message, 200), make([]error, 200)
		for i := range ms {
			ms[i] = outbox.Message{ID: fmt.Sprintf("%d.%d", round, i), Topic: topic, Key: fmt.Sprint(i), Body: make([]byte, 1000)}
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(p.Context(), eventually)
		go func() { done <- pub.Publish(ctx, ms, errs) }()
		p.Cut(p.TB)
		err := <-done
		cancel()
		for i := range ms {
			if err == nil && errs[i] == nil {
				sent[ms[i].ID] = true
			} else if err != nil {
				require.NoError(p, errs[i], "it could not be asked, and says something of a message")
			}
		}
	}
	p.sent(p.send(pub, outbox.Message{ID: "last", Topic: topic}))
	sent["last"] = true
	there := make(map[string]bool)
	for _, m := range p.Received(p.TB, topic, len(sent)) {
		there[m.ID] = true
	}
	for id := range sent {
		require.True(p, there[id], "%s was taken for sent", id)
	}
}
