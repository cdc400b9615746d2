package consumertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
)

// numberHeader tells the suite's messages apart, whatever else a case makes of them.
const numberHeader = "consumertest-number"

// env is one case's broker and what the case does with it.
type env struct {
	testing.TB
	conf Config
	sent map[int]consumer.Message // by number
}

func newEnv(tb testing.TB, c Config) *env {
	tb.Helper()
	return &env{TB: tb, conf: c.filled(tb), sent: make(map[int]consumer.Message)}
}

// message is the next one to publish, edited.
func (e *env) message(edit ...func(m *consumer.Message)) consumer.Message {
	n := len(e.sent) + 1
	m := consumer.Message{ID: fmt.Sprint("id-", n), Body: fmt.Append(nil, "body ", n)}
	for _, f := range edit {
		f(&m)
	}
	h := maps.Clone(m.Headers)
	if h == nil {
		h = make(map[string]string)
	}
	h[numberHeader] = strconv.Itoa(n)
	m.Headers = h
	e.sent[n] = m
	return m
}

func withKey(key string) func(m *consumer.Message) {
	return func(m *consumer.Message) { m.Key = key }
}

// publish sends n plain messages, in one lane if key is not empty, and returns their numbers.
func (e *env) publish(n int, key string) []int {
	e.Helper()
	ms := make([]consumer.Message, n)
	for i := range ms {
		ms[i] = e.message(withKey(key))
	}
	e.conf.Publish(e.TB, ms...)
	return numbersOf(ms)
}

func numbersOf(ms []consumer.Message) []int {
	ns := make([]int, len(ms))
	for i := range ms {
		ns[i], _ = strconv.Atoi(ms[i].Headers[numberHeader])
	}
	return ns
}

// within is a context that ends after d. Patience bounds everything a case waits for.
func (e *env) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(e.Context()), d)
}

// patient calls f with a context that lasts as long as the case's patience.
func (e *env) patient(f func(ctx context.Context) error) error {
	ctx, cancel := e.within(e.conf.Patience)
	defer cancel()
	return f(ctx)
}

// got is a delivery as a Consumer has it: named by the default rules.
type got struct {
	consumer.Delivery
	number int
	broker string // the broker's own name for it
	at     time.Time
	from   *peer
	err    error // of a Receive in the background
}

func (g got) lost() bool {
	select {
	case <-g.Lost:
		return true
	default:
		return false
	}
}

// peer is one open Source, a member of the group.
type peer struct {
	*env
	source consumer.Source
	once   sync.Once
}

// open opens one more member, closed at the end of the case.
func (e *env) open() *peer {
	e.Helper()
	s := e.conf.Open(e.TB)
	require.NotNil(e, s, "Config.Open returned nil")
	m := &peer{env: e, source: s}
	e.Cleanup(func() { m.once.Do(func() { _ = e.patient(s.Close) }) })
	return m
}

// close closes m in time.
func (m *peer) close() {
	m.Helper()
	m.once.Do(func() {
		begun := time.Now()
		require.NoError(m, m.patient(m.source.Close), "Close")
		require.LessOrEqual(m, time.Since(begun), m.conf.Patience+time.Second, "Close returned after its context")
	})
}

// reopen is a restart: what was not settled counts as crashed.
func (m *peer) reopen() *peer {
	m.Helper()
	m.close()
	return m.open()
}

// receive is one Receive, which must bring something.
func (m *peer) receive(max int) []got {
	m.Helper()
	ctx, cancel := m.within(m.conf.Patience)
	defer cancel()
	gs, err := m.receiveIn(ctx, max)
	require.NoError(m, err, "Receive within Patience %v", m.conf.Patience)
	return gs
}

// receiveIn may be called on any goroutine; what breaks a rule is its error.
func (m *peer) receiveIn(ctx context.Context, max int) ([]got, error) {
	ds, err := m.source.Receive(ctx, max)
	now := time.Now()
	switch {
	case err != nil && len(ds) > 0:
		return nil, fmt.Errorf("Receive returned %d deliveries beside the error %w", len(ds), err)
	case err != nil:
		return nil, err
	case len(ds) == 0:
		return nil, errors.New("Receive returned neither a delivery nor an error")
	case len(ds) > max:
		return nil, fmt.Errorf("Receive of at most %d returned %d deliveries", max, len(ds))
	}
	gs := make([]got, len(ds))
	for i, d := range ds {
		if d.Message == nil || d.Settler == nil {
			return nil, fmt.Errorf("delivery %d of %d lacks its Message or its Settler", i, len(ds))
		}
		g := got{Delivery: d, broker: d.ID, at: now, from: m}
		if g.number, err = strconv.Atoi(d.Headers[numberHeader]); err != nil {
			return nil, fmt.Errorf("delivery %q came without the header %s it was published with; headers: %q", d.ID, numberHeader, d.Headers)
		}
		d.Identify(consumer.DefaultRules(), d.Made) // as a Consumer does before anything else
		gs[i] = g
	}
	return gs, nil
}

