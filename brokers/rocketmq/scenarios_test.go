package rocketmq_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	rmq "github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// runs counts what handlers did, by body.
type runs struct {
	mu     sync.Mutex
	begun  map[string]int
	done   map[string]int
	beside int // runs of a body that began while another one of it was running
}

func newRuns() *runs { return &runs{begun: make(map[string]int), done: make(map[string]int)} }

func (r *runs) handler(f func(ctx context.Context, m *consumer.Message, run int) error) consumer.Handler {
	running := make(map[string]bool)
	return func(ctx context.Context, m *consumer.Message) error {
		body := string(m.Body)
		r.mu.Lock()
		if running[body] {
			r.beside++
		}
		running[body] = true
		r.begun[body]++
		run := r.begun[body]
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			delete(running, body)
			r.mu.Unlock()
		}()
		err := f(ctx, m, run)
		if err == nil {
			r.mu.Lock()
			r.done[body]++
			r.mu.Unlock()
		}
		return err
	}
}

func (r *runs) of(body string) (begun, done int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun[body], r.done[body]
}

// consume runs a consumer until the returned function is called.
func consume(t *testing.T, s *rocketmq.Source, store dedup.Store, h consumer.Handler, p consumer.Policy) (*consumer.Consumer, func()) {
	t.Helper()
	g, err := dedup.New("app", store, &dedup.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c, err := consumer.New(s, g, h, &consumer.Options{Policy: p, DrainTimeout: 15 * time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-ended)
		})
	}
	t.Cleanup(stop)
	return c, stop
}

func ok(context.Context, *consumer.Message, int) error { return nil }

func TestSlowHandlerHasNoSecondCopyBesideIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	store, r := memstore.New(), newRuns()
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	slow := r.handler(func(ctx context.Context, m *consumer.Message, _ int) error {
		begun <- struct{}{}
		<-finish
		return nil
	})
	w.publish(t, "", "slow", "slow too") // one in each queue
	a, _ := consume(t, w.source(t), store, slow, consumer.Policy{})
	<-begun
	<-begun
	b, _ := consume(t, w.source(t), store, slow, consumer.Policy{}) // takes one of the queues over
	require.Eventually(t, func() bool { return b.Stats().Retried > 0 }, eventually, 20*time.Millisecond,
		"a message in progress elsewhere is held for a while and then postponed")
	close(finish)
	require.Eventually(t, func() bool {
		return a.Stats().Done+b.Stats().Done == 2 && a.Stats().Duplicates+b.Stats().Duplicates > 0
	}, eventually, 20*time.Millisecond)
	for _, body := range []string{"slow", "slow too"} {
		began, done := r.of(body)
		require.Equal(t, 1, began)
		require.Equal(t, 1, done)
	}
	require.Zero(t, r.beside)
}

func TestDrainFinishesWhatRunsAndTheNextProcessSkipsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	store, r := memstore.New(), newRuns()
	begun := make(chan struct{})
	finish := make(chan struct{})
	_, stop := consume(t, w.source(t), store, r.handler(func(context.Context, *consumer.Message, int) error {
		close(begun)
		<-finish
		return nil
	}), consumer.Policy{})
	w.publish(t, "", "a")
	<-begun
	time.AfterFunc(300*time.Millisecond, func() { close(finish) })
	stop()
	require.EqualValues(t, 1, w.committed(t, w.topic, 0), "its success counted, although the consumer was ending")
	w.publish(t, "", "b")
	c, _ := consume(t, w.source(t), store, r.handler(ok), consumer.Policy{})
	require.Eventually(t, func() bool { return c.Stats().Done == 1 }, eventually, 10*time.Millisecond)
	began, _ := r.of("a")
	require.Equal(t, 1, began)
}

// A panic in the client's own consumers pins a queue for half an hour, or for ever.
func TestPanicIsRetriedAndHoldsNothingUp(t *testing.T) {
	for name, ordered := range map[string]bool{"concurrent": false, "ordered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			r := newRuns()
			h := r.handler(func(_ context.Context, m *consumer.Message, run int) error {
				if string(m.Body) == "bad" && run < 3 {
					panic("bad")
				}
				return nil
			})
			w.publish(t, "k", "bad", "1", "2", "3")
			c, stop := consume(t, w.source(t, func(o *rocketmq.SourceOptions) { o.Ordered = ordered }), memstore.New(), h,
				consumer.Policy{MaxAttempts: 5, Backoff: []time.Duration{time.Second}})
			require.Eventually(t, func() bool { return c.Stats().Done == 4 }, eventually, 20*time.Millisecond)
			began, _ := r.of("bad")
			require.Equal(t, 3, began)
			stop()
			require.EqualValues(t, 4, w.committed(t, w.topic, 0))
		})
	}
}

