package rocketmq_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
)

func raw(d consumer.Delivery) *primitive.MessageExt { return d.Raw.(*primitive.MessageExt) }

func TestSecondWordIsAnErrorAndChangesNothing(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "a", "b")
	s := w.source(t)
	ds := receive(t, s, 2)
	require.NoError(t, ds[0].Retry(t.Context(), 9*time.Second, errors.New("later")))
	require.ErrorIs(t, ds[0].Ack(t.Context()), rocketmq.ErrSettled)
	require.ErrorIs(t, ds[0].GiveBack(t.Context()), rocketmq.ErrSettled)
	require.NoError(t, ds[1].Ack(t.Context()))
	require.ErrorIs(t, ds[1].Ack(t.Context()), rocketmq.ErrSettled)
	nothing(t, s, 200*time.Millisecond)
	closeSource(t, s)
	require.EqualValues(t, 2, w.committed(t, w.topic, 0), "the copy is the message now")
}

func TestOrderedRetryHoldsThePositionAndItsQueueOnly(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "k", "a", "b")
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.Ordered = true })
	ds := receive(t, s, 2)
	begun := time.Now()
	require.NoError(t, ds[0].Retry(t.Context(), 1500*time.Millisecond, nil))
	ack(t, ds[1])
	again := receive(t, s, 1)
	require.GreaterOrEqual(t, time.Since(begun), 1500*time.Millisecond)
	require.Equal(t, []string{"a"}, bodies(again))
	require.LessOrEqual(t, w.committed(t, w.topic, 0), int64(0), "offset 1 was acknowledged, offset 0 was not")
	ack(t, again...)
	closeSource(t, s)
	require.EqualValues(t, 2, w.committed(t, w.topic, 0))
}

// The conformance suite's Retry of 0 never leaves the process.
func TestCopyOfARetryKeepsTheMessage(t *testing.T) {
	w := newWorld(t, 1)
	big := bytes.Repeat([]byte("0123456789abcdef"), (4<<20-64<<10)/16)
	send(t, w.publisher(t),
		outbox.Message{ID: "odd", Topic: w.topic, Key: "kéy \x01\x02", Headers: map[string]string{
			"empty": "", "marks": "a\x01b\x02c", "binary": "\x00\xff\xfe", "DELAY": "18", "TAGS": "t", "KEYS": "a b", "long": strings.Repeat("v", 4096), "世": "界",
		}, Body: []byte("\x00\xff\r\n")},
		outbox.Message{ID: "big", Topic: w.topic, Body: big},
		outbox.Message{ID: "empty", Topic: w.topic, Body: nil},
		outbox.Message{Topic: w.topic, Body: []byte("no name")},
	)
	s := w.source(t)
	first := make(map[string]consumer.Delivery)
	for _, d := range receive(t, s, 4) {
		first[d.Headers["message-id"]] = d
	}
	for round := range 2 {
		begun := time.Now()
		for _, d := range first {
			require.NoError(t, d.Retry(within(t, eventually), time.Second, errors.New("later")))
		}
		for _, d := range receive(t, s, 4) {
			require.GreaterOrEqual(t, time.Since(begun), time.Second)
			was := first[d.Headers["message-id"]]
			require.NotNil(t, was.Message, d.Headers)
			require.Equal(t, was.Headers, d.Headers)
			require.Equal(t, was.Key, d.Key)
			require.True(t, bytes.Equal(was.Body, d.Body), "round %d", round)
			require.Equal(t, w.topic, d.Topic, "where it was published, not where it waited")
			require.Equal(t, raw(was).MsgId, raw(d).MsgId)
			require.Equal(t, raw(was).GetTags(), raw(d).GetTags())
			first[d.Headers["message-id"]] = d
		}
	}
	for _, d := range first {
		ack(t, d)
	}
	nothing(t, s, 200*time.Millisecond)
}

func TestDelayBeyondTheLongestLevelIsCutAndLogged(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	var l log
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.Logger = l.logger() })
	d := receive(t, s, 1)[0]
	require.NoError(t, d.Retry(t.Context(), time.Hour, nil))
	require.Contains(t, l.String(), `msg="rocketmq: a retry's delay is longer than the broker's longest one, which it gets (messageDelayLevel)"`)
	require.Contains(t, l.String(), "asked=1h0m0s got=9s")
}

func TestRetryThatTheBrokerDidNotConfirmMayBeSaidAgain(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	s := w.source(t)
	d := receive(t, s, 1)[0]
	ended := within(t, time.Nanosecond)
	<-ended.Done()
	require.Error(t, d.Retry(ended, time.Second, nil))
	nothing(t, s, 1500*time.Millisecond)
	require.NoError(t, d.Retry(t.Context(), time.Second, nil))
	again := receive(t, s, 1)
	ack(t, again...)
	nothing(t, s, 1500*time.Millisecond)
}

// A kept DELAY or TIMER_DELIVER_MS has sent dead letters to sleep for hours.
func TestDeadLetterOfADelayedMessageIsReadableAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	p := newClientProducer(t, w)
	m := primitive.NewMessage(w.topic, []byte("late")).WithDelayTimeLevel(2)
	p.send(t, m)
	s := w.source(t)
	d := receive(t, s, 1)[0]
	require.NoError(t, d.Retry(t.Context(), time.Second, nil))
	d = receive(t, s, 1)[0]
	begun := time.Now()
	require.NoError(t, d.DeadLetter(t.Context(), 1, errors.New("no")))
	ack(t, d)
	dead := receive(t, w.sourceOf(t, w.group+"-graves", []string{w.group + "-dead"}), 1)[0]
	require.Less(t, time.Since(begun), 5*time.Second)
	require.Equal(t, "late", string(dead.Body))
	require.Equal(t, w.topic, dead.Headers[consumer.OriginHeader])
	for _, name := range []string{"DELAY", "TIMER_DELIVER_MS", "REAL_TOPIC", "RETRY_TOPIC"} {
		require.Empty(t, raw(dead).GetProperty(name), name)
	}
}

func TestDeadLetterOutlivesTheQueue(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	s := w.source(t)
	d := receive(t, s, 1)[0]
	s.Cut()
	<-d.Lost
	require.NoError(t, d.DeadLetter(within(t, eventually), 1, errors.New("no")))
	require.NoError(t, d.Ack(t.Context()), "a no-op")
	require.Len(t, receive(t, w.sourceOf(t, w.group+"-graves", []string{w.group + "-dead"}), 1), 1)
	ack(t, receive(t, s, 1)...)
}
