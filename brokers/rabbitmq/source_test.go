package rabbitmq_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
)

func TestReceiveOfNothingIsRefused(t *testing.T) {
	_, err := sourceOf(t, rabbitmq.SourceOptions{}).Receive(t.Context(), 0)
	require.EqualError(t, err, "rabbitmq: Receive of 0 deliveries; ask for at least one")
}

func TestClosedSourceSaysSo(t *testing.T) {
	s, err := rabbitmq.NewSource(somewhere, "orders", nil)
	require.NoError(t, err)
	closeSource(t, s)
	_, err = s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, rabbitmq.ErrClosed)
	require.ErrorIs(t, s.Close(t.Context()), rabbitmq.ErrClosed)
}

func TestQueueThatIsDeletedWhileConsumingIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	var l log
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Logger = l.logger() })
	d := receive(t, s, 1)[0]
	require.True(t, s.Connected())
	_, err := w.channel(t).QueueDelete(w.queue, false, false, false)
	require.NoError(t, err)
	<-d.Lost
	require.Eventually(t, func() bool { return strings.Contains(l.String(), "does not exist; declare it") }, eventually, 10*time.Millisecond)
	require.False(t, s.Connected())
	require.NoError(t, d.Ack(t.Context()), "a no-op")
	w.declare(t)
	w.publishRaw(t, numbers(1, 2)...)
	ack(t, receive(t, s, 1)...)
	require.True(t, s.Connected())
	require.Contains(t, l.String(), "its queue was deleted or moved")
}

func TestQueueIsWaitedForAtTheStart(t *testing.T) {
	t.Parallel()
	w := world{url: testenv.RabbitMQ(t), queue: "test-late-" + time.Now().Format("150405.000000")}
	s := w.source(t)
	nothing(t, s, 100*time.Millisecond)
	w.declare(t)
	t.Cleanup(func() { w.delete(t) })
	w.publishRaw(t, numbers(0, 1)...)
	ack(t, receive(t, s, 1)...)
}

func TestWrongPasswordEndsReceive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.url = strings.Replace(w.url, "guest:guest", "guest:secret", 1)
	_, err := w.source(t).Receive(within(t, eventually), 1)
	require.ErrorContains(t, err, "rabbitmq: consume "+w.queue+": connect to 127.0.0.1:")
	require.ErrorContains(t, err, "username or password not allowed")
	require.NotContains(t, err.Error(), "secret")
	w.url = strings.Replace(w.url, "secret", "guest", 1) // to delete the queues
}

func TestMissingVirtualHostEndsReceive(t *testing.T) {
	t.Parallel()
	s, err := rabbitmq.NewSource(rabbitmq.Cluster{URLs: []string{testenv.RabbitMQ(t) + "nowhere"}}, "q", nil)
	require.NoError(t, err)
	s.Reconnect(time.Millisecond, time.Millisecond)
	defer closeSource(t, s)
	_, err = s.Receive(within(t, eventually), 1)
	require.ErrorContains(t, err, "vhost nowhere not found")
}

func TestWaitQueueWithOtherSettingsEndsReceive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel(t)
	_, err := ch.QueueDelete(w.waitQueue(delays[1]), false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(w.waitQueue(delays[1]), true, false, false, false, nil)
	require.NoError(t, err)
	_, err = w.source(t).Receive(within(t, eventually), 1)
	require.ErrorContains(t, err, "rabbitmq: consume "+w.queue+": queue "+w.waitQueue(delays[1])+" exists with other settings than this source relies on; delete it when it is empty: ")
	require.ErrorContains(t, rabbitmq.Topology{Queue: w.queue, Delays: delays}.Declare(t.Context(), w.cluster()),
		"rabbitmq: topology of "+w.queue+": declare "+w.waitQueue(delays[1])+": ")
}

func TestTopologyMayBeDeclaredAgainAndBinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel(t)
	exchange := w.queue + "-events"
	require.NoError(t, ch.ExchangeDeclare(exchange, "topic", false, true, false, false, nil))
	bound := func(top *rabbitmq.Topology) {
		top.Bindings = map[string][]string{exchange: {"order.*", "refund.#"}}
	}
	w.declare(t, bound)
	w.declare(t, bound)
	w.publishTo(t, exchange, "refund.a/b", amqp.Publishing{MessageId: "m"})
	s := w.source(t)
	d := receive(t, s, 1)[0]
	require.Equal(t, exchange+"/refund.a/b", d.Topic)
	require.NoError(t, d.Retry(t.Context(), 0, nil))
	d = receive(t, s, 1)[0]
	require.Equal(t, exchange+"/refund.a/b", d.Topic, "where it was published, not where it waited")
	raw := d.Raw.(amqp.Delivery)
	require.Equal(t, []string{exchange, "refund.a/b"}, []string{raw.Exchange, raw.RoutingKey})
	ack(t, d)
	err := rabbitmq.Topology{Queue: w.queue, Delays: delays, Bindings: map[string][]string{"no-such": {"k"}}}.Declare(t.Context(), w.cluster())
	require.ErrorContains(t, err, `bind to no-such with "k": `)
}

