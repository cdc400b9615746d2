package consumertest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
)

var receiveCases = []testCase{
	{"EveryMessageIsDelivered", func(e *env) {
		const n, keys = 1000, 7
		ms := make([]consumer.Message, n)
		for i := range ms {
			ms[i] = e.message(withKey(fmt.Sprint("key-", i%keys)))
		}
		m := e.open()
		m.conf.Publish(e.TB, ms[:n/2]...)
		m.takeAll(n / 2)
		m.conf.Publish(e.TB, ms[n/2:]...) // with a live session
		m.takeAll(n / 2)
	}},
	{"MessageArrivesAsItWasPublished", func(e *env) {
		ms := e.odd()
		m := e.open()
		m.conf.Publish(e.TB, ms...)
		for left := len(ms); left > 0; {
			for _, g := range m.receive(4) {
				e.sameMessage(g.Message)
				require.NotEmpty(e, g.Topic, "Topic of message %d", g.number)
				require.False(e, g.Time.IsZero(), "Time of message %d", g.number)
				require.True(e, g.Deadline.IsZero() || g.Deadline.After(g.at), "Deadline %v of message %d, received %v", g.Deadline, g.number, g.at)
				m.ack(g)
				left--
			}
		}
	}},
	{"ReceiveReturnsAtLeastOneAndAtMostMax", func(e *env) {
		m := e.open()
		m.publish(30, "one")
		for left, max := 30, 1; left > 0; max = max%4 + 1 {
			gs := m.receive(max) // checks both bounds
			m.ack(gs...)
			left -= len(gs)
		}
	}},
	{"ReceiveEndsWithItsContextAndLosesNothing", func(e *env) {
		m := e.open()
		for range 3 { // the first time there is no session yet
			ctx, cancel := e.within(e.conf.Delay)
			begun := time.Now()
			_, err := m.receiveIn(ctx, 1)
			cancel()
			require.ErrorIs(e, err, context.DeadlineExceeded, "Receive of nothing")
			require.Less(e, time.Since(begun), e.conf.Delay+e.conf.Patience)
		}
		numbers := m.publish(5, "")
		ctx, cancel := context.WithCancel(e.Context())
		cancel()
		for range 3 {
			_, err := m.receiveIn(ctx, 1)
			require.ErrorIs(e, err, context.Canceled, "Receive with an ended context")
		}
		for _, g := range m.collect(numbers) {
			m.ack(g)
		}
	}},
	{"MadeTellsWhoseIDItIs", func(e *env) {
		m := e.open()
		same := func(m *consumer.Message) { m.ID = "order-1" }
		none := func(m *consumer.Message) { m.ID = "" }
		ms := []consumer.Message{e.message(same), e.message(same), e.message(none), e.message(none)}
		m.conf.Publish(e.TB, ms...)
		all := m.collect(numbersOf(ms))
		names := make(map[string]int)
		for n, g := range all {
			id := e.sent[n].ID
			switch {
			case g.Made:
				require.NotEmpty(e, g.broker, "an ID that the broker made")
				require.Zero(e, names[g.broker], "messages %d and %d have one ID, %q, made by the broker", n, names[g.broker], g.broker)
				names[g.broker] = n
			default:
				require.Equal(e, id, g.broker, "ID that the application set (Made is false)")
			}
			m.ack(g)
		}
	}},
	{"OrderIsKeptPerLane", func(e *env) {
		const n, keys = 400, 5
		ms := make([]consumer.Message, n)
		for i := range ms {
			ms[i] = e.message(withKey(fmt.Sprint("key-", i%keys)))
		}
		m := e.open()
		m.conf.Publish(e.TB, ms...)
		last, lanes := make(map[string]int), make(map[string]string)
		for left := n; left > 0; {
			gs := m.receive(7)
			for _, g := range gs {
				require.NotEmpty(e, g.Lane, "Lane of an ordered message")
				if l, ok := lanes[g.Key]; ok {
					require.Equal(e, l, g.Lane, "Lane of key %s", g.Key)
				}
				lanes[g.Key] = g.Lane
				require.Greater(e, g.number, last[g.Key], "number of a first delivery, after its predecessor of %s", g.Key)
				last[g.Key] = g.number
			}
			left -= len(gs)
			for i := range gs { // settled in another order than received
				m.ack(gs[len(gs)-1-i])
			}
		}
	}},
}

// takeAll acknowledges until n different messages have come.
func (m *peer) takeAll(n int) {
	m.Helper()
	seen := make(map[int]bool, n)
	for len(seen) < n {
		for _, g := range m.receive(100) {
			m.sameMessage(g.Message)
			require.False(m, seen[g.number], "message %d came twice although it was acknowledged", g.number)
			seen[g.number] = true
			m.ack(g)
		}
	}
}

// odd are messages that have been known to break in transit.
func (e *env) odd() []consumer.Message {
	body := func(b []byte) func(m *consumer.Message) {
		return func(m *consumer.Message) { m.Body = b }
	}
	header := func(name, value string) func(m *consumer.Message) {
		return func(m *consumer.Message) { m.Headers = map[string]string{name: value, "other": "kept"} }
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), e.conf.MaxBody/16+1)[:e.conf.MaxBody]
	ms := []consumer.Message{
		e.message(body([]byte{0})),
		e.message(body([]byte("\x00\xff\xfe\r\n\x01\x02"))),
		e.message(body(large)),
		e.message(header("long", strings.Repeat("v", 4096))),
		e.message(header("With-Case", "Kept As It Is; ünïcode 世界")),
		e.message(withKey("kéy/with sp ce")),
		e.message(withKey(strings.Repeat("k", 200))),
	}
	if !e.conf.NoEmptyBody {
		ms = append(ms, e.message(body(nil)), e.message(body([]byte{})))
	}
	if !e.conf.TextHeaders {
		ms = append(ms, e.message(header("binary", "\x00\x01\xff\xfe\n")), e.message(header("empty", "")))
	}
	return ms
}

// sameMessage compares what arrived with what was published under the same number.
func (e *env) sameMessage(m *consumer.Message) {
	e.Helper()
	n := numbersOf([]consumer.Message{*m})[0]
	sent, ok := e.sent[n]
	require.True(e, ok, "message %d was never published", n)
	e.sameContent(sent, *m)
	for name, v := range sent.Headers {
		got, ok := m.Headers[name]
		require.True(e, ok, "header %q of message %d is gone", name, n)
		require.Equal(e, v, got, "header %q of message %d", name, n)
	}
}

func (e *env) sameContent(sent, m consumer.Message) {
	e.Helper()
	n := numbersOf([]consumer.Message{sent})[0]
	require.True(e, bytes.Equal(sent.Body, m.Body), "body of message %d: %d bytes were sent, %d other ones came", n, len(sent.Body), len(m.Body))
	if !e.conf.NilIsEmpty {
		require.Equal(e, sent.Body == nil, m.Body == nil, "body of message %d: nil and empty are told apart", n)
	}
	if e.conf.Ordered {
		require.Equal(e, sent.Key, m.Key, "key of message %d", n)
	}
}