// The client's own ordered consumer commits past a failed message once a later one succeeds.
func TestOrderedFailureIsNeitherPassedNorLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := newRuns()
	var order []string
	h := r.handler(func(_ context.Context, m *consumer.Message, run int) error {
		r.mu.Lock()
		order = append(order, string(m.Body))
		r.mu.Unlock()
		if string(m.Body) == "0" && run < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	w.publish(t, "k", "0", "1", "2")
	c, stop := consume(t, w.source(t, func(o *rocketmq.SourceOptions) { o.Ordered = true }), memstore.New(), h,
		consumer.Policy{Backoff: []time.Duration{200 * time.Millisecond}})
	require.Eventually(t, func() bool { return c.Stats().Done == 3 }, eventually, 10*time.Millisecond)
	stop()
	require.Equal(t, []string{"0", "0", "0", "1", "2"}, order)
}

func TestAttemptsEndInOneDeadLetterWithItsCause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r := newRuns()
	h := r.handler(func(context.Context, *consumer.Message, int) error { return errors.New("card expired") })
	w.publish(t, "", "poison")
	c, _ := consume(t, w.source(t), memstore.New(), h, consumer.Policy{MaxAttempts: 3, Backoff: []time.Duration{time.Second}})
	require.Eventually(t, func() bool { return c.Stats().DeadLettered == 1 }, eventually, 10*time.Millisecond)
	began, _ := r.of("poison")
	require.Equal(t, 3, began)
	graves := w.sourceOf(t, w.group+"-graves", []string{w.group + "-dead"})
	dead := receive(t, graves, 1)[0]
	require.Contains(t, dead.DeadCause, "card expired")
	require.Equal(t, w.topic+"poison", dead.Headers[consumer.IDHeader])
	nothing(t, graves, time.Second)

	// A tool that copies it back with its headers thereby redrives it; its second copy does not.
	p := newClientProducer(t, w)
	for range 2 {
		copied := primitive.NewMessage(w.topic, dead.Body)
		for name, v := range raw(dead).GetProperties() {
			if _, header := dead.Headers[name]; header {
				copied.WithProperty(name, v)
			}
		}
		p.send(t, copied)
		require.Eventually(t, func() bool { return c.Stats().DeadLettered == 2 }, eventually, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return c.Stats().Duplicates == 1 }, eventually, 10*time.Millisecond)
	began, _ = r.of("poison")
	require.Equal(t, 6, began, "three attempts more")
}

// Java clients from 5.0 on send batches whose messages brokers up to 5.3.3 store under one
// UNIQ_KEY; two clients with equal address and process number make equal ones, too.
func TestDifferentMessagesUnderOneUniqueKeyAreAllHandled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := newClientProducer(t, w)
	for _, body := range []string{"1", "2", "3"} {
		m := primitive.NewMessage(w.topic, []byte(body))
		m.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, "7F0000010000000000000000000000AA")
		p.send(t, m)
	}
	batch := []*primitive.Message{}
	for _, body := range []string{"4", "5", "6"} { // of this library's producer: without any
		batch = append(batch, primitive.NewMessage(w.topic, []byte(body)))
	}
	p.send(t, batch...)
	r := newRuns()
	c, stop := consume(t, w.source(t), memstore.New(), r.handler(ok), consumer.Policy{})
	require.Eventually(t, func() bool { return c.Stats().Done == 6 }, eventually, 10*time.Millisecond)
	stop()
	for _, body := range []string{"1", "2", "3", "4", "5", "6"} {
		_, done := r.of(body)
		require.Equal(t, 1, done, body)
	}
}

// The client's batches carry no UNIQ_KEY, and a broker gives each copy without one a new one.
func TestMessageThatItsProducerDidNotNameKeepsItsNameOverRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var batch []*primitive.Message
	for _, body := range []string{"1", "2", "3"} {
		batch = append(batch, primitive.NewMessage(w.topic, []byte(body)))
	}
	newClientProducer(t, w).send(t, batch...)
	s := w.source(t)
	names := map[string]string{}
	for round := range 3 {
		for _, d := range receive(t, s, 3) {
			name, known := names[string(d.Body)]
			require.Equal(t, round > 0, known)
			require.True(t, !known || name == d.ID, "%s was %s and is %s", d.Body, name, d.ID)
			names[string(d.Body)] = d.ID
			require.NoError(t, d.Retry(t.Context(), time.Second, nil))
		}
	}
	require.Len(t, names, 3)
}

func TestOneMessageStoredTwiceIsHandledOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := newClientProducer(t, w)
	for range 3 { // as after an answer that was lost: the client repeats it under its UNIQ_KEY
		m := primitive.NewMessage(w.topic, []byte("same"))
		m.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, "7F0000010000000000000000000000BB")
		p.send(t, m)
	}
	r := newRuns()
	c, _ := consume(t, w.source(t), memstore.New(), r.handler(ok), consumer.Policy{})
	require.Eventually(t, func() bool { return c.Stats().Duplicates == 2 }, eventually, 10*time.Millisecond)
	require.EqualValues(t, 1, c.Stats().Done)
}

// undecided answers a local transaction with "unknown", and the broker's question, as often as
// it asks, with "commit".
type undecided struct{ asked atomic.Int32 }

func (*undecided) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return primitive.UnkonwnState
}

func (u *undecided) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	u.asked.Add(1)
	return primitive.CommitMessageState
}

// Brokers have been seen to ask twice before the first answer was processed, and to deliver twice.
func TestTransactionMessageIsHandledOnceHoweverOftenItIsDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	u := new(undecided)
	p, err := rmq.NewTransactionProducer(u, rmq.WithNsResolver(primitive.NewPassthroughResolver(w.cluster.NameServers)),
		rmq.WithInstanceName(w.topic), rmq.WithGroupName(w.group+"-tx"))
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	_, err = p.SendMessageInTransaction(within(t, eventually), primitive.NewMessage(w.topic, []byte("tx")))
	require.NoError(t, err)
	r := newRuns()
	c, stop := consume(t, w.source(t), memstore.New(), r.handler(ok), consumer.Policy{})
	require.Eventually(t, func() bool { return c.Stats().Done == 1 }, time.Minute, 20*time.Millisecond)
	asked := u.asked.Load()
	require.Never(t, func() bool { return c.Stats().Done > 1 }, 4*time.Second, 100*time.Millisecond)
	stop()
	t.Logf("asked %d times at first, %d in all; received %d", asked, u.asked.Load(), c.Stats().Received)
	_, done := r.of("tx")
	require.Equal(t, 1, done)
}
