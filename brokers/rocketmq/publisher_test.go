package rocketmq_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// publish publishes ms and requires that the broker was asked.
func publish(t testing.TB, p *rocketmq.Publisher, ms ...outbox.Message) []error {
	t.Helper()
	errs := make([]error, len(ms))
	require.NoError(t, p.Publish(within(t, eventually), ms, errs))
	return errs
}

func TestPublishedIDIsTheConsumersID(t *testing.T) {
	w := newWorld(t, 1)
	errs := publish(t, w.publisher(t),
		outbox.Message{ID: "m-1", Topic: w.topic, Key: "k", Headers: map[string]string{"b": "2", "a": "\x00\xff", "message-id": "not this"}, Body: []byte("v")},
		outbox.Message{ID: "m-2", Topic: w.topic, Key: "k"},
	)
	require.Equal(t, []error{nil, nil}, errs)
	ds := receive(t, w.source(t), 2)
	require.True(t, ds[0].Identify(consumer.DefaultRules(), ds[0].Made))
	require.Equal(t, "m-1", ds[0].Message.ID)
	require.Equal(t, map[string]string{"a": "\x00\xff", "b": "2", "message-id": "m-1"}, ds[0].Headers)
	require.Equal(t, "k", ds[0].Key)
	require.Equal(t, w.topic, ds[0].Topic)
	require.Equal(t, []byte("v"), ds[0].Body)
	require.Equal(t, []byte{}, ds[1].Body)
	require.WithinDuration(t, time.Now(), ds[0].Time, time.Minute)
}

func TestPublisherKeepsItsAddressesThoughTheCallersChange(t *testing.T) {
	w := newWorld(t, 1)
	w.cluster.NameServers = slices.Clone(w.cluster.NameServers)
	p := w.publisher(t)
	w.cluster.NameServers[0] = "127.0.0.1:1"
	require.Equal(t, []error{nil}, publish(t, p, w.messages("a")...))
}

func TestPublishedTagsAndKeysAreTheMessages(t *testing.T) {
	w := newWorld(t, 1)
	send(t, w.publisher(t), outbox.Message{ID: "1", Topic: w.topic, Headers: map[string]string{"TAGS": "paid", "KEYS": "order-7"}, Body: []byte("b")})
	d := receive(t, w.source(t), 1)[0]
	require.Equal(t, "paid", raw(d).GetTags())
	require.Equal(t, "order-7", raw(d).GetKeys())
	require.Equal(t, "paid", d.Headers["TAGS"])
}

// The broker's maxMessageSize is the default, 4 MiB.
func TestOversizedMessageFailsAlone(t *testing.T) {
	w := newWorld(t, 1)
	var ms []outbox.Message
	for i := range 20 {
		m := outbox.Message{ID: strconv.Itoa(i), Topic: w.topic, Key: "k", Body: make([]byte, 1000)}
		switch i {
		case 5:
			m.Body = make([]byte, 4<<20+1)
		case 10:
			m.Headers = map[string]string{"h": strings.Repeat("x", 40_000)}
		}
		ms = append(ms, m)
	}
	errs := publish(t, w.publisher(t), ms...)
	for i, err := range errs {
		switch i {
		case 5:
			require.ErrorContains(t, err, `rocketmq: publish "5": topic "`+w.topic+`" queue 0 of broker-a: refused with code 13: `)
		case 10:
			require.ErrorContains(t, err, `rocketmq: publish "10": key and headers take `)
		default:
			require.NoError(t, err, i)
		}
	}
	for i, d := range receive(t, w.source(t), 18) {
		want := i
		if i >= 5 {
			want++
		}
		if want >= 10 {
			want++
		}
		require.Equal(t, strconv.Itoa(want), d.Headers["message-id"], "in their order")
	}
}

func TestMessageOfAnUnknownTopicFailsAlone(t *testing.T) {
	w := newWorld(t, 1)
	errs := publish(t, w.publisher(t),
		outbox.Message{ID: "1", Topic: w.topic + "-nowhere", Body: []byte("b")}, outbox.Message{ID: "2", Topic: w.topic, Body: []byte("b")}, outbox.Message{ID: "3"})
	require.EqualError(t, errs[0], `rocketmq: publish "1": topic "`+w.topic+`-nowhere": it does not exist`)
	require.NoError(t, errs[1])
	require.EqualError(t, errs[2], `rocketmq: publish "3": Message.Topic is empty`)
}

func topicIsCreatedWhereTheBrokerDoesSo(t *testing.T, server *testenv.RocketMQServer) {
	w := ownWorld(t, server, 0)
	s := w.source(t)
	w.publish(t, "", "1")
	ack(t, receive(t, s, 1)...)
}

// A refusal by a broker that may no longer be written to is answered with a look at the route, which was read before.
func TestRouteIsReadAgainWhenTheBrokerMayNotBeWrittenTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const readOnly, both = 4, 6
	far, broker := w.behind(t, 10)
	p, err := rocketmq.NewPublisher(far.cluster, &rocketmq.PublisherOptions{Timeout: 2 * eventually})
	require.NoError(t, err)
	defer p.Close()
	send(t, p, w.messages("a")...)
	w.allow(t, 1, readOnly)
	answer := make(chan error, 1)
	go func() {
		errs := make([]error, 1)
		answer <- errors.Join(p.Publish(t.Context(), w.messages("b"), errs), errs[0])
	}()
	require.Eventually(t, func() bool { return broker.asked.Load() == 2 }, eventually, step, "it is not tried")
	w.allow(t, 1, both)
	require.NoError(t, <-answer)
	require.Equal(t, []string{"a", "b"}, bodies(receive(t, w.source(t), 2)))
}

