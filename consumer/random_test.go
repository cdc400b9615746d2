package consumer_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

// What a handler does at one attempt.
const (
	succeeds = iota
	takesTime
	fails
	panics
	exits
	failsForGood
	waitsForItsContext
	hangs // far beyond its timeout, and then succeeds
	acts
)

// scenario is drawn before the bubble begins, so that nothing in it depends on the schedule.
type scenario struct {
	processes   int
	concurrency int
	hold        time.Duration
	published   [][]consumer.Message // by process
	scripts     map[string][]int     // by ID: what each run does; later ones succeed
	crashed     []string             // IDs left by owners that vanished
	events      []event
}

type event struct {
	after   time.Duration // the one before
	what    string
	process int
}

func drawScenario(t *rapid.T) *scenario {
	sc := &scenario{
		processes: rapid.IntRange(1, 2).Draw(t, "processes"), concurrency: rapid.SampledFrom([]int{2, 4, 16}).Draw(t, "concurrency"),
		hold: rapid.SampledFrom([]time.Duration{-1, 5 * time.Second}).Draw(t, "hold"), scripts: make(map[string][]int),
	}
	ids := rapid.IntRange(1, 60).Draw(t, "ids")
	hung := false
	for i := range ids {
		id := fmt.Sprint("m", i)
		script := rapid.SliceOfN(rapid.IntRange(0, acts-1), 0, 3).Draw(t, id)
		for j := range script {
			if script[j] == hangs && hung { // with as many as slots the run ends
				script[j] = fails
			}
			hung = hung || script[j] == hangs
		}
		sc.scripts[id] = script
		if rapid.IntRange(0, 5).Draw(t, "crashed") == 0 {
			sc.crashed = append(sc.crashed, id)
		}
	}
	for range sc.processes {
		var ms []consumer.Message
		for range rapid.IntRange(1, 100).Draw(t, "published") {
			id := fmt.Sprint("m", rapid.IntRange(0, ids-1).Draw(t, "id"))
			ms = append(ms, message(id, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "lane")))
		}
		sc.published = append(sc.published, ms)
	}
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		sc.events = append(sc.events, event{
			after:   time.Duration(rapid.IntRange(0, 40_000).Draw(t, "after")) * time.Millisecond,
			what:    rapid.SampledFrom([]string{"cut", "mute", "heal", "lose session", "restart", "refuse", "accept"}).Draw(t, "what"),
			process: rapid.IntRange(0, sc.processes-1).Draw(t, "process"),
		})
	}
	return sc
}

// world runs a scenario and keeps its own account of what happened.
type world struct {
	sc  *scenario
	mem *memstore.Store

	mu      sync.Mutex
	runs    map[string]int
	done    map[string]int // runs that returned nil
	failed  map[string]int // runs that returned an error of their own, or nothing
	live    map[string][]context.Context
	dead    map[string]int
	wrong   []string
	cut     bool // a lease may have been lost
	process []*process
}

type process struct {
	s          *source
	cut, muted atomic.Bool
	refuses    atomic.Bool
	c          *consumer.Consumer
	stop       func() error
}

func (w *world) fault(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *world) handle(ctx context.Context, m *consumer.Message) error {
	w.mu.Lock()
	run := w.runs[m.ID]
	w.runs[m.ID]++
	for _, other := range w.live[m.ID] {
		if other.Err() == nil {
			w.fault("%s runs twice at once, and both believe in their claims", m.ID)
		}
	}
	w.live[m.ID] = append(w.live[m.ID], ctx)
	w.mu.Unlock()
	orderly, err := false, error(nil)
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, c := range w.live[m.ID] {
			if c == ctx {
				w.live[m.ID] = append(w.live[m.ID][:i:i], w.live[m.ID][i+1:]...)
				break
			}
		}
		if orderly && err == nil {
			w.done[m.ID]++
		} else {
			w.failed[m.ID]++
		}
	}()
	err = act(ctx, w.sc.scripts[m.ID], run)
	orderly = true
	return err
}

func act(ctx context.Context, script []int, run int) error {
	if run >= len(script) {
		return nil
	}
	switch script[run] {
	case takesTime:
		time.Sleep(8 * time.Second)
	case fails:
		return errBoom
	case panics:
		panic("boom")
	case exits:
		runtime.Goexit()
	case failsForGood:
		return consumer.Permanent(errBoom)
	case waitsForItsContext:
		<-ctx.Done()
		return ctx.Err()
	case hangs:
		time.Sleep(2 * time.Minute)
	}
	return nil
}

