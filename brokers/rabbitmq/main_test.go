package rabbitmq_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeaksOfProxies()...) }

// log collects what a source says.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// eventually is long enough for a slow machine, and soon over where all is well.
const eventually = 30 * time.Second

// The delays of the wait queues in tests.
var delays = []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond, 6 * time.Second}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}

// world is a server, with a queue on it that nobody else uses.
type world struct {
	url   string
	tls   *tls.Config
	queue string
}

func (w world) cluster() rabbitmq.Cluster {
	return rabbitmq.Cluster{URLs: []string{w.url}, TLS: w.tls}
}

// addr is the server's host:port.
func (w world) addr() string {
	return strings.TrimSuffix(w.url[strings.Index(w.url, "@")+1:], "/")
}

// through is w as it is reached through a proxy.
func (w world) through(p *testenv.Proxy) world {
	w.url = "amqp://guest:guest@" + p.Addr + "/"
	return w
}

// newWorld has a queue of a new name on the shared server, declared by Topology and deleted at the end.
func newWorld(t testing.TB, edit ...func(*rabbitmq.Topology)) world {
	t.Helper()
	return worldOn(t, testenv.RabbitMQ(t), edit...)
}

func worldOn(t testing.TB, url string, edit ...func(*rabbitmq.Topology)) world {
	t.Helper()
	w := world{url: url, queue: "test-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	w.declare(t, edit...)
	t.Cleanup(func() { w.delete(t) })
	return w
}

func (w world) declare(t testing.TB, edit ...func(*rabbitmq.Topology)) {
	t.Helper()
	top := rabbitmq.Topology{Queue: w.queue, Delays: delays}
	for _, e := range edit {
		e(&top)
	}
	if top.Exclusive {
		top.Delays = nil
	}
	require.NoError(t, top.Declare(within(t, eventually), w.cluster()))
}

// queues are the names of everything that belongs to w.queue.
func (w world) queues() []string {
	qs := []string{w.queue, w.queue + ".dead"}
	for _, d := range delays {
		qs = append(qs, w.waitQueue(d))
	}
	return qs
}

func (w world) waitQueue(d time.Duration) string { return w.queue + ".wait." + d.String() }

func (w world) delete(t testing.TB) {
	c, err := amqp.Dial(w.url)
	if err != nil {
		return // its server has ended with the test
	}
	defer c.Close()
	for _, q := range w.queues() {
		ch, err := c.Channel()
		require.NoError(t, err)
		if _, err = ch.QueueDelete(q, false, false, false); err == nil { // else its server is still coming up
			require.NoError(t, ch.Close())
		}
	}
}

// channel is one of a plain client, to produce and to look.
func (w world) channel(t testing.TB) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(w.url)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	ch, err := c.Channel()
	require.NoError(t, err)
	return ch
}

// publishRaw sends messages with a plain client to w.queue and waits for their confirmation.
func (w world) publishRaw(t testing.TB, ms ...amqp.Publishing) {
	t.Helper()
	w.publishTo(t, "", w.queue, ms...)
}

func (w world) publishTo(t testing.TB, exchange, key string, ms ...amqp.Publishing) {
	t.Helper()
	c, err := amqp.Dial(w.url)
	require.NoError(t, err)
	defer c.Close()
	ch, err := c.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	var confirms []*amqp.DeferredConfirmation
	for _, m := range ms {
		d, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, m)
		require.NoError(t, err)
		confirms = append(confirms, d)
	}
	for _, d := range confirms {
		ok, err := d.WaitContext(within(t, eventually))
		require.NoError(t, err)
		require.True(t, ok)
	}
}

// count is how many messages of a queue are ready; the server's number may be a moment old.
func (w world) count(t testing.TB, queue string) int {
	t.Helper()
	c, err := amqp.Dial(w.url)
	require.NoError(t, err)
	defer c.Close()
	ch, err := c.Channel()
	require.NoError(t, err)
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// look gets everything that is in a queue, and leaves it there.
func (w world) look(t testing.TB, queue string) []amqp.Delivery {
	t.Helper()
	c, err := amqp.Dial(w.url)
	require.NoError(t, err)
	defer c.Close() // puts everything back
	ch, err := c.Channel()
	require.NoError(t, err)
	var all []amqp.Delivery
	for {
		d, ok, err := ch.Get(queue, false)
		require.NoError(t, err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// source is one of w.queue that reconnects quickly, closed at the end.
func (w world) source(t testing.TB, edit ...func(*rabbitmq.SourceOptions)) *rabbitmq.Source {
	t.Helper()
	o := rabbitmq.SourceOptions{Delays: delays, Logger: slog.New(slog.DiscardHandler)}
	for _, e := range edit {
		e(&o)
	}
	if o.Exclusive {
		o.Delays = nil
	}
	s, err := rabbitmq.NewSource(w.cluster(), w.queue, &o)
	require.NoError(t, err)
	s.Reconnect(10*time.Millisecond, 200*time.Millisecond)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx) // ErrClosed where the test has closed it
	})
	return s
}

func (w world) publisher(t testing.TB, o *rabbitmq.PublisherOptions) *rabbitmq.Publisher {
	t.Helper()
	p, err := rabbitmq.NewPublisher(w.cluster(), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() }) // ErrClosed where the test has closed it
	return p
}

// publish sends ms in one call, which must reach the server.
func publish(t testing.TB, p *rabbitmq.Publisher, ms ...outbox.Message) []error {
	t.Helper()
	errs := make([]error, len(ms))
	require.NoError(t, p.Publish(within(t, eventually), ms, errs))
	return errs
}

// receive waits for n deliveries.
func receive(t testing.TB, s *rabbitmq.Source, n int) []consumer.Delivery {
	t.Helper()
	ctx := within(t, eventually)
	var all []consumer.Delivery
	for len(all) < n {
		ds, err := s.Receive(ctx, n-len(all))
		require.NoError(t, err, "after %d of %d deliveries", len(all), n)
		all = append(all, ds...)
	}
	return all
}

// nothing asserts that no delivery comes within d.
func nothing(t testing.TB, s *rabbitmq.Source, d time.Duration) {
	t.Helper()
	ds, err := s.Receive(within(t, d), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "delivered %v", bodies(ds))
}

func ack(t testing.TB, ds ...consumer.Delivery) {
	t.Helper()
	for _, d := range ds {
		require.NoError(t, d.Ack(t.Context()))
	}
}

func bodies(ds []consumer.Delivery) []string {
	var bs []string
	for _, d := range ds {
		bs = append(bs, string(d.Body))
	}
	return bs
}

func closeSource(t testing.TB, s *rabbitmq.Source) {
	t.Helper()
	require.NoError(t, s.Close(within(t, 10*time.Second)))
}

func numbers(from, to int) []amqp.Publishing {
	var ms []amqp.Publishing
	for i := from; i < to; i++ {
		n := strconv.Itoa(i)
		ms = append(ms, amqp.Publishing{MessageId: "id-" + n, Body: []byte(n), DeliveryMode: amqp.Persistent})
	}
	return ms
}
