package rabbitmq_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
)

func TestWordOnAnOldSessionReachesNoMessageOfTheNewOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(1, 4)...)
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Prefetch = 2 })
	old := receive(t, s, 2)
	ack(t, old[0]) // of tag 1; "2" has tag 2, as one of the next session has
	receive(t, s, 1)
	s.Cut()
	<-old[1].Lost
	again := receive(t, s, 2)
	require.ElementsMatch(t, []string{"2", "3"}, bodies(again))
	require.NoError(t, old[1].Ack(t.Context()))
	require.ErrorIs(t, old[1].Ack(t.Context()), rabbitmq.ErrSettled)
	closeSource(t, s)
	require.Len(t, w.look(t, w.queue), 2, "a word on the old session took a message of the new one")
}

func TestDeliveriesOfALostSessionAreNotHandedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 10)...)
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Prefetch = 10 })
	first := receive(t, s, 1)[0] // nine more are in memory, or on their way there
	s.Cut()
	<-first.Lost
	for _, d := range receive(t, s, 10) {
		require.NotEqual(t, first.Lost, d.Lost, "message %s is of the lost session", d.Body)
		ack(t, d)
	}
	nothing(t, s, 200*time.Millisecond)
}

func TestSecondWordIsAnErrorAndClosesNoChannel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 3)...)
	s := w.source(t)
	ds := receive(t, s, 3)
	ack(t, ds[0])
	require.ErrorIs(t, ds[0].Ack(t.Context()), rabbitmq.ErrSettled)
	require.ErrorIs(t, ds[0].Retry(t.Context(), 0, nil), rabbitmq.ErrSettled)
	require.ErrorIs(t, ds[0].GiveBack(t.Context()), rabbitmq.ErrSettled)
	nothing(t, s, 200*time.Millisecond)
	select {
	case <-ds[1].Lost:
		require.Fail(t, "the server closed the channel")
	default:
	}
	raw := ds[1].Raw.(amqp.Delivery)
	require.Error(t, raw.Ack(false), "a message's raw form cannot be acknowledged beside it")
	ack(t, ds[1:]...)
	closeSource(t, s)
	require.Empty(t, w.look(t, w.queue))
}

func TestCopyThatIsAskedForAfterItsContextHasEndedIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 2)...)
	s := w.source(t)
	ds := receive(t, s, 2)
	require.NoError(t, ds[0].Retry(t.Context(), delays[0], nil)) // now there is a connection to send on
	ack(t, receive(t, s, 1)...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // of two ways that are open Go takes either
		require.ErrorIs(t, ds[1].Retry(ended, delays[0], nil), context.Canceled)
		require.ErrorIs(t, ds[1].DeadLetter(ended, 1, nil), context.Canceled)
	}
	nothing(t, s, 2*delays[0])
	require.Empty(t, w.look(t, w.queue+".dead"))
	require.NoError(t, ds[1].Retry(t.Context(), delays[0], nil), "it may be said again")
	ack(t, receive(t, s, 1)...)
	nothing(t, s, 2*delays[0])
}

// Each nack counts towards the delivery limit of the queue, which is therefore far off.
func TestMessageGivenBackManyTimesIsNeitherLostNorDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	s := w.source(t)
	for range 150 {
		require.NoError(t, receive(t, s, 1)[0].GiveBack(t.Context()))
	}
	ack(t, receive(t, s, 1)...)
	require.Empty(t, w.look(t, w.queue+".dead"))
}

func everyType() amqp.Table {
	return amqp.Table{
		"time": time.Unix(1700000000, 0), "bytes": []byte{0, 1, 255}, "nothing": nil, "byte": byte(200), "int8": int8(-5),
		"int16": int16(-300), "uint16": uint16(60000), "int32": int32(-70000), "uint32": uint32(4000000000), "int64": int64(-1 << 40),
		"float32": float32(1.5), "float64": 2.25, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "bool": true, "string": "text\x00\xff",
		"array": []any{"x", int32(1), amqp.Table{"deep": int64(7)}}, "table": amqp.Table{"k": []any{nil, false}},
	}
}

