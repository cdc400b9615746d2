package rocketmq_test

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// The client library's producers and consumers, which some tests use to play other applications,
// leave goroutines behind that sleep for up to ten seconds after their Shutdown, and one for ever.
// No Source or Publisher starts any of them.
func TestMain(m *testing.M) {
	rocketmq.SetLogger(slog.New(slog.DiscardHandler))
	if err := flag.Set("test.parallel", "6"); err != nil { // they wait for servers far more than they compute
		panic(err)
	}
	goleak.VerifyTestMain(m, append(testenv.LeaksOfProxies(),
		goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/primitive.WithRecover"),
		goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
	)...)
}

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

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// world is a broker, with names on it that nobody else uses.
type world struct {
	cluster      rocketmq.Cluster
	broker       string // its address
	name         string // of the broker
	topic, group string
}

var worlds atomic.Int64

func worldAt(namesrv []string, broker string) world {
	id := "t" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatInt(worlds.Add(1), 10)
	return world{cluster: rocketmq.Cluster{NameServers: namesrv}, broker: broker, name: "broker-a", topic: id, group: id + "-g"}
}

// newWorld is on the shared broker, with a topic of so many queues.
func newWorld(t testing.TB, queues int) world {
	t.Helper()
	namesrv := testenv.RocketMQ(t)
	broker, err := rocketmq.BrokerAddr(within(t, eventually), rocketmq.Cluster{NameServers: namesrv})
	require.NoError(t, err)
	w := worldAt(namesrv, broker)
	w.create(t, w.topic, queues)
	return w
}

func ownWorld(t testing.TB, s *testenv.RocketMQServer, queues int) world {
	t.Helper()
	w := worldAt([]string{s.Addr}, s.BrokerAddr)
	w.create(t, w.topic, queues)
	return w
}

func (w world) create(t testing.TB, topic string, queues int) {
	t.Helper()
	if queues > 0 {
		require.NoError(t, rocketmq.CreateTopic(within(t, eventually), w.cluster, w.broker, topic, queues))
	}
}

// allow changes what w's topic, of so many queues, allows, and waits for the name server to know it. The broker tells it at once, but of two
// changes that follow each other the first may come last; then it is half a minute, or the next change.
func (w world) allow(t testing.TB, queues, perm int) {
	t.Helper()
	const again = 5 * time.Second
	var changed time.Time
	require.Eventually(t, func() bool {
		if p, err := rocketmq.Permission(t.Context(), w.cluster, w.topic); err == nil && p == perm {
			return true
		}
		if time.Since(changed) > again {
			changed = time.Now()
			_ = rocketmq.SetPermission(t.Context(), w.cluster, w.broker, w.topic, queues, perm)
		}
		return false
	}, 4*eventually, 200*time.Millisecond)
}

func (w world) committed(t testing.TB, topic string, queue int) int64 {
	t.Helper()
	at, err := rocketmq.Committed(within(t, eventually), w.cluster, w.broker, w.name, w.group, topic, queue)
	require.NoError(t, err)
	return at
}

func (w world) source(t testing.TB, edit ...func(*rocketmq.SourceOptions)) *rocketmq.Source {
	t.Helper()
	return w.sourceOf(t, w.group, []string{w.topic}, edit...)
}

func (w world) sourceOf(t testing.TB, group string, topics []string, edit ...func(*rocketmq.SourceOptions)) *rocketmq.Source {
	t.Helper()
	o := rocketmq.SourceOptions{Logger: slog.New(slog.DiscardHandler)}
	for _, e := range edit {
		e(&o)
	}
	s, err := rocketmq.NewSource(w.cluster, group, topics, &o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx) // ErrClosed where the test has closed it
	})
	return s
}

func (w world) publisher(t testing.TB) *rocketmq.Publisher {
	t.Helper()
	p, err := rocketmq.NewPublisher(w.cluster, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// publish sends bodies to w's topic, all under one key if it is not empty.
func (w world) publish(t testing.TB, key string, bodies ...string) {
	t.Helper()
	ms := w.messages(bodies...)
	for i := range ms {
		ms[i].Key = key
	}
	send(t, w.publisher(t), ms...)
}

func (w world) messages(bodies ...string) []outbox.Message {
	ms := make([]outbox.Message, len(bodies))
	for i, b := range bodies {
		ms[i] = outbox.Message{ID: w.topic + b, Topic: w.topic, Body: []byte(b)}
	}
	return ms
}

func send(t testing.TB, p *rocketmq.Publisher, ms ...outbox.Message) {
	t.Helper()
	errs := make([]error, len(ms))
	require.NoError(t, p.Publish(within(t, eventually), ms, errs))
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// receive waits for n deliveries.
func receive(t testing.TB, s *rocketmq.Source, n int) []consumer.Delivery {
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
func nothing(t testing.TB, s *rocketmq.Source, d time.Duration) {
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

func closeSource(t testing.TB, s *rocketmq.Source) {
	t.Helper()
	require.NoError(t, s.Close(within(t, 10*time.Second)))
}

func numbers(from, to int) []string {
	var vs []string
	for i := from; i < to; i++ {
		vs = append(vs, strconv.Itoa(i))
	}
	return vs
}

// byName is an address with a host name in the place of the number.
func byName(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return net.JoinHostPort("localhost", port)
}

func (l *log) has(text string) bool { return strings.Contains(l.String(), text) }
