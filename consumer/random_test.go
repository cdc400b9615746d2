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
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

// world runs a scenario and keeps its own account of what happened.
type world struct {
	sc       *scenario
	store    flushable
	reader   *dedup.Guard    // beside the faults
	twoFaced map[string]bool // IDs that stand for more than one content
	process  []*process

	mu      sync.Mutex
	runs    map[string]int // by ID
	first   map[string]int // when an ID was run first, as its place among them all
	done    map[string]int // runs that returned nil, by content
	dead    map[string]int // by content
	live    map[*run]bool
	wrong   []string
	cut     bool // a lease may have been lost
	flushed bool
}

// run is a handler that has begun and not returned.
type run struct {
	p       *process
	id      string
	ctx     context.Context
	begun   time.Time
	suspect bool
}

const timeout = 10 * time.Second

func (r *run) zombie() bool { return time.Since(r.begun) > timeout+5*time.Second }

// flushable is a Store that can lose everything.
type flushable struct{ atomic.Pointer[memstore.Store] }

func (f *flushable) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	return f.Load().Claim(ctx, in, out)
}

func (f *flushable) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	return f.Load().Extend(ctx, in, out)
}

func (f *flushable) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	return f.Load().Finish(ctx, in, out)
}

// content tells messages apart that share an ID.
func (f *flushable) Inspect(ctx context.Context, k dedup.Key) (dedup.Record, error) {
	return f.Load().Inspect(ctx, k)
}

func (f *flushable) Forget(ctx context.Context, k dedup.Key) error { return f.Load().Forget(ctx, k) }

func content(m *consumer.Message) string { return m.ID + ": " + string(m.Body) }

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

func (w *world) handle(p *process) consumer.Handler {
	return func(ctx context.Context, m *consumer.Message) (err error) {
		key := content(m)
		r := &run{p: p, id: m.ID, ctx: ctx, begun: time.Now(), suspect: dedup.ClaimFrom(ctx).Crashes > 0}
		n := w.enter(r)
		orderly := false
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.live, r)
			if orderly && err == nil {
				w.done[key]++
			}
		}()
		err = act(ctx, w.sc.scripts[m.ID], n)
		orderly = true
		return err
	}
}

// enter looks at what else runs while r begins, and returns how often its ID has run.
func (w *world) enter(r *run) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range w.live {
		if o.id == r.id && o.ctx.Err() == nil && r.ctx.Err() == nil && !w.flushed {
			w.fault("%s runs twice at once, and both believe in their claims", r.id)
		}
		if o.p == r.p && (r.suspect || o.suspect) && !o.zombie() {
			w.fault("%s (suspect: %v) began beside %s (suspect: %v)", r.id, r.suspect, o.id, o.suspect)
		}
	}
	w.live[r] = true
	if _, ok := w.first[r.id]; !ok {
		w.first[r.id] = len(w.first)
	}
	w.runs[r.id]++
	return w.runs[r.id] - 1
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
			w.dead[content(m)]++
		case "ack":
			if k := content(m); w.done[k]+w.dead[k] == 0 {
				w.fault("%s was acknowledged, but is neither done nor dead-lettered", k)
			}
			if w.flushed || w.twoFaced[m.ID] {
				break
			}
			if r, err := w.reader.Inspect(context.Background(), work(*m)); err != nil || r.State != dedup.Done && r.State != dedup.Failed {
				w.fault("%s was acknowledged before its record says so: %v, %v", m.ID, r.State, err)
			}
		}
		return nil
	}
}

func (w *world) begin(t *testing.T, p *process) {
	f := &deduptest.Faulty{
		Store: &w.store,
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
	p.c = newConsumer(t, p.s, newGuard(t, f), w.handle(p), &consumer.Options{
		Policy: consumer.Policy{HandlerTimeout: timeout, Concurrency: w.sc.concurrency},
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
	case "flush":
		w.mu.Lock()
		w.cut, w.flushed = true, true
		w.mu.Unlock()
		w.store.Store(memstore.New())
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
	w.store.Store(memstore.New())
	w.runs, w.first, w.done, w.dead = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	w.live, w.twoFaced = map[*run]bool{}, w.sc.twoFaced()
	reader, err := dedup.New("app", &w.store, &dedup.Options{Logger: quiet})
	require.NoError(t, err)
	w.reader = reader
	for _, id := range w.sc.crashed {
		crash(t, newGuard(t, &w.store), 1, false, message(id, ""))
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

func TestWhateverHappensNothingIsLostAndEveryRunIsExplained(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{sc: drawScenario(rt)}
		synctest.Test(t, w.play)
		require.Empty(rt, w.wrong)
	})
}
