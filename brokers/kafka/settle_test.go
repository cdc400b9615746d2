package kafka_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
)

func TestSecondWordIsAnErrorAndChangesNothing(t *testing.T) {
	c := fakeKafka(t, 1)
	cl := client(t, c.ListenAddrs())
	produce(t, cl, 0, "a", "b")
	s := newSource(t, c.ListenAddrs())
	ds := receive(t, s, 2)
	require.NoError(t, ds[0].Retry(t.Context(), time.Hour, errors.New("later")))
	require.ErrorIs(t, ds[0].Ack(t.Context()), kafka.ErrSettled)
	require.ErrorIs(t, ds[0].GiveBack(t.Context()), kafka.ErrSettled)
	require.NoError(t, ds[1].Ack(t.Context()))
	require.ErrorIs(t, ds[1].Ack(t.Context()), kafka.ErrSettled)
	nothing(t, s, 200*time.Millisecond)
	closeSource(t, s)
	require.Zero(t, committed(t, cl, "g", "t", 0), "the position passed a message that is to be retried")
}

func TestRetriedMessageComesAgainAndHoldsThePosition(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, "a", "b")
		s := w.source(t)
		ds := receive(t, s, 2)
		start := time.Now()
		require.NoError(t, ds[0].Retry(t.Context(), 300*time.Millisecond, nil))
		ack(t, ds[1])
		again := receive(t, s, 1)
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
		require.Equal(t, w.topic+"/0/0", again[0].ID)
		require.Equal(t, []string{"a"}, bodies(again))
		require.LessOrEqual(t, committed(t, cl, w.group, w.topic, 0), int64(0))
		ack(t, again...)
		closeSource(t, s)
		require.EqualValues(t, 2, committed(t, cl, w.group, w.topic, 0))
	})
}

func TestGivenBackMessagesComeAgainAtOnceInTheirOrder(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		produce(t, w.client(t), 0, numbers(0, 20)...)
		s := w.source(t)
		ds := receive(t, s, 10)
		for _, d := range ds {
			require.NoError(t, d.GiveBack(t.Context()))
		}
		require.Equal(t, numbers(0, 10), bodies(receive(t, s, 10)))
		require.Equal(t, numbers(10, 20), bodies(receive(t, s, 10)))
	})
}

func TestDeadLetterKeepsTheMessageAndSaysWhy(t *testing.T) {
	everywhere(t, 3, func(t *testing.T, w world) {
		cl := w.client(t)
		require.NoError(t, cl.ProduceSync(within(t, eventually),
			&kgo.Record{Key: []byte("k"), Value: nil, Headers: []kgo.RecordHeader{
				{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}, {Key: consumer.RedriveHeader, Value: []byte("4")},
			}},
			&kgo.Record{Value: []byte{}},
		).FirstErr())
		s := w.source(t)
		for _, d := range receive(t, s, 2) {
			d.Message.Identify(consumer.DefaultRules(), true)
			require.NoError(t, d.DeadLetter(t.Context(), 5, errors.New("no such\naccount")))
			ack(t, d)
		}
		require.Equal(t, 3, w.partitions(t, w.topic+".dlt"), "made like its origin")
		dead := map[string]consumer.Delivery{}
		for _, d := range receive(t, sourceOf(t, w.brokers, w.group+"-dead", []string{w.topic + ".dlt"}), 2) {
			dead[d.Key] = d
		}
		d := dead["k"]
		require.Nil(t, d.Body, "a tombstone's copy is a tombstone")
		require.Equal(t, "no such account", d.DeadCause)
		require.Equal(t, w.topic, d.Headers[consumer.OriginHeader])
		require.Equal(t, "kafka/"+w.group, d.Headers[consumer.ScopeHeader])
		require.Equal(t, "5", d.Headers[consumer.RedriveHeader])
		require.True(t, strings.HasPrefix(d.Headers[consumer.IDHeader], w.topic+"/0/0/"))
		var repeated []string
		for _, h := range d.Raw.(kafkago.Message).Headers {
			if h.Key == "a" {
				repeated = append(repeated, string(h.Value))
			}
		}
		require.Equal(t, []string{"1", "2"}, repeated)
		require.NotNil(t, dead[""].Body)
		require.Nil(t, dead[""].Raw.(kafkago.Message).Key)
	})
}