func TestKeyKeepsItsOrder(t *testing.T) {
	w := newWorld(t, 4)
	var ms []outbox.Message
	for i := range 200 {
		ms = append(ms, outbox.Message{ID: strconv.Itoa(i), Topic: w.topic, Key: "key-" + strconv.Itoa(i%7), Body: []byte(strconv.Itoa(i))})
	}
	send(t, w.publisher(t), ms...)
	last := map[string]int{}
	for _, d := range receive(t, w.source(t, func(o *rocketmq.SourceOptions) { o.Ordered = true }), 200) {
		n, err := strconv.Atoi(string(d.Body))
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, last[d.Key])
		last[d.Key] = n
	}
}

func TestBrokerThatIsAwayIsAnErrorOfAll(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	p, err := rocketmq.NewPublisher(rocketmq.Cluster{NameServers: []string{addr}}, &rocketmq.PublisherOptions{Timeout: 300 * time.Millisecond})
	require.NoError(t, err)
	defer p.Close()
	errs := make([]error, 2)
	err = p.Publish(t.Context(), []outbox.Message{{ID: "1", Topic: "t", Body: []byte("b")}, {ID: "2", Topic: "t", Body: []byte("b")}}, errs)
	require.ErrorContains(t, err, "rocketmq: publish: route of topic \"t\": no name server answers: connect to "+addr)
	require.Equal(t, []error{nil, nil}, errs)
}

func TestPublishEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	require.NoError(t, err)
	defer l.Close()
	p, err := rocketmq.NewPublisher(rocketmq.Cluster{NameServers: []string{l.Addr().String()}}, nil)
	require.NoError(t, err)
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	require.ErrorIs(t, p.Publish(ctx, []outbox.Message{{ID: "1", Topic: "t", Body: []byte("b")}}, make([]error, 1)), context.DeadlineExceeded)
	require.Less(t, time.Since(begun), 3*time.Second)
}

func TestClosedPublisherRefuses(t *testing.T) {
	p, err := rocketmq.NewPublisher(somewhere, nil)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Close(), rocketmq.ErrClosed)
	require.ErrorIs(t, p.Publish(t.Context(), []outbox.Message{{Topic: "t", Body: []byte("b")}}, make([]error, 1)), rocketmq.ErrClosed)
	require.ErrorContains(t, p.Publish(t.Context(), make([]outbox.Message, 2), make([]error, 1)), "2 messages, but room for 1 answers")
}

func TestPublisherMayBeUsedFromManyGoroutines(t *testing.T) {
	w := newWorld(t, 2)
	p := w.publisher(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				send(t, p, outbox.Message{ID: strconv.Itoa(g*20 + i), Topic: w.topic, Body: []byte("b")})
			}
		})
	}
	wg.Wait()
	require.Len(t, receive(t, w.source(t), 160), 160)
}

func TestRedriveRunsADeadLetterAgainWhereItCameFrom(t *testing.T) {
	w := newWorld(t, 1)
	p := w.publisher(t)
	headers := map[string]string{"own": "kept", "empty": "", "DELAY": "not a delay"}
	send(t, p, outbox.Message{ID: "m", Topic: w.topic, Key: "k", Headers: headers, Body: []byte("v")})
	s := w.source(t)
	d := receive(t, s, 1)[0]
	require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
	require.NoError(t, d.DeadLetter(t.Context(), 1, context.DeadlineExceeded))
	ack(t, d)

	graves := w.sourceOf(t, w.group+"-graves", []string{w.group + "-dead"})
	dead := receive(t, graves, 1)[0]
	require.Equal(t, "context deadline exceeded", dead.DeadCause)
	require.Equal(t, w.topic, dead.Headers[consumer.OriginHeader])
	kept := *dead.Message
	kept.Headers = maps.Clone(dead.Headers)
	kept.Headers[consumer.KeptHeader] = "a run"
	require.NoError(t, p.Keep(t.Context(), &kept))
	ack(t, dead)
	dead = receive(t, graves, 1)[0]
	require.Equal(t, kept.Headers, dead.Headers, "it is at the end of its topic as it was")
	require.NoError(t, p.Redrive(t.Context(), dead.Message))
	ack(t, dead)

	again := receive(t, s, 1)[0]
	require.True(t, again.Identify(consumer.DefaultRules(), again.Made))
	require.Equal(t, "m", again.Message.ID)
	require.Equal(t, 1, again.Redrive)
	require.Equal(t, "k", again.Key)
	require.Equal(t, []byte("v"), again.Body)
	for name, v := range headers {
		require.Equal(t, v, again.Headers[name], name)
	}
	require.NotContains(t, again.Headers, consumer.CauseHeader)
	require.NotContains(t, again.Headers, consumer.KeptHeader)
	require.Equal(t, w.topic, again.Headers[consumer.OriginHeader])
	require.Equal(t, "rocketmq/"+w.group, again.Headers[consumer.ScopeHeader])
	ack(t, again)
	require.ErrorContains(t, p.Redrive(t.Context(), again.Message), "where it came from, so it is no dead letter")
}
