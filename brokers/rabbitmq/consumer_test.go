package rabbitmq_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/internal/testenv"
)

var quick = consumer.Policy{MaxAttempts: 3, Backoff: delays[:1], HandlerTimeout: 5 * time.Second, Concurrency: 8}

// job is a consumer at work.
type job struct {
	*consumer.Consumer
	source *rabbitmq.Source
	stop   func()

	mu      sync.Mutex
	calls   map[string]int // of the handler, by message ID
	effects map[string]int // calls that returned nil
}

// work runs a consumer of w until the test ends, or stop; handle may be nil.
func (w world) work(t testing.TB, store dedup.Store, p consumer.Policy, handle consumer.Handler, edit ...func(*rabbitmq.SourceOptions)) *job {
	t.Helper()
	j := &job{source: w.source(t, edit...), calls: map[string]int{}, effects: map[string]int{}}
	guard, err := dedup.New("test", store, &dedup.Options{Lease: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	j.Consumer, err = consumer.New(j.source, guard, func(ctx context.Context, m *consumer.Message) error {
		j.mu.Lock()
		j.calls[m.ID]++
		j.mu.Unlock()
		if handle != nil {
			if err := handle(ctx, m); err != nil {
				return err
			}
		}
		j.mu.Lock()
		j.effects[m.ID]++
		j.mu.Unlock()
		return nil
	}, &consumer.Options{Policy: p})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	j.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(j.stop)
	return j
}

// until waits for what the counters say.
func (j *job) until(t testing.TB, what string, reached func(s consumer.Stats) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return reached(j.Stats()) }, 2*eventually, 10*time.Millisecond, "%s; %+v", what, j.Stats())
}

func (j *job) done() (effects, calls map[string]int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.effects), maps.Clone(j.calls)
}

// once asserts that each of n messages had its effect exactly once.
func (j *job) once(t testing.TB, n int) {
	t.Helper()
	effects, _ := j.done()
	require.Len(t, effects, n)
	for id, times := range effects {
		require.Equal(t, 1, times, "effects of %s", id)
	}
}

// failing is a handler that fails the first times of each message.
func failing(times int) consumer.Handler {
	return func(_ context.Context, m *consumer.Message) error {
		if m.Attempt <= times {
			return errors.New("not yet")
		}
		return nil
	}
}

func TestRetriedMessageBearsNoFlagAndIsFoundByItsID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 20)...)
	w.publishRaw(t, numbers(0, 20)...) // the producer's duplicates
	j := w.work(t, memstore.New(), quick, func(ctx context.Context, m *consumer.Message) error {
		if m.Raw.(amqp.Delivery).Redelivered {
			return consumer.Permanent(errors.New("redelivered"))
		}
		return failing(2)(ctx, m)
	})
	j.until(t, "20 done, 20 duplicates", func(s consumer.Stats) bool { return s.Done == 20 && s.Duplicates == 20 })
	j.once(t, 20)
	_, calls := j.done()
	for id, n := range calls {
		require.Equal(t, 3, n, id)
	}
	j.stop()
	require.Empty(t, w.look(t, w.queue))
	require.Empty(t, w.look(t, w.queue+".dead"))
}

func TestMessageThatAlwaysFailsIsDeadLetteredOnceAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 50)...)
	j := w.work(t, memstore.New(), quick, func(_ context.Context, m *consumer.Message) error {
		if m.ID == "id-7" {
			return errors.New("no such account")
		}
		return nil
	})
	j.until(t, "one is dead", func(s consumer.Stats) bool { return s.DeadLettered == 1 && s.Done == 49 })
	_, calls := j.done()
	require.Equal(t, 3, calls["id-7"], "our attempts decide, and there is no hot loop")
	w.publishRaw(t, numbers(7, 8)...) // a late copy
	j.until(t, "the late copy is dropped", func(s consumer.Stats) bool { return s.Duplicates == 1 })
	j.stop()
	dead := w.look(t, w.queue+".dead")
	require.Len(t, dead, 1)
	require.Equal(t, "no such account", dead[0].Headers[consumer.CauseHeader])
	require.Equal(t, "id-7", dead[0].Headers[consumer.IDHeader])
	require.Empty(t, w.look(t, w.queue))
}

