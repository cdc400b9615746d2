package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/outbox"
	"github.com/idemq/idemq/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic   = "topic"
	largest = 600_000
)

// memory is a broker, and a publisher to it.
type memory struct {
	mu   sync.Mutex
	got  []outbox.Message
	cuts int
	down bool

	// The faults.
	change  func(m *outbox.Message) // on its way
	answer  func(m *outbox.Message, err error) error
	swap    bool // the order of a call's messages with those of the last one
	lose    func(m *outbox.Message) bool
	accuse  bool // messages, of a broker that is down
	deaf    bool // to its context
	pass    bool // headers that name another message
	waiting []outbox.Message
}

func (b *memory) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	b.mu.Lock()
	cuts := b.cuts
	b.mu.Unlock()
	if b.down {
		if b.deaf {
			time.Sleep(time.Minute)
		}
		if b.accuse {
			errs[0] = errors.New("it is down")
		}
		<-ctx.Done()
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range ms {
		m := ms[i]
		if !b.pass {
			m.Headers = maps.Clone(m.Headers)
			maps.DeleteFunc(m.Headers, func(name, _ string) bool {
				return strings.HasPrefix(name, "idemq-") || strings.EqualFold(name, "message-id")
			})
		}
		err := b.judge(&m)
		if b.answer != nil {
			err = b.answer(&m, err)
		}
		if errs[i] = err; err != nil || b.lose != nil && b.lose(&m) || b.cuts != cuts {
			continue
		}
		if b.change != nil {
			b.change(&m)
		}
		b.keep(m)
	}
	return nil
}

func (b *memory) judge(m *outbox.Message) error {
	switch {
	case m.Topic == "":
		return outbox.Permanent(fmt.Errorf("publish %q: no topic", m.ID))
	case len(m.Body) > largest:
		return outbox.Permanent(fmt.Errorf("publish %q: too large", m.ID))
	case m.Topic != topic:
		return fmt.Errorf("publish %q: there is no topic %s", m.ID, m.Topic)
	}
	return nil
}

func (b *memory) keep(m outbox.Message) {
	if b.swap && len(b.waiting) == 0 && strings.HasSuffix(m.ID, ".3") {
		b.waiting = append(b.waiting, m)
		return
	}
	b.got = append(b.got, m)
	if len(b.waiting) > 0 && b.waiting[0].Key == m.Key {
		b.got, b.waiting = append(b.got, b.waiting...), nil
	}
}

func configOf(edit func(b *memory)) func(testing.TB) outboxtest.PublisherConfig {
	return func(testing.TB) outboxtest.PublisherConfig {
		b, away := &memory{}, &memory{down: true}
		edit(b)
		edit(away)
		return outboxtest.PublisherConfig{
			Open:  func(testing.TB) outbox.Publisher { return b },
			Topic: func(testing.TB) string { return topic },
			Received: func(tb testing.TB, _ string, n int) []outbox.Message {
				b.mu.Lock()
				defer b.mu.Unlock()
				return slices.Clone(b.got)
			},
			Missing: "missing", TooLarge: largest + 1,
			Down: func(testing.TB) outbox.Publisher { return away },
			Cut: func(testing.TB) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.cuts++
			},
		}
	}
}

func TestSuiteCatchesEveryMutant(t *testing.T) {
	covered := make(map[string]bool)
	for _, mu := range []struct {
		fault, caught string
		make          func(b *memory)
	}{
		{"headers are dropped", "MessagesArriveAsTheyWereGiven", func(b *memory) { b.change = func(m *outbox.Message) { m.Headers = nil } }},
		{"headers name another message", "MessagesArriveAsTheyWereGiven", func(b *memory) { b.pass = true }},
		{"no body becomes an empty one", "MessagesArriveAsTheyWereGiven", func(b *memory) { b.change = func(m *outbox.Message) { m.Body = append([]byte{}, m.Body...) } }},
		{"the ID is not sent", "MessagesArriveAsTheyWereGiven", func(b *memory) { b.change = func(m *outbox.Message) { m.ID = "" } }},
		{"the key is not sent", "MessagesArriveAsTheyWereGiven", func(b *memory) { b.change = func(m *outbox.Message) { m.Key = "" } }},
		{"unroutable messages are taken for sent", "EachMessageHasItsOwnAnswer", func(b *memory) {
			b.answer = func(m *outbox.Message, err error) error {
				if m.Topic == "missing" {
					return nil
				}
				return err
			}
		}},
		{"a refusal takes others with it", "EachMessageHasItsOwnAnswer", func(b *memory) {
			b.answer = func(m *outbox.Message, err error) error {
				if m.ID == "6" {
					return errors.New("in bad company")
				}
				return err
			}
		}},
		{"a missing topic is final", "OnlyWhatWillNeverBeTakenIsFinal", func(b *memory) {
			b.answer = func(_ *outbox.Message, err error) error { return outbox.Permanent(err) }
		}},
		{"too large is not final", "OnlyWhatWillNeverBeTakenIsFinal", func(b *memory) {
			b.answer = func(m *outbox.Message, err error) error {
				if err != nil && m.Topic == topic {
					return errors.New(err.Error())
				}
				return err
			}
		}},
		{"one call overtakes another", "MessagesOfAKeyStayInOrderOverCalls", func(b *memory) { b.swap = true }},
		{"confirms beyond the 512th are not awaited", "AWindowOfAThousandIsAnsweredAtOnce", func(b *memory) { b.lose = func(m *outbox.Message) bool { return m.ID == "700" } }},
		{"a broker that is down charges a message", "ABrokerThatCannotBeAskedSaysNothingOfAnyMessage", func(b *memory) { b.accuse = true }},
		{"the context is not looked at", "PublishEndsSoonAfterItsContext", func(b *memory) { b.deaf = true }},
		{"what was under way in a cut is taken for sent", "WhatACutLeftOpenIsNotTakenForSent", func(b *memory) {
			b.lose = func(m *outbox.Message) bool { return m.ID == "3.7" }
		}},
	} {
		failed, said := outboxtest.RunPublisherCase(t, mu.caught, configOf(mu.make))
		require.True(t, failed, "%s: not caught by %s", mu.fault, mu.caught)
		t.Logf("%s: %s: %s", mu.fault, mu.caught, strings.Join(strings.Fields(said[strings.LastIndex(said, "Error:")+6:]), " "))
		covered[mu.caught] = true
	}
	for _, name := range outboxtest.PublisherCaseNames() {
		require.True(t, covered[name], "no mutant shows that %s can fail", name)
		failed, said := outboxtest.RunPublisherCase(t, name, configOf(func(*memory) {}))
		require.False(t, failed, "%s: %s", name, said)
	}
}