// collect receives until it has one delivery of each number, the latest. What else comes is an error.
func (m *peer) collect(numbers []int) map[int]got {
	m.Helper()
	wanted := make(map[int]bool, len(numbers))
	for _, n := range numbers {
		wanted[n] = true
	}
	all := make(map[int]got, len(numbers))
	end := time.Now().Add(m.conf.Patience)
	for len(all) < len(numbers) {
		ctx, cancel := m.within(time.Until(end))
		gs, err := m.receiveIn(ctx, len(numbers))
		cancel()
		require.NoError(m, err, "Receive, after %d of %d messages within Patience %v", len(all), len(numbers), m.conf.Patience)
		for _, g := range gs {
			require.True(m, wanted[g.number], "message %d came, which should not have", g.number)
			all[g.number] = g
		}
	}
	return all
}

// one waits for a delivery of the given message; nothing else may come.
func (m *peer) one(number int) got {
	m.Helper()
	return m.collect([]int{number})[number]
}

// fetch publishes n messages in one lane and receives them; nothing of it is settled.
func (m *peer) fetch(n int) ([]int, map[int]got) {
	m.Helper()
	numbers := m.publish(n, "one")
	return numbers, m.collect(numbers)
}

// ack acknowledges gs.
func (e *env) ack(gs ...got) {
	e.Helper()
	for _, g := range gs {
		require.NoError(e, e.patient(g.Ack), "Ack of message %d", g.number)
	}
}

// nothingElse proves that none of what was published before under keys comes again: messages
// published now overtake nothing, and behind them there is silence.
func (m *peer) nothingElse(keys ...string) {
	m.Helper()
	var last []int
	for _, k := range keys {
		last = append(last, m.publish(1, k)...)
	}
	for _, g := range m.collect(last) {
		m.ack(g)
	}
	ctx, cancel := m.within(max(m.conf.Delay, 200*time.Millisecond))
	defer cancel()
	gs, err := m.receiveIn(ctx, 100)
	for _, g := range gs {
		require.Fail(m, "came again", "message %d came, which should not have", g.number)
	}
	require.ErrorIs(m, err, context.DeadlineExceeded, "Receive of nothing")
}

// pump receives in the background, one delivery at a time, until the end of the case.
func (m *peer) pump(into chan<- got) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		for {
			gs, err := m.receiveIn(ctx, 1)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				gs = []got{{err: err, from: m}}
			}
			select {
			case into <- gs[0]:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	m.Cleanup(func() { cancel(); running.Wait() })
}

// next waits for what pumps bring.
func (e *env) next(from <-chan got, what string) got {
	e.Helper()
	t := time.NewTimer(e.conf.Patience)
	defer t.Stop()
	select {
	case g := <-from:
		require.NoError(e, g.err, "Receive in the background")
		return g
	case <-t.C:
		require.Fail(e, "nothing came", "%s, within Patience %v", what, e.conf.Patience)
		return got{}
	}
}

// awaitLost waits for the session behind g to be declared lost.
func (e *env) awaitLost(g got, why string) {
	e.Helper()
	require.NotNil(e, g.Lost, "Lost of message %d: %s", g.number, why)
	t := time.NewTimer(e.conf.Patience)
	defer t.Stop()
	select {
	case <-g.Lost:
	case <-t.C:
		require.Fail(e, "Lost was not closed", "message %d: %s", g.number, why)
	}
}

// deadLetters waits for n dead letters and returns them by number; there may be no more.
func (e *env) deadLetters(n int) map[int]consumer.Message {
	e.Helper()
	end := time.Now().Add(e.conf.Patience)
	for {
		ms := e.conf.DeadLetters(e.TB)
		if len(ms) >= n || time.Now().After(end) {
			require.Len(e, ms, n, "dead letters")
			all := make(map[int]consumer.Message, n)
			for i, number := range numbersOf(ms) {
				all[number] = ms[i]
			}
			require.Len(e, all, n, "different messages among the dead letters")
			return all
		}
		<-time.After(10 * time.Millisecond)
	}
}
