package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

func TestPublishedMessageArrivesUnderItsID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.publisher(t, nil)
	before := time.Now().Truncate(time.Second)
	errs := publish(t, p, outbox.Message{
		ID: "m-1", Topic: w.queue, Key: "customer-7", Headers: map[string]string{"a": "\x00\xff", "Content-Type": "text/x"}, Body: []byte("b"),
	})
	require.NoError(t, errs[0])
	d := w.look(t, w.queue)[0]
	require.Equal(t, "m-1", d.MessageId)
	require.Equal(t, "text/x", d.ContentType)
	require.Equal(t, uint8(amqp.Persistent), d.DeliveryMode)
	require.False(t, d.Timestamp.Before(before))
	m := rabbitmq.MessageFrom(d)
	require.Equal(t, []string{"m-1", "customer-7", "\x00\xff", "text/x"}, []string{m.ID, m.Key, m.Headers["a"], m.Headers["content-type"]})
}

func TestPublishKeepsTheOrderOverManyWindows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ms []outbox.Message
	for i := range 1800 {
		ms = append(ms, outbox.Message{ID: strconv.Itoa(i), Topic: w.queue, Body: []byte(strconv.Itoa(i))})
	}
	for _, err := range publish(t, w.publisher(t, nil), ms...) {
		require.NoError(t, err)
	}
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Prefetch = 2000 })
	ds := receive(t, s, len(ms))
	for i := range ds {
		require.Equal(t, strconv.Itoa(i), string(ds[i].Body))
	}
	ack(t, ds...)
}

func TestMessageThatCannotBeSentFailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := func(n int) outbox.Message {
		return outbox.Message{ID: "good-" + strconv.Itoa(n), Topic: w.queue, Body: []byte("x")}
	}
	huge := map[string]string{"h": strings.Repeat("v", 130<<10)}
	ms := []outbox.Message{
		good(0), {ID: "unroutable", Topic: "no-such-queue"}, good(1), {ID: "no exchange", Topic: "no-such-exchange/key"}, good(2),
		{ID: strings.Repeat("i", 256), Topic: w.queue}, {ID: "no topic"}, good(3), {ID: "headers", Topic: w.queue, Headers: huge},
		{ID: "name", Topic: w.queue, Headers: map[string]string{strings.Repeat("n", 256): ""}}, {ID: "cc", Topic: w.queue, Headers: map[string]string{"CC": w.queue}},
		{ID: "no exchange either", Topic: "nor-this/key"}, good(4), {ID: "unroutable", Topic: "amq.direct/nobody"}, good(5),
	}
	errs := publish(t, w.publisher(t, nil), ms...)
	for i, want := range map[int]string{
		1: `rabbitmq: publish "unroutable": no queue takes the message: the server says 312 NO_ROUTE`,
		3: "no exchange 'no-such-exchange' in vhost '/'", 5: "its message ID has 256 bytes; the protocol allows 255",
		6: `rabbitmq: publish "no topic": Message.Topic is empty; it is a queue, or exchange/routing key`,
		8: "its headers take 133", 9: "has 256 bytes; the protocol allows 255", 10: "it has the header CC, by which the server, or this package, routes",
		11: "no exchange 'nor-this' in vhost '/'", 13: "312 NO_ROUTE",
	} {
		require.ErrorContains(t, errs[i], want, "message %d", i)
	}
	require.ErrorIs(t, errs[1], rabbitmq.ErrUnroutable)
	require.ErrorIs(t, errs[13], rabbitmq.ErrUnroutable)
	there := map[string]bool{}
	for _, d := range w.look(t, w.queue) {
		there[d.MessageId] = true
	}
	for i := range ms {
		if strings.HasPrefix(ms[i].ID, "good-") {
			require.NoError(t, errs[i], ms[i].ID)
			require.True(t, there[ms[i].ID], ms[i].ID)
			delete(there, ms[i].ID)
		}
	}
	require.Empty(t, there)
}

func TestManyUnroutableMessagesAtOnceAreAllAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.publisher(t, nil)
	var calls sync.WaitGroup
	for c := range 6 {
		calls.Go(func() {
			ms := make([]outbox.Message, 1000)
			for i := range ms {
				topic := w.queue
				if i%3 > 0 {
					topic = "no-such-queue"
				}
				ms[i] = outbox.Message{ID: fmt.Sprint(c, "-", i), Topic: topic, Body: []byte("same")}
			}
			errs := make([]error, len(ms))
			if !errorsAre(t, p.Publish(within(t, eventually), ms, errs), nil) {
				return
			}
			for i := range ms {
				want := rabbitmq.ErrUnroutable
				if i%3 == 0 {
					want = nil
				}
				errorsAre(t, errs[i], want)
			}
		})
	}
	calls.Wait()
	require.Eventually(t, func() bool { return w.count(t, w.queue) == 6*334 }, eventually, 20*time.Millisecond)
}

func errorsAre(t *testing.T, err, want error) bool {
	if errors.Is(err, want) {
		return true
	}
	t.Errorf("answer %v, want %v", err, want)
	return false
}

func TestPublisherSendsAgainWhatACutLeftOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.publisher(t, nil)
	require.NoError(t, publish(t, p, outbox.Message{ID: "first", Topic: w.queue})[0])
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for n := 0; n < 5; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				p.Cut()
			}
		}
	})
	there := map[string]bool{}
	for round := range 20 {
		ms := make([]outbox.Message, 200)
		for i := range ms {
			ms[i] = outbox.Message{ID: fmt.Sprint(round, "-", i), Topic: w.queue}
			there[ms[i].ID] = true
		}
		for _, err := range publish(t, p, ms...) {
			require.NoError(t, err)
		}
	}
	close(stop)
	cutting.Wait()
	for _, d := range w.look(t, w.queue) { // some may be there twice
		delete(there, d.MessageId)
	}
	require.Empty(t, there, "confirmed, but not there")
}