// said looks at each word as it is said: an ack needs an effect or a dead letter before it.
func (w *world) said(p *process) func(word string, m *consumer.Message) error {
	return func(word string, m *consumer.Message) error {
		if p.refuses.Load() && word != "ack" {
			return errBoom
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		switch word {
		case "dead letter":
			w.dead[m.ID]++
		case "ack":
			if w.done[m.ID]+w.dead[m.ID] == 0 {
				w.fault("%s was acknowledged, but is neither done nor dead-lettered", m.ID)
			}
		}
		return nil
	}
}

func (w *world) begin(t *testing.T, p *process) {
	f := &deduptest.Faulty{
		Store: w.mem,
		Before: func(context.Context, string) error {
			if p.cut.Load() {
				return errBoom
			}
			return nil
		},
		After: func(context.Context, string) error {
			if p.muted.Load() {
				return errBoom
			}
			return nil
		},
	}
	p.c = newConsumer(t, p.s, newGuard(t, f), w.handle, &consumer.Options{
		Policy: consumer.Policy{HandlerTimeout: 10 * time.Second, Concurrency: w.sc.concurrency},
	})
	p.stop = start(t, p.c)
}

func (w *world) apply(t *testing.T, e event) {
	p := w.process[e.process]
	switch e.what {
	case "cut":
		w.cut = true
		p.cut.Store(true)
	case "mute":
		w.cut = true
		p.muted.Store(true)
	case "heal":
		p.cut.Store(false)
		p.muted.Store(false)
	case "lose session":
		p.s.lose()
	case "restart":
		w.end(t, p)
		w.begin(t, p)
	case "refuse":
		p.refuses.Store(true)
	case "accept":
		p.refuses.Store(false)
	}
}

func (w *world) end(t *testing.T, p *process) {
	if err := p.stop(); err != nil {
		w.fault("Run: %v", err)
	}
	w.addUp(p)
	p.s.lose() // Close leaves the rest to be delivered again
	p.s.closed = false
}

func (w *world) addUp(p *process) {
	if s := p.c.Stats(); s.Received != sums(s) || s.Waiting < 0 {
		w.fault("counters do not add up: %+v", s)
	}
}

func (w *world) play(t *testing.T) {
	w.mem = memstore.New()
	w.runs, w.done, w.failed, w.dead = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	w.live = map[string][]context.Context{}
	for _, id := range w.sc.crashed {
		crash(t, newGuard(t, w.mem), 1, false, message(id, ""))
	}
	for i := range w.sc.processes {
		p := &process{s: newSource()}
		p.s.hold, p.s.fail = w.sc.hold, w.said(p)
		p.s.publish(w.sc.published[i]...)
		w.process = append(w.process, p)
		w.begin(t, p)
	}
	for _, e := range w.sc.events {
		for until := time.Now().Add(e.after); time.Now().Before(until); time.Sleep(time.Second) {
			for _, p := range w.process {
				w.addUp(p)
			}
		}
		w.apply(t, e)
	}
	for _, p := range w.process {
		p.cut.Store(false)
		p.muted.Store(false)
		p.refuses.Store(false)
	}
	time.Sleep(4 * time.Hour)
	for i, p := range w.process {
		if n := p.s.left(); n > 0 {
			w.fault("%d messages of process %d never end: %+v", n, i, p.c.Stats())
		}
		w.end(t, p)
		w.wrong = append(w.wrong, p.s.broken...)
	}
	w.judge()
}

// judge checks the account of each message.
func (w *world) judge() {
	published := map[string]bool{}
	for _, ms := range w.sc.published {
		for _, m := range ms {
			published[m.ID] = true
		}
	}
	for id := range published {
		script := w.sc.scripts[id]
		bad := 0
		for _, a := range script {
			if a == failsForGood {
				bad = 100
			}
			bad++
		}
		switch {
		case w.done[id]+w.dead[id] == 0:
			w.fault("%s is lost", id)
		case w.dead[id] > 0 && len(script) == 0:
			w.fault("%s is healthy and was dead-lettered", id)
		case bad < 5 && !w.cut && w.dead[id] > 0:
			w.fault("%s was dead-lettered after %d failures", id, w.failed[id])
		case w.cut: // a lost lease may cost one more run each
		case w.done[id] > 1 && !contains(script, hangs):
			w.fault("%s was done %d times without a reason", id, w.done[id])
		case w.runs[id] > len(script)+1+len(w.sc.events):
			w.fault("%s ran %d times for %v", id, w.runs[id], script)
		}
	}
}

func contains(script []int, act int) bool {
	for _, a := range script {
		if a == act {
			return true
		}
	}
	return false
}

func TestWhateverHappensNothingIsLostAndEveryRunIsExplained(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{sc: drawScenario(rt)}
		synctest.Test(t, w.play)
		require.Empty(rt, w.wrong)
	})
}
