package consumertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
)

var memberCases = []testCase{
	{"MembersShareTheWorkAndLoseNothing", func(e *env) {
		came := make(chan got)
		a := e.open()
		a.pump(came)
		e.publishSpread(20)
		seen := make(map[int]bool)
		take := func(what string) got {
			e.Helper()
			g := e.next(came, what)
			e.sameMessage(g.Message)
			require.NoError(e, e.patient(g.Ack), "Ack of message %d", g.number)
			seen[g.number] = true
			return g
		}
		for len(seen) < 20 {
			take("a message for the only member")
		}
		b := e.open()
		b.pump(came)
		e.bothReceive(a, b, take)
		for len(seen) < len(e.sent) {
			take(fmt.Sprintf("%d of %d messages have come", len(seen), len(e.sent)))
		}
	}},
	{"LostClosesWhenAMessageMovesToAnotherMember", func(e *env) {
		a := e.open()
		numbers := e.publishSpread(6)
		first := a.collect(numbers) // and keeps them
		came := make(chan got)
		a.pump(came)
		b := e.open()
		b.pump(came)
		latest := make(map[int]got)
		take := func(what string) got {
			e.Helper()
			g := e.next(came, what)
			if _, held := first[g.number]; held {
				latest[g.number] = g
			} else {
				require.NoError(e, e.patient(g.Ack))
			}
			return g
		}
		e.bothReceive(nil, b, take)
		for n := range latest {
			e.awaitLost(first[n], "it was delivered again")
		}
		for n, g := range first {
			if !g.lost() {
				require.NoError(e, e.patient(g.Ack), "Ack of message %d, whose session lives", n)
				continue
			}
			for latest[n].Message == nil {
				take(fmt.Sprintf("message %d, whose session was lost, to come again", n))
			}
			require.NoError(e, e.patient(g.Ack), "Ack of message %d on a lost session", n)
		}
	}},
	{"CloseEndsWithinItsContext", func(e *env) {
		e.open().close() // before there is any connection
		m := e.open()
		m.fetch(4) // nothing of it settled
		m.close()
		m = e.open()
		m.receive(1)
		ended, cancel := context.WithCancel(e.Context())
		cancel()
		begun := time.Now()
		m.once.Do(func() { _ = m.source.Close(ended) })
		require.Less(e, time.Since(begun), e.conf.Patience, "Close with an ended context")
	}},
}

// publishSpread publishes n messages under as many keys, so that every part gets some.
func (e *env) publishSpread(n int) (numbers []int) {
	e.Helper()
	for range n {
		m := e.message()
		m.Key = fmt.Sprint("spread-", len(e.sent))
		e.sent[len(e.sent)] = m
		e.conf.Publish(e.TB, m)
		numbers = append(numbers, len(e.sent))
	}
	return numbers
}

// bothReceive publishes until each of the two members (nil: not asked for) has received something.
func (e *env) bothReceive(a, b *peer, take func(what string) got) {
	e.Helper()
	end := time.Now().Add(e.conf.Patience)
	had := map[*peer]bool{nil: true}
	for !had[a] || !had[b] {
		require.False(e, time.Now().After(end), "two members are open, but only one was given anything, within Patience %v", e.conf.Patience)
		for range e.publishSpread(10) {
			had[take("a message for one of two members").from] = true
		}
		<-time.After(50 * time.Millisecond) // a rebalance takes seconds, and a flood would not hasten it
	}
}

var lostCases = []testCase{
	{"CutLosesSessionsAndNoMessage", func(e *env) {
		m := e.open()
		numbers, all := m.fetch(6)
		m.ack(all[numbers[0]])
		e.conf.Cut(e.TB)
		for _, n := range numbers[1:] {
			e.awaitLost(all[n], "its connection was cut")
		}
		again := m.collectAtLeast(numbers[1:])
		for n, g := range again {
			m.sameMessage(g.Message)
			require.False(e, g.lost(), "new delivery of message %d", n)
			m.ack(g)
		}
		m.reopen().nothingElse("one")
	}},
	{"SettleOnALostSessionIsANoOp", func(e *env) {
		m := e.open()
		numbers, old := m.fetch(3)
		e.conf.Cut(e.TB)
		for _, g := range old {
			e.awaitLost(g, "its connection was cut")
		}
		m.collectAtLeast(numbers)
		for i, w := range words {
			require.NoError(e, e.patient(func(ctx context.Context) error { return w.say(ctx, old[numbers[i]]) }), "%s on a lost session", w.name)
		}
		m = m.reopen() // nothing of the new session was settled, and the old words did not count
		for _, g := range m.collect(numbers) {
			m.ack(g)
		}
	}},
	{"RetrySurvivesACut", func(e *env) {
		m := e.open()
		n := m.publish(1, "one")[0]
		g := m.one(n)
		require.NoError(e, e.patient(func(ctx context.Context) error { return g.Retry(ctx, 3*e.conf.Delay, errors.New("busy")) }))
		e.conf.Cut(e.TB)
		g = m.waitFor(n, 3*e.conf.Delay)
		m.sameMessage(g.Message)
		m.ack(g)
	}},
}

// collectAtLeast is collect where messages may come that were acknowledged just before a
// fault, too: these are acknowledged once more.
func (m *peer) collectAtLeast(numbers []int) map[int]got {
	m.Helper()
	wanted := make(map[int]bool, len(numbers))
	for _, n := range numbers {
		wanted[n] = true
	}
	all := make(map[int]got, len(numbers))
	for len(all) < len(numbers) {
		for _, g := range m.receive(len(numbers)) {
			if wanted[g.number] {
				all[g.number] = g
			} else {
				m.ack(g)
			}
		}
	}
	return all
}