func TestPublishWithoutAServerIsAnErrorForAll(t *testing.T) {
	t.Parallel()
	p, err := rabbitmq.NewPublisher(rabbitmq.Cluster{URLs: []string{"amqp://127.0.0.1:1/"}}, nil)
	require.NoError(t, err)
	errs := make([]error, 2)
	err = p.Publish(t.Context(), []outbox.Message{{ID: "a", Topic: "q"}, {ID: "b", Topic: "q"}}, errs)
	require.ErrorContains(t, err, "rabbitmq: publish: connect to 127.0.0.1:1: ")
	require.Equal(t, make([]error, 2), errs, "it says nothing of any")
	require.ErrorContains(t, p.Publish(t.Context(), make([]outbox.Message, 2), nil), "2 messages, but room for 0 answers")
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Publish(t.Context(), []outbox.Message{{ID: "a", Topic: "q"}}, errs[:1]), rabbitmq.ErrClosed)
	require.ErrorIs(t, p.Close(), rabbitmq.ErrClosed)
}

func TestPublishEndsSoonAfterItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := testenv.NewProxy(t, w.addr())
	p := w.through(proxy).publisher(t, nil)
	require.NoError(t, publish(t, p, outbox.Message{ID: "a", Topic: w.queue})[0])
	proxy.DropAnswers()
	begun := time.Now()
	errs := make([]error, 1)
	require.NoError(t, p.Publish(within(t, 300*time.Millisecond), []outbox.Message{{ID: "b", Topic: w.queue}}, errs))
	require.ErrorIs(t, errs[0], context.DeadlineExceeded, "it is unknown")
	require.Less(t, time.Since(begun), 5*time.Second)
	require.Eventually(t, func() bool { return w.count(t, w.queue) == 2 }, eventually, 20*time.Millisecond)
	proxy.PassAnswers()
	require.NoError(t, publish(t, p, outbox.Message{ID: "c", Topic: w.queue})[0])
}

func TestRedriveGoesToTheQueueThatGaveUpAndToNoOther(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t), newWorld(t)
	exchange := a.queue + "-fanout"
	require.NoError(t, a.channel(t).ExchangeDeclare(exchange, "fanout", false, true, false, false, nil))
	bound := func(top *rabbitmq.Topology) { top.Bindings = map[string][]string{exchange: {""}} }
	a.declare(t, bound)
	b.declare(t, bound)
	p := a.publisher(t, nil)
	require.NoError(t, publish(t, p, outbox.Message{ID: "m", Topic: exchange + "/k", Headers: map[string]string{"own": "kept"}, Body: []byte("x")})[0])
	ack(t, receive(t, a.source(t), 1)...)
	sb := b.source(t)
	d := receive(t, sb, 1)[0]
	d.Identify(consumer.DefaultRules(), d.Made)
	require.NoError(t, d.DeadLetter(t.Context(), 3, errors.New("no such account")))
	ack(t, d)

	dead := rabbitmq.MessageFrom(b.look(t, b.queue+".dead")[0])
	require.Equal(t, "no such account", dead.DeadCause)
	require.Equal(t, exchange+"/k", dead.Headers[consumer.OriginHeader])
	require.NoError(t, p.Redrive(t.Context(), dead))
	again := receive(t, sb, 1)[0]
	again.Identify(consumer.DefaultRules(), again.Made)
	require.Equal(t, "m", again.ID)
	require.Equal(t, 3, again.Redrive)
	require.Equal(t, exchange+"/k", again.Topic)
	require.Equal(t, "kept", again.Headers["own"])
	require.NotContains(t, again.Headers, consumer.CauseHeader)
	ack(t, again)
	require.Zero(t, a.count(t, a.queue))

	// From what is left of it where only the Message was kept.
	require.NoError(t, p.Redrive(t.Context(), &consumer.Message{Headers: dead.Headers, Body: dead.Body}))
	again = receive(t, sb, 1)[0]
	require.Equal(t, "x", string(again.Body))
	require.Equal(t, exchange+"/k", again.Topic)
	ack(t, again)
}

func TestRedriveOfWhatIsNoDeadLetterIsRefused(t *testing.T) {
	t.Parallel()
	p, err := rabbitmq.NewPublisher(somewhere, nil)
	require.NoError(t, err)
	require.EqualError(t, p.Redrive(t.Context(), &consumer.Message{ID: "m"}), `rabbitmq: redrive "m": it has no header idemq-scope, so it is no dead letter`)
	require.EqualError(t, p.Redrive(t.Context(), &consumer.Message{ID: "m", Headers: map[string]string{consumer.ScopeHeader: "kafka/g"}}),
		`rabbitmq: redrive "m": its scope is "kafka/g", which is no queue of virtual host "/"`)
	require.NoError(t, p.Close())
}

func TestDeadLetterCopiedBackByAPlainClientRunsAsARedrive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, amqp.Publishing{MessageId: "m", Headers: everyType(), Body: []byte("x")})
	s := w.source(t)
	d := receive(t, s, 1)[0]
	d.Identify(consumer.DefaultRules(), d.Made)
	require.NoError(t, d.DeadLetter(t.Context(), 2, nil))
	ack(t, d)
	dead := w.look(t, w.queue+".dead")[0]
	w.publishRaw(t, amqp.Publishing{Headers: dead.Headers, Body: dead.Body})
	again := receive(t, s, 1)[0]
	again.Identify(consumer.DefaultRules(), again.Made)
	require.Equal(t, "m", again.ID)
	require.Equal(t, 2, again.Redrive)
	require.True(t, bytes.Equal(d.Body, again.Body))
	ack(t, again)
}
