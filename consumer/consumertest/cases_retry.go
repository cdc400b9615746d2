package consumertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
)

// clockSlack is by how much a delay may seem too short, since brokers count in milliseconds.
const clockSlack = 2 * time.Millisecond

var retryCases = []testCase{
	{"RetryBringsTheMessageAgainNotBeforeItsDelay", func(e *env) {
		m := e.open()
		n := m.publish(1, "")[0]
		g := m.one(n)
		for _, d := range []time.Duration{e.conf.Delay, 3 * e.conf.Delay} {
			asked := time.Now()
			require.NoError(e, e.patient(func(ctx context.Context) error { return g.Retry(ctx, d, errors.New("busy")) }))
			g = m.waitFor(n, d)
			require.GreaterOrEqual(e, g.at.Sub(asked)+clockSlack, d, "time until the message came again")
		}
		m.ack(g)
		m.nothingElse("")
	}},
	{"RetryKeepsTheMessage", func(e *env) {
		m := e.open()
		redriven := func(m *consumer.Message) {
			m.Headers = map[string]string{consumer.RedriveHeader: "7", consumer.IDHeader: "the-work", "own": "kept"}
		}
		ms := append(e.odd(), e.message(redriven))
		for _, sent := range ms { // one at a time: some are large
			m.conf.Publish(e.TB, sent)
			n := numbersOf([]consumer.Message{sent})[0]
			first := m.one(n)
			require.NoError(e, e.patient(func(ctx context.Context) error { return first.Retry(ctx, 0, errors.New("busy")) }))
			g := m.one(n)
			m.sameMessage(g.Message)
			require.Equal(e, first.Redrive, g.Redrive, "redrive number of message %d", n)
			require.Equal(e, first.Topic, g.Topic, "Topic of message %d: where it was published, not where it waited", n)
			for name := range g.Headers {
				_, had := first.Headers[name]
				require.True(e, had || !strings.HasPrefix(name, "idemq-"), "header %q of message %d appeared by a Retry", name, n)
			}
			m.ack(g)
		}
	}},
	{"RetryHoldsNobodyElseUp", func(e *env) {
		m := e.open()
		held := m.one(m.publish(1, "")[0])
		d := max(10*e.conf.Delay, 5*time.Second)
		require.NoError(e, e.patient(func(ctx context.Context) error { return held.Retry(ctx, d, errors.New("busy")) }))
		for range 3 {
			m.ack(m.one(m.publish(1, "")[0])) // fails if the held one comes first
		}
	}},
	{"RetryInProgressNeverEndsAMessage", func(e *env) {
		m := e.open()
		n := m.publish(1, "")[0]
		cause := fmt.Errorf("held by another process: %w", dedup.ErrInProgress)
		for range 100 {
			g := m.one(n)
			require.NoError(e, e.patient(func(ctx context.Context) error { return g.Retry(ctx, 0, cause) }))
		}
		m.ack(m.one(n))
		e.deadLetters(0)
	}},
	{"GiveBackBringsTheMessageAgainAtOnce", func(e *env) {
		m := e.open()
		numbers, all := m.fetch(4)
		for range 20 { // uncounted
			for _, g := range all {
				require.NoError(e, e.patient(g.GiveBack))
			}
			all = m.collect(numbers)
		}
		for _, g := range all {
			m.sameMessage(g.Message)
			m.ack(g)
		}
		e.deadLetters(0)
	}},
}

// waitFor waits for a message that is to come after d.
func (m *peer) waitFor(number int, d time.Duration) got {
	m.Helper()
	patient := *m.env
	patient.conf.Patience += d
	return (&peer{env: &patient, source: m.source}).one(number)
}

var deadCases = []testCase{
	{"DeadLetterIsACopyWithItsCauseAndOrigin", func(e *env) {
		m := e.open()
		n := m.publish(1, "")[0]
		g := m.one(n)
		g.ID = "named by a rule" // as a Consumer does, in place
		cause := errors.New("card expired:\nline two, ünïcode")
		require.NoError(e, e.patient(func(ctx context.Context) error { return g.DeadLetter(ctx, 3, cause) }), "DeadLetter")
		require.NoError(e, e.patient(g.Ack), "Ack after DeadLetter")
		h := e.deadLetters(1)[n].Headers
		want := g.DeadLetterHeaders(3, cause)
		for _, name := range []string{consumer.IDHeader, consumer.RedriveHeader, consumer.CauseHeader, consumer.OriginHeader, consumer.ScopeHeader} {
			require.Equal(e, want[name], h[name], "header %s of a dead letter", name)
		}
		require.Equal(e, "named by a rule", h[consumer.IDHeader], "the ID that the Consumer gave the message")
		m.nothingElse("")
		e.deadLetters(1)
	}},
	{"DeadLetterKeepsTheMessage", func(e *env) {
		m := e.open()
		old := func(m *consumer.Message) {
			m.Headers = map[string]string{consumer.RedriveHeader: "1", consumer.IDHeader: "the-work", consumer.CauseHeader: "the cause before"}
		}
		ms := append(e.odd(), e.message(old))
		for _, sent := range ms {
			if len(sent.Body) == e.conf.MaxBody {
				continue // no room is left for headers
			}
			m.conf.Publish(e.TB, sent)
			g := m.one(numbersOf([]consumer.Message{sent})[0])
			require.NoError(e, e.patient(func(ctx context.Context) error { return g.DeadLetter(ctx, 2, errors.New("no")) }))
			m.ack(g)
		}
		for n, dead := range e.deadLetters(len(ms) - 1) {
			sent := e.sent[n]
			e.sameContent(sent, dead)
			for name, v := range sent.Headers {
				if name != consumer.RedriveHeader && name != consumer.CauseHeader {
					require.Equal(e, v, dead.Headers[name], "header %q of the dead letter of message %d", name, n)
				}
			}
			require.Equal(e, "2", dead.Headers[consumer.RedriveHeader])
			require.Equal(e, "no", dead.Headers[consumer.CauseHeader])
		}
	}},
	{"DeadLetterIsNotTheLastWord", func(e *env) {
		m := e.open()
		n := m.publish(1, "one")[0]
		g := m.one(n)
		require.NoError(e, e.patient(func(ctx context.Context) error { return g.DeadLetter(ctx, 1, errors.New("no")) }))
		m = m.reopen() // before its Ack
		g = m.one(n)
		m.sameMessage(g.Message)
		m.ack(g)
		m.reopen().nothingElse("one")
		e.deadLetters(1)
	}},
}