func TestQueueNotMadeByTopologyIsConsumedWithAWarning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel(t)
	_, err := ch.QueueDelete(w.queue, false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(w.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	w.publishRaw(t, numbers(0, 1)...)
	var l log
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Logger = l.logger() })
	ack(t, receive(t, s, 1)...)
	require.Contains(t, l.String(), "the queue was not declared by Topology, so its settings cannot be known")
}

func TestPassiveSourceSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.channel(t).QueueDelete(w.queue+".dead", false, false, false)
	require.NoError(t, err)
	var l log
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Passive, o.Logger = true, l.logger() })
	nothing(t, s, 300*time.Millisecond)
	require.Contains(t, l.String(), "queue "+w.queue+".dead does not exist, and SourceOptions.Passive forbids to declare it")
	w.declare(t)
	w.publishRaw(t, numbers(0, 1)...)
	ack(t, receive(t, s, 1)...)
}

// silent is a server that takes connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var open []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			open = append(open, c)
		}
		for _, c := range open {
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestSilentServerHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	quiet := "amqp://guest:guest@" + silent(t) + "/"

	alone, err := rabbitmq.NewSource(rabbitmq.Cluster{URLs: []string{quiet}}, w.queue, nil)
	require.NoError(t, err)
	begun := time.Now()
	_, err = alone.Receive(within(t, 100*time.Millisecond), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_ = alone.Close(within(t, 100*time.Millisecond))
	require.Less(t, time.Since(begun), 3*time.Second)

	second := world{url: quiet, queue: w.queue}.source(t)
	closeSource(t, second)
	both, err := rabbitmq.NewSource(rabbitmq.Cluster{URLs: []string{quiet, w.url}}, w.queue, &rabbitmq.SourceOptions{Delays: delays})
	require.NoError(t, err)
	ack(t, receive(t, both, 1)...) // nodes are tried in turn
	closeSource(t, both)
}

func TestSessionThatGoesSilentEndsCloseInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 2)...)
	proxy := testenv.NewProxy(t, w.addr())
	s := w.through(proxy).source(t)
	d := receive(t, s, 1)[0]
	proxy.DropAnswers()
	require.NoError(t, d.Ack(t.Context()), "it waits for no answer")
	begun := time.Now()
	require.ErrorIs(t, s.Close(within(t, 500*time.Millisecond)), context.DeadlineExceeded)
	require.Less(t, time.Since(begun), 5*time.Second)
	proxy.PassAnswers()
	require.Eventually(t, func() bool { return w.count(t, w.queue) == 1 }, eventually, 20*time.Millisecond, "the acknowledged one was gone, the other came back")
}

func TestPrefetchBoundsWhatIsInMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 100)...)
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Prefetch = 7 })
	ds := receive(t, s, 7)
	nothing(t, s, 100*time.Millisecond)
	ack(t, ds[:3]...)
	receive(t, s, 3)
	nothing(t, s, 100*time.Millisecond)

	// Left to the default, it follows the policy.
	closeSource(t, s)
	s = w.source(t)
	_, err := s.Plan(consumer.Policy{Concurrency: 4})
	require.NoError(t, err)
	receive(t, s, 8)
	nothing(t, s, 100*time.Millisecond)
}

func TestDeadlineIsCountedFromTheServersDelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 2)...)
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.HandlerLimit = 10 * time.Minute })
	before := time.Now()
	first := receive(t, s, 1)[0]
	require.WithinRange(t, first.Deadline, before.Add(9*time.Minute), time.Now().Add(9*time.Minute))
	between := <-time.After(50 * time.Millisecond)
	require.True(t, receive(t, s, 1)[0].Deadline.Before(between.Add(9*time.Minute)), "it has waited in this process")
}

func TestMessageFromNamesByTheDefaultRules(t *testing.T) {
	m := rabbitmq.MessageFrom(amqp.Delivery{MessageId: "m-1", Exchange: "e", RoutingKey: "k", Headers: amqp.Table{rabbitmq.KeyHeader: "customer-7"}, Body: []byte("b")})
	require.Equal(t, []string{"m-1", "broker", "e/k", "customer-7"}, []string{m.ID, m.IDFrom, m.Topic, m.Key})
	require.Equal(t, m.ID, m.Work().ID, "no hash of the body is part of it: an application has set it")
	m = rabbitmq.MessageFrom(amqp.Delivery{MessageId: "m-1", RoutingKey: "q", Headers: amqp.Table{"Message-ID": int64(5)}})
	require.Equal(t, []string{"5", "q"}, []string{m.ID, m.Topic})
	m = rabbitmq.MessageFrom(amqp.Delivery{RoutingKey: "a/b", ContentType: "application/cloudevents+json", Body: []byte(`{"specversion":"1.0","id":"1","source":"/s"}`)})
	require.Equal(t, []string{"/s 1", "/a/b"}, []string{m.ID, m.Topic})
	m = rabbitmq.MessageFrom(amqp.Delivery{RoutingKey: "q"})
	require.Empty(t, m.ID)
	require.NotNil(t, m.Body)
}