// The headers of a message fit into one frame, but not with a long cause beside them.
func TestMessageThatFillsAFrameIsRetriedAndDeadLetteredAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, size := range map[string]int{"room for all but the cause": 130_300, "no room for where a retry came from": 130_900} {
		w.publishRaw(t, amqp.Publishing{MessageId: name, Headers: amqp.Table{"h": strings.Repeat("x", size)}, Body: []byte("b")})
		s := w.source(t)
		d := receive(t, s, 1)[0]
		require.NoError(t, d.Retry(t.Context(), delays[0], errors.New("busy")), name)
		d = receive(t, s, 1)[0]
		require.Len(t, d.Headers["h"], size, name)
		if size < 130_500 {
			require.NoError(t, d.DeadLetter(t.Context(), 1, errors.New(strings.Repeat("why ", 200))))
			dead := w.look(t, w.queue+".dead")
			require.Len(t, dead, 1)
			require.Len(t, dead[0].Headers["h"], size)
			require.Equal(t, "1", dead[0].Headers[consumer.RedriveHeader])
		}
		ack(t, d)
		closeSource(t, s)
	}
}

func TestCopiesKeepEveryTypeOfHeaderAndEveryProperty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sent := amqp.Publishing{
		Headers: everyType(), ContentType: "text/x", ContentEncoding: "gzip", Priority: 3, CorrelationId: "c-1", ReplyTo: "answers",
		MessageId: "m-1", Timestamp: time.Unix(1600000000, 0), Type: "order", UserId: "guest", AppId: "shop", Body: []byte("b"),
		DeliveryMode: amqp.Transient,
	}
	w.publishRaw(t, sent)
	s := w.source(t)
	first := receive(t, s, 1)[0]
	same := func(d amqp.Delivery) {
		t.Helper()
		for name, v := range everyType() {
			require.Contains(t, d.Headers, name)
			if at, ok := v.(time.Time); ok {
				require.True(t, at.Equal(d.Headers[name].(time.Time)))
				continue
			}
			require.Equal(t, v, d.Headers[name], name)
		}
		require.Equal(t, []any{sent.ContentType, sent.ContentEncoding, sent.Priority, sent.CorrelationId, sent.ReplyTo, sent.MessageId, sent.Type, sent.UserId, sent.AppId},
			[]any{d.ContentType, d.ContentEncoding, d.Priority, d.CorrelationId, d.ReplyTo, d.MessageId, d.Type, d.UserId, d.AppId})
		require.True(t, sent.Timestamp.Equal(d.Timestamp))
	}
	same(first.Raw.(amqp.Delivery))
	require.Equal(t, "-70000", first.Headers["int32"])
	require.Equal(t, "314e-2", first.Headers["decimal"])
	require.Equal(t, "\x00\x01\xff", first.Headers["bytes"])
	require.Equal(t, "2023-11-14T22:13:20Z", first.Headers["time"])
	require.NoError(t, first.Retry(t.Context(), 0, nil))
	again := receive(t, s, 1)[0]
	raw := again.Raw.(amqp.Delivery)
	same(raw)
	require.Equal(t, uint8(amqp.Persistent), raw.DeliveryMode)
	require.False(t, raw.Redelivered, "so it tells nothing")
	require.NoError(t, again.DeadLetter(t.Context(), 1, errors.New("no")))
	ack(t, again)
	dead := w.look(t, w.queue+".dead")
	require.Len(t, dead, 1)
	same(dead[0])
	require.Equal(t, "no", dead[0].Headers[consumer.CauseHeader])
}

// An older server takes an x-death that a client publishes for its own and, seeing its queues
// named in it, drops the message as one that goes round in circles.
func TestHeadersThatTheServerMakesAreNotPublishedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	death := []any{amqp.Table{"queue": w.queue, "reason": "expired", "count": int64(1), "exchange": "", "routing-keys": []any{w.queue}}}
	w.publishRaw(t, amqp.Publishing{MessageId: "m", Headers: amqp.Table{
		"x-death": death, "x-delivery-count": int64(7), "x-first-death-queue": w.queue, "x-first-death-reason": "expired", "x-first-death-exchange": "", "mine": int32(1),
	}})
	s := w.source(t)
	d := receive(t, s, 1)[0]
	for range 3 {
		require.NoError(t, d.Retry(t.Context(), 0, nil))
		d = receive(t, s, 1)[0]
		require.Equal(t, map[string]string{"mine": "1"}, d.Headers)
	}
	ack(t, d)
}