func TestDeadLetterThatIsAskedForAfterItsContextHasEndedIsNotSent(t *testing.T) {
	c := fakeKafka(t, 1)
	require.NoError(t, c.CreateTopic("dead", 1, nil))
	produce(t, client(t, c.ListenAddrs()), 0, "a", "b")
	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.DeadLetterTopic = "dead" })
	ds := receive(t, s, 2)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ds[0].DeadLetter(ended, 1, nil), context.Canceled)
	require.NoError(t, ds[1].DeadLetter(t.Context(), 1, nil)) // would go behind it
	require.Equal(t, []string{"b"}, bodies(receive(t, sourceOf(t, c.ListenAddrs(), "graves", []string{"dead"}), 1)))
}

func TestManyDeadLettersAtOnceShareRequests(t *testing.T) {
	c := fakeKafka(t, 1)
	produce(t, client(t, c.ListenAddrs()), 0, numbers(0, 200)...)
	require.NoError(t, c.CreateTopic("dead", 1, nil))
	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.DeadLetterTopic = "dead" })
	ds := receive(t, s, 200)
	seen := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "dead", Observe: true, Count: -1})
	errs := make(chan error, len(ds))
	for _, d := range ds {
		go func() { errs <- d.DeadLetter(t.Context(), 1, nil) }()
	}
	for range ds {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, 200, c.PartitionInfo("dead", 0).HighWatermark)
	require.Less(t, seen.Hits(), 50)
}

func TestDeadLetterSaysThatItsTopicCannotBeMade(t *testing.T) {
	c := fakeKafka(t, 1)
	produce(t, client(t, c.ListenAddrs()), 0, "a")
	var l log
	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.Logger = l.logger() })
	d := receive(t, s, 1)[0]
	require.Contains(t, l.String(), `the dead letter topic does not exist; the first dead letter will try to create it" group=g topic=t.dlt`)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "t.dlt", Err: kerr.TopicAuthorizationFailed})
	err := d.DeadLetter(t.Context(), 1, nil)
	require.ErrorIs(t, err, kafkago.TopicAuthorizationFailed)
	require.ErrorContains(t, err, "kafka: dead-letter t/0/0 to t.dlt: the topic does not exist and could not be created; create it: ")
	require.NoError(t, d.DeadLetter(t.Context(), 1, nil), "it may be called again")
	require.Len(t, c.PartitionInfos("t.dlt"), 1)
}

func TestDeadLetterWaitsForTheTopicThatWasJustMade(t *testing.T) {
	t.Parallel()
	c := fakeKafka(t, 1)
	produce(t, client(t, c.ListenAddrs()), 0, "a")
	s := newSource(t, c.ListenAddrs())
	d := receive(t, s, 1)[0]
	unaware := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "t.dlt", Err: kerr.UnknownTopicOrPartition, Count: 8})
	require.NoError(t, d.DeadLetter(within(t, eventually), 1, nil))
	require.EqualValues(t, 8, unaware.Hits())
	require.EqualValues(t, 1, c.PartitionInfo("t.dlt", 0).HighWatermark)
}

func TestCompactedDeadLetterTopicIsRefusedAtTheStart(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		w.create(t, w.topic+".dlt", 1, map[string]string{"cleanup.policy": "compact"})
		s := w.source(t)
		_, err := s.Receive(within(t, eventually), 1)
		require.EqualError(t, err, `kafka: dead letter topic "`+w.topic+`.dlt" has cleanup.policy=compact: it refuses dead letters without a key `+
			`and drops all but the last of a key; set cleanup.policy=delete or another SourceOptions.DeadLetterTopic`)
		_, err = s.Receive(within(t, eventually), 1)
		require.ErrorContains(t, err, "cleanup.policy=compact", "it is still so")
	})
}
