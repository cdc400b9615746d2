package consumertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"
)

// words are the ways to settle a delivery.
var words = []struct {
	name string
	say  func(ctx context.Context, g got) error
}{
	{"Ack", func(ctx context.Context, g got) error { return g.Ack(ctx) }},
	{"Retry", func(ctx context.Context, g got) error { return g.Retry(ctx, 0, errors.New("again")) }},
	{"GiveBack", func(ctx context.Context, g got) error { return g.GiveBack(ctx) }},
}

var settleCases = []testCase{
	{"SecondSettleIsAnErrorAndChangesNothing", func(e *env) {
		m := e.open()
		var numbers, acked []int
		for range len(words) * len(words) {
			numbers = append(numbers, m.publish(1, "one")...)
		}
		all := m.collect(numbers)
		for i, first := range words {
			for j, second := range words {
				n := numbers[i*len(words)+j]
				require.NoError(e, e.patient(func(ctx context.Context) error { return first.say(ctx, all[n]) }), "%s of message %d", first.name, n)
				require.Error(e, e.patient(func(ctx context.Context) error { return second.say(ctx, all[n]) }), "%s after %s", second.name, first.name)
				if first.name == "Ack" {
					acked = append(acked, n)
				}
			}
		}
		m.ackAgain(numbers[len(acked):], all)
		m.reopen().nothingElse("one")
	}},
	{"OneOfManySettlesAtOnceWins", func(e *env) {
		const each = 4 // of every word, on every delivery
		m := e.open()
		numbers, all := m.fetch(6)
		var back []int
		for _, n := range numbers {
			start := make(chan struct{})
			var running sync.WaitGroup
			var wins, acks atomic.Int32
			for _, w := range words {
				for range each {
					running.Go(func() {
						<-start
						if e.patient(func(ctx context.Context) error { return w.say(ctx, all[n]) }) == nil {
							wins.Add(1)
							if w.name == "Ack" {
								acks.Add(1)
							}
						}
					})
				}
			}
			close(start)
			running.Wait()
			require.EqualValues(e, 1, wins.Load(), "how many of %d settles at once were accepted", each*len(words))
			if acks.Load() == 0 {
				back = append(back, n)
			}
		}
		m.ackAgain(back, all)
		m.reopen().nothingElse("one")
	}},
	{"SettlesMayComeFromManyGoroutines", func(e *env) {
		const n = 200
		m := e.open()
		m.publish(n, "one")
		var settling sync.WaitGroup
		var mu sync.Mutex
		var errs []error
		bounced, acked := make(map[int]bool), make(map[int]bool)
		for len(acked) < n {
			for _, g := range m.receive(50) {
				w := words[0]
				if g.number%3 > 0 && !bounced[g.number] {
					w = words[g.number%3]
					bounced[g.number] = true
				} else {
					acked[g.number] = true
				}
				settling.Go(func() {
					err := e.patient(func(ctx context.Context) error { return w.say(ctx, g) })
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				})
			}
		}
		settling.Wait()
		require.NoError(e, errors.Join(errs...))
		m.reopen().nothingElse("one")
	}},
}

// ackAgain waits for a new delivery of each message, and says Ack on it after the old
// delivery has been refused another word.
func (m *peer) ackAgain(numbers []int, old map[int]got) {
	m.Helper()
	again := m.collect(numbers)
	for n, g := range again {
		require.Error(m, m.patient(old[n].Ack), "Ack of an old delivery of message %d, settled long ago", n)
		require.NoError(m, m.patient(g.Ack), "Ack of the new delivery of message %d", n)
	}
}

var againCases = []testCase{
	{"AcknowledgedMessageDoesNotComeAgain", func(e *env) {
		const keys = 4
		m := e.open()
		var names []string
		for k := range keys {
			names = append(names, fmt.Sprint("key-", k))
			for _, g := range m.collect(m.publish(6, names[k])) {
				m.ack(g)
			}
		}
		m = m.reopen()
		m.nothingElse(names...)
		m.reopen().nothingElse(names...)
	}},
	{"UnsettledMessageComesAgainAfterClose", func(e *env) {
		m := e.open()
		numbers, _ := m.fetch(6)
		for range 2 { // however often
			m = m.reopen()
			m.collect(numbers)
		}
		m = m.reopen()
		for _, g := range m.collect(numbers) {
			m.ack(g)
		}
		m.reopen().nothingElse("one")
	}},
	{"WatermarkNeverPassesAnUnsettledMessage", func(e *env) {
		m := e.open()
		numbers, all := m.fetch(8)
		const open = 2 // acknowledged are those before it, and all behind it, the last first
		for i := range numbers {
			if i = len(numbers) - 1 - i; i != open {
				m.ack(all[numbers[i]])
			}
		}
		m = m.reopen()
		all = make(map[int]got)
		for all[numbers[open]].Delivery.Message == nil { // later ones may come, too: a position is all that some brokers keep
			for _, g := range m.receive(1) {
				require.GreaterOrEqual(e, g.number, numbers[open], "message %d, below the unsettled one, came again", g.number)
				all[g.number] = g
			}
		}
		for _, g := range all {
			m.ack(g)
		}
	}},
	{"IDIsTheSameOnEveryDelivery", func(e *env) {
		m := e.open()
		ms := make([]int, 0, 3)
		ms = append(ms, m.publish(3, "one")...)
		first := m.collect(ms)
		same := func(how string, again map[int]got) {
			e.Helper()
			for n, g := range again {
				require.Equal(e, first[n].broker, g.broker, "the broker's own ID of message %d after %s", n, how)
				require.Equal(e, first[n].Made, g.Made, "Made of message %d after %s", n, how)
				require.Equal(e, first[n].ID, g.ID, "ID of message %d by the default rules, after %s", n, how)
			}
		}
		for _, g := range first {
			require.NoError(e, e.patient(g.GiveBack))
		}
		again := m.collect(ms)
		same("GiveBack", again)
		for range 2 { // a second copy must not be named after the first
			for _, g := range again {
				require.NoError(e, e.patient(func(ctx context.Context) error { return g.Retry(ctx, e.conf.Delay, errors.New("again")) }))
			}
			again = m.collect(ms)
			same("Retry", again)
		}
		m = m.reopen()
		again = m.collect(ms)
		same("Close", again)
		for _, g := range again {
			m.ack(g)
		}
	}},
}