func TestTimeToLiveDoesNotSurviveOntoCopies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	s := w.source(t)
	ack(t, receive(t, s, 1)...) // connected: the next one must not have expired before
	w.publishRaw(t, amqp.Publishing{MessageId: "m", Expiration: "400", Body: []byte("x")})
	d := receive(t, s, 1)[0]
	asked := time.Now()
	require.NoError(t, d.Retry(t.Context(), 600*time.Millisecond, nil))
	d = receive(t, s, 1)[0]
	require.GreaterOrEqual(t, time.Since(asked), 590*time.Millisecond)
	require.NoError(t, d.DeadLetter(t.Context(), 1, nil))
	ack(t, d)
	nothing(t, s, 600*time.Millisecond)
	dead := w.look(t, w.queue+".dead")
	require.Len(t, dead, 1)
	require.Empty(t, dead[0].Expiration)
}

func TestCopyIsNotSentToQueuesThatHadTheMessage(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t), newWorld(t)
	w.publishRaw(t, amqp.Publishing{MessageId: "m", Headers: amqp.Table{"CC": []any{other.queue}}})
	require.Len(t, other.look(t, other.queue), 1)
	s := w.source(t)
	d := receive(t, s, 1)[0]
	require.NoError(t, d.Retry(t.Context(), 0, nil))
	d = receive(t, s, 1)[0]
	require.NoError(t, d.DeadLetter(t.Context(), 1, nil))
	ack(t, d)
	require.Len(t, other.look(t, other.queue), 1)
}

func TestRetriesWaitInParallelEachForItsOwnTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 3)...)
	s := w.source(t)
	began := time.Now()
	for i, d := range receive(t, s, 3) { // the longest first
		require.NoError(t, d.Retry(t.Context(), []time.Duration{600 * time.Millisecond, 51 * time.Millisecond, 0}[i], nil))
	}
	var came []time.Duration
	var order []string
	for range 3 {
		d := receive(t, s, 1)[0]
		came, order = append(came, time.Since(began)), append(order, string(d.Body))
		ack(t, d)
	}
	require.Equal(t, []string{"2", "1", "0"}, order)
	require.GreaterOrEqual(t, came[1], 200*time.Millisecond, "rounded up to the next wait queue")
	require.GreaterOrEqual(t, came[2], 600*time.Millisecond)
}

func TestDelayBeyondTheLongestWaitQueueIsCappedAndLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	var l log
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Delays, o.Logger = delays[:2], l.logger() })
	require.NoError(t, receive(t, s, 1)[0].Retry(t.Context(), time.Hour, nil))
	require.Contains(t, l.String(), "asked=1h0m0s delay=200ms")
	ack(t, receive(t, s, 1)...)
}

// That a wait queue or the dead letter queue is missing never costs a message.
func TestMessageStaysUnsettledWhileItsCopyFindsNoQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publishRaw(t, numbers(0, 1)...)
	passive := w.source(t, func(o *rabbitmq.SourceOptions) { o.Passive = true })
	d := receive(t, passive, 1)[0]
	ch := w.channel(t)
	for _, q := range w.queues()[1:] {
		_, err := ch.QueueDelete(q, false, false, false)
		require.NoError(t, err)
	}
	err := d.Retry(t.Context(), 0, nil)
	require.ErrorIs(t, err, rabbitmq.ErrUnroutable)
	require.EqualError(t, err, "rabbitmq: retry a message of "+w.queue+" through "+w.waitQueue(delays[0])+": no queue takes the message: the server says 312 NO_ROUTE")
	require.ErrorIs(t, d.DeadLetter(t.Context(), 1, nil), rabbitmq.ErrUnroutable)
	closeSource(t, passive)
	require.Len(t, w.look(t, w.queue), 1)

	s := w.source(t) // declares what is missing, at its start
	d = receive(t, s, 1)[0]
	_, err = ch.QueueDelete(w.queue+".dead", false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDelete(w.waitQueue(delays[0]), false, false, false)
	require.NoError(t, err)
	require.NoError(t, d.DeadLetter(t.Context(), 1, nil)) // and when it is needed
	require.NoError(t, d.Retry(t.Context(), 0, nil))
	ack(t, receive(t, s, 1)...)
	require.Len(t, w.look(t, w.queue+".dead"), 1)
}

func TestFullDeadLetterQueueRefusesUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel(t)
	_, err := ch.QueueDelete(w.queue+".dead", false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(w.queue+".dead", true, false, false, false, amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	require.NoError(t, err)
	w.publishRaw(t, numbers(0, 2)...)
	s := w.source(t)
	ds := receive(t, s, 2)
	require.NoError(t, ds[0].DeadLetter(t.Context(), 1, nil))
	require.ErrorIs(t, ds[1].DeadLetter(t.Context(), 1, nil), rabbitmq.ErrRefused)
	_, err = ch.QueuePurge(w.queue+".dead", false)
	require.NoError(t, err)
	require.NoError(t, ds[1].DeadLetter(t.Context(), 1, nil), "it may be called again")
}

func TestExclusiveSourceKeepsTheOrderOverAGivenBackMessage(t *testing.T) {
	t.Parallel()
	for _, classic := range []bool{false, true} {
		w := newWorld(t, func(top *rabbitmq.Topology) { top.Exclusive, top.Classic = true, classic })
		w.publishRaw(t, numbers(0, 20)...)
		s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Exclusive, o.HandlerLimit = true, time.Second })
		_, err := s.Plan(consumer.Policy{HandlerTimeout: 800 * time.Millisecond, Backoff: []time.Duration{50 * time.Millisecond}})
		require.NoError(t, err)
		ds := receive(t, s, 5)
		ack(t, ds[0], ds[1])
		require.Eventually(t, func() bool { return time.Until(ds[2].Deadline) < 800*time.Millisecond }, eventually, 5*time.Millisecond)
		require.NoError(t, ds[2].GiveBack(t.Context())) // too late for a handler to start
		select {
		case <-ds[2].Lost:
			require.Fail(t, "a consumer that drains has running handlers to acknowledge")
		default:
		}
		again := receive(t, s, 18)
		require.Equal(t, bodiesOf(numbers(2, 20)), bodies(again))
		<-ds[3].Lost
		ack(t, again...)
		closeSource(t, s)
		require.Eventually(t, func() bool { return w.count(t, w.queue) == 0 }, eventually, 20*time.Millisecond)
	}
}

func TestExclusiveSourceRefusesASharedQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Exclusive = true })
	_, err := s.Receive(within(t, eventually), 1)
	require.EqualError(t, err, "rabbitmq: consume "+w.queue+": SourceOptions.Exclusive is set, but the queue has no single active consumer, "+
		"so two processes would share its messages out and lose their order; declare it anew with Topology.Exclusive, or leave Exclusive unset")
	_, err = s.Receive(within(t, eventually), 1)
	require.Error(t, err, "it is still so")
}

func TestAnotherMemberTakesOverFromAnExclusiveOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(top *rabbitmq.Topology) { top.Exclusive = true })
	w.publishRaw(t, numbers(0, 5)...)
	exclusive := func(o *rabbitmq.SourceOptions) { o.Exclusive = true }
	a, b := w.source(t, exclusive), w.source(t, exclusive)
	ds := receive(t, a, 5)
	nothing(t, b, 200*time.Millisecond)
	ack(t, ds[:2]...)
	closeSource(t, a)
	require.Equal(t, bodiesOf(numbers(2, 5)), bodies(receive(t, b, 3)))
}

func bodiesOf(ms []amqp.Publishing) []string {
	var bs []string
	for _, m := range ms {
		bs = append(bs, string(m.Body))
	}
	return bs
}