func TestRedrivenMessageRunsAndAPlainSecondCopyDoesNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	var mended sync.Map
	j := w.work(t, memstore.New(), quick, func(context.Context, *consumer.Message) error {
		if _, ok := mended.Load("yes"); !ok {
			return consumer.Permanent(errors.New("broken"))
		}
		return nil
	})
	j.until(t, "it is dead", func(s consumer.Stats) bool { return s.DeadLettered == 1 })
	mended.Store("yes", true)
	w.publishRaw(t, numbers(0, 1)...)
	j.until(t, "a plain copy is dropped", func(s consumer.Stats) bool { return s.Duplicates == 1 })
	dead := rabbitmq.MessageFrom(w.look(t, w.queue+".dead")[0])
	p := w.publisher(t, nil)
	require.NoError(t, p.Redrive(t.Context(), dead))
	j.until(t, "it runs", func(s consumer.Stats) bool { return s.Done == 1 })
	require.NoError(t, p.Redrive(t.Context(), dead))
	j.until(t, "but once", func(s consumer.Stats) bool { return s.Duplicates == 2 })
	effects, _ := j.done()
	require.Equal(t, map[string]int{"id-0": 1}, effects)
}

func TestWorkInProgressElsewhereIsPostponedAndNeverEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := memstore.New()
	other, err := dedup.New("test", store, &dedup.Options{Lease: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	m := rabbitmq.MessageFrom(amqp.Delivery{MessageId: "id-0", Body: []byte("0")})
	m.Scope = "rabbitmq/" + w.queue
	claim, err := other.Claim(t.Context(), m.Work())
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, claim.State)

	w.publishRaw(t, numbers(0, 1)...)
	j := w.work(t, store, quick, nil, func(o *rabbitmq.SourceOptions) { o.Delays = []time.Duration{50 * time.Millisecond, 2 * time.Second} })
	t.Cleanup(func() {
		_, _ = w.channel(t).QueueDelete(w.queue+".wait.2s", false, false, false)
	})
	j.until(t, "postponed", func(s consumer.Stats) bool { return s.Retried == 1 })
	require.Zero(t, j.Stats().Duplicates, "in progress is not done")
	require.NoError(t, claim.Release(t.Context()))
	j.until(t, "run here", func(s consumer.Stats) bool { return s.Done == 1 })
	j.once(t, 1)
	j.stop()
	require.Empty(t, w.look(t, w.queue+".dead"))
}

func TestMessageWithoutANameIsDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, amqp.Publishing{Body: []byte("?")}, amqp.Publishing{Body: []byte{}, Headers: everyType()}, numbers(1, 2)[0])
	j := w.work(t, memstore.New(), quick, nil)
	j.until(t, "two dead, one done", func(s consumer.Stats) bool { return s.DeadLettered == 2 && s.Done == 1 })
	j.stop()
	dead := w.look(t, w.queue+".dead")
	require.Len(t, dead, 2)
	require.Contains(t, dead[0].Headers[consumer.CauseHeader], "no rule of Options.MessageID names this message")
}

func TestDrainFinishesWhatRunsAndGivesTheRestBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 12)...)
	begun, end := make(chan string, 12), make(chan struct{})
	p := quick
	p.Concurrency = 2
	j := w.work(t, memstore.New(), p, func(_ context.Context, m *consumer.Message) error {
		begun <- m.ID
		<-end
		return nil
	}, func(o *rabbitmq.SourceOptions) { o.Prefetch = 8 })
	ran := []string{<-begun, <-begun}
	stopped := make(chan struct{})
	go func() { j.stop(); close(stopped) }()
	require.Eventually(t, func() bool { return !j.Stats().Receiving }, eventually, 5*time.Millisecond)
	close(end)
	<-stopped
	j.once(t, 2)
	var left []string
	for _, d := range w.look(t, w.queue) {
		left = append(left, d.MessageId)
	}
	require.Len(t, left, 10)
	require.NotContains(t, left, ran[0])
	require.NotContains(t, left, ran[1])
}

// cutting is a store that breaks the source's connections right after a verdict was written.
type cutting struct {
	*memstore.Store
	mu  sync.Mutex
	cut func()
	n   int
}

func (c *cutting) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	err := c.Store.Finish(ctx, in, out)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n%4 == 1 && c.n < 20 && c.cut != nil {
		c.cut()
	}
	return err
}

func TestConnectionCutBetweenVerdictAndAckCostsNoSecondEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := &cutting{Store: memstore.New()}
	j := w.work(t, store, quick, nil)
	store.mu.Lock()
	store.cut = j.source.Cut
	store.mu.Unlock()
	w.publishRaw(t, numbers(0, 300)...)
	j.until(t, "all done", func(consumer.Stats) bool { effects, _ := j.done(); return len(effects) == 300 })
	require.Eventually(t, func() bool { return w.count(t, w.queue) == 0 && j.Stats().Running+j.Stats().Waiting == 0 }, eventually, 20*time.Millisecond)
	j.stop()
	j.once(t, 300)
	require.Empty(t, w.look(t, w.queue))
	require.Positive(t, j.Stats().Duplicates)
}

func TestConnectionCutInMidHandlerCostsNoSecondEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := testenv.NewProxy(t, w.addr())
	w.publishRaw(t, numbers(0, 40)...)
	begun, end := make(chan struct{}, 1000), make(chan struct{})
	j := w.through(proxy).work(t, memstore.New(), quick, func(context.Context, *consumer.Message) error {
		begun <- struct{}{}
		<-end
		return nil
	})
	for range quick.Concurrency {
		<-begun
	}
	proxy.Cut()
	require.Eventually(t, func() bool { return !j.source.Connected() }, eventually, 5*time.Millisecond)
	close(end)
	proxy.Mend()
	j.until(t, "all done", func(consumer.Stats) bool { effects, _ := j.done(); return len(effects) == 40 })
	require.Eventually(t, func() bool { return w.count(t, w.queue) == 0 && j.Stats().Running+j.Stats().Waiting == 0 }, eventually, 20*time.Millisecond)
	j.stop()
	j.once(t, 40)
	require.Empty(t, w.look(t, w.queue))
}

func TestProcessThatDiesBetweenARetrysCopyAndItsAckDoublesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 10)...)
	s := w.source(t)
	for _, d := range receive(t, s, 10) {
		require.NoError(t, rabbitmq.Postpone(t.Context(), d, delays[1]))
	}
	s.Cut()
	closeSource(t, s)
	j := w.work(t, memstore.New(), quick, nil)
	j.until(t, "each came twice and ran once", func(s consumer.Stats) bool { return s.Done == 10 && s.Duplicates == 10 })
	j.once(t, 10)
}

func TestExclusiveConsumerKeepsTheOrderOverFailuresAndCuts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(top *rabbitmq.Topology) { top.Exclusive = true })
	w.publishRaw(t, numbers(0, 60)...)
	var mu sync.Mutex
	var order []int
	cut := make(chan func(), 1)
	j := w.work(t, memstore.New(), quick, func(_ context.Context, m *consumer.Message) error {
		n, err := strconv.Atoi(string(m.Body))
		if err != nil {
			return consumer.Permanent(err)
		}
		if n%7 == 0 && m.Attempt == 1 {
			return errors.New("not yet")
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, n)
		if n%25 == 24 {
			f := <-cut
			f()
			cut <- f
		}
		return nil
	}, func(o *rabbitmq.SourceOptions) { o.Exclusive = true })
	cut <- j.source.Cut
	j.until(t, "all done", func(consumer.Stats) bool { mu.Lock(); defer mu.Unlock(); return len(order) >= 60 })
	j.stop()
	mu.Lock()
	defer mu.Unlock()
	for i, n := range order {
		require.Equal(t, i, n)
	}
	require.Zero(t, w.count(t, w.queue))
}
