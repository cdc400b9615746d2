package kafka_test

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
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
	"github.com/idemq/idemq/outbox"
)

func newPublisher(t testing.TB, brokers []string, o *kafka.PublisherOptions) *kafka.Publisher {
	t.Helper()
	p, err := kafka.NewPublisher(kafka.Cluster{Brokers: brokers}, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// publish publishes ms and requires that the broker was asked.
func publish(t testing.TB, p *kafka.Publisher, ms ...outbox.Message) []error {
	t.Helper()
	errs := make([]error, len(ms))
	require.NoError(t, p.Publish(within(t, eventually), ms, errs))
	return errs
}

func TestPublishedIDIsTheConsumersID(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		p := newPublisher(t, w.brokers, nil)
		errs := publish(t, p,
			outbox.Message{ID: "m-1", Topic: w.topic, Key: "k", Headers: map[string]string{"b": "2", "a": "\x00\xff", "message-id": "not this"}, Body: []byte("v")},
			outbox.Message{ID: "m-2", Topic: w.topic},
		)
		require.Equal(t, []error{nil, nil}, errs)
		ds := receive(t, w.source(t), 2)
		require.True(t, ds[0].Identify(consumer.DefaultRules(), ds[0].Made))
		require.Equal(t, "m-1", ds[0].Message.ID)
		require.Equal(t, map[string]string{"a": "\x00\xff", "b": "2", "message-id": "m-1"}, ds[0].Headers)
		require.Equal(t, "k", ds[0].Key)
		require.Equal(t, []byte("v"), ds[0].Body)
		require.Nil(t, ds[1].Raw.(kafkago.Message).Key)
		require.Nil(t, ds[1].Body)
	})
}

// The broker's max.message.bytes is the default, 1,048,588.
func TestOversizedMessageFailsAloneWithItsSize(t *testing.T) {
	t.Parallel()
	everywhere(t, 1, oversizedMessages)
}

func oversizedMessages(t *testing.T, w world) {
	for name, big := range map[string]outbox.Message{
		"body":    {ID: "big", Topic: w.topic, Key: "k", Body: make([]byte, 2<<20)},
		"headers": {ID: "big", Topic: w.topic, Key: "k", Body: make([]byte, 1_048_400), Headers: map[string]string{"h": strings.Repeat("x", 170)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t, w.brokers, nil)
			var ms []outbox.Message
			for i := range 50 {
				m := outbox.Message{ID: strconv.Itoa(i), Topic: w.topic, Key: "k", Body: make([]byte, 100_000)}
				if i == 20 {
					m = big
				}
				ms = append(ms, m)
			}
			errs := publish(t, p, ms...)
			for i, err := range errs {
				if i != 20 {
					require.NoError(t, err, i)
				}
			}
			require.ErrorIs(t, errs[20], kafkago.MessageSizeTooLarge)
			require.ErrorContains(t, errs[20], `kafka: publish "big": topic "`+w.topic+`": a record of `)
			require.ErrorContains(t, errs[20], "bytes is more than the broker takes (max.message.bytes)")
			cl := w.client(t, kgo.ConsumeTopics(w.topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
			seen := map[string]int{}
			for len(seen) < 49 {
				cl.PollFetches(within(t, eventually)).EachRecord(func(r *kgo.Record) { seen[string(r.Headers[0].Value)]++ })
			}
			require.NotContains(t, seen, "big")
		})
	}
}

func TestSmallMessagesThatTogetherAreTooLargeArePublished(t *testing.T) {
	everywhere(t, 0, func(t *testing.T, w world) {
		w.create(t, w.topic, 1, map[string]string{"max.message.bytes": "1000"})
		p := newPublisher(t, w.brokers, nil)
		var ms []outbox.Message
		for i := range 40 {
			ms = append(ms, outbox.Message{ID: strconv.Itoa(i), Topic: w.topic, Body: make([]byte, 300)})
		}
		for _, err := range publish(t, p, ms...) {
			require.NoError(t, err)
		}
		for i, d := range receive(t, w.source(t), 40) {
			require.Equal(t, strconv.Itoa(i), d.Headers["message-id"], "in their order")
		}
	})
}

func TestMessageOfAnUnknownTopicFailsAlone(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		p := newPublisher(t, w.brokers, nil)
		errs := publish(t, p,
			outbox.Message{ID: "1", Topic: w.topic + "-nowhere"}, outbox.Message{ID: "2", Topic: w.topic}, outbox.Message{ID: "3"})
		require.ErrorIs(t, errs[0], kafkago.UnknownTopicOrPartition)
		require.ErrorContains(t, errs[0], `kafka: publish "1": topic "`+w.topic+`-nowhere": `)
		require.NoError(t, errs[1])
		require.EqualError(t, errs[2], `kafka: publish "3": Message.Topic is empty`)
		require.EqualValues(t, 1, w.high(t, w.topic, 0))
	})
}

func TestKeylessRecordForACompactedTopicFailsAlone(t *testing.T) {
	c := fakeKafka(t, 1)
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		p := &r.(*kmsg.ProduceRequest).Topics[0].Partitions[0]
		if !bytes.Contains(p.Records, []byte("keyless")) {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = "t"
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.ErrorCode, rp.ErrorMessage = kerr.InvalidRecord.Code, kmsg.StringPtr("Compacted topic cannot accept message without key")
		rt.Partitions = append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	p := newPublisher(t, c.ListenAddrs(), nil)
	errs := publish(t, p,
		outbox.Message{ID: "1", Topic: "t", Key: "k"}, outbox.Message{ID: "keyless", Topic: "t"}, outbox.Message{ID: "3", Topic: "t", Key: "k"})
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], kafkago.InvalidRecord)
	require.ErrorContains(t, errs[1], "Compacted topic cannot accept message without key")
	require.NoError(t, errs[2])
}

func TestBrokerThatCannotBeAskedCostsNoMessageAnAttempt(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, []string{"127.0.0.1:1"}, &kafka.PublisherOptions{Timeout: time.Second})
	errs := make([]error, 2)
	err := p.Publish(t.Context(), []outbox.Message{{ID: "1", Topic: "t"}, {ID: "2", Topic: "t"}}, errs)
	require.ErrorContains(t, err, "kafka: publish: ")
	require.Equal(t, []error{nil, nil}, errs)

	c := fakeKafka(t, 1)
	p = newPublisher(t, c.ListenAddrs(), &kafka.PublisherOptions{Timeout: time.Second})
	publish(t, p, outbox.Message{ID: "0", Topic: "t"})
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("gone"), true
	})
	err = p.Publish(t.Context(), []outbox.Message{{ID: "1", Topic: "t"}, {ID: "2", Topic: "t"}}, errs)
	require.Error(t, err, "gone in mid-run")
	require.Equal(t, []error{nil, nil}, errs)
}

// TestTopicShortOfReplicasIsUnavailableAndOthersAreNot: one of several brokers is down.
func TestTopicShortOfReplicasIsUnavailableAndOthersAreNot(t *testing.T) {
	t.Parallel()
	c := fakeKafka(t, 1, kfake.SeedTopics(1, "down"))
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if r.(*kmsg.ProduceRequest).Topics[0].Topic != "down" {
			return nil, nil, false
		}
		res := r.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = "down"
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.ErrorCode = kerr.NotEnoughReplicas.Code
		rt.Partitions = append(rt.Partitions, rp)
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	p := newPublisher(t, c.ListenAddrs(), &kafka.PublisherOptions{Timeout: 2 * time.Second})
	errs := publish(t, p, outbox.Message{ID: "0", Topic: "down"}, outbox.Message{ID: "1", Topic: "t"})
	require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
	require.NoError(t, errs[1])
}

func TestPublishEndsSoonAfterItsContext(t *testing.T) {
	c := fakeKafka(t, 1)
	p := newPublisher(t, c.ListenAddrs(), nil)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, nil, true // never answered
	})
	start := time.Now()
	err := p.Publish(within(t, 300*time.Millisecond), []outbox.Message{{ID: "1", Topic: "t"}}, make([]error, 1))
	require.Error(t, err)
	require.Less(t, time.Since(start), 8*time.Second, "without the context it would be 10s")
}

func TestTransientRefusalsAreRepeated(t *testing.T) {
	c := fakeKafka(t, 1)
	p := newPublisher(t, c.ListenAddrs(), nil)
	f := c.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: kerr.NotLeaderForPartition},
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: kerr.NotEnoughReplicas},
	)
	require.NoError(t, publish(t, p, outbox.Message{ID: "1", Topic: "t"})[0])
	require.EqualValues(t, 2, f.Hits())
	require.EqualValues(t, 1, c.PartitionInfo("t", 0).HighWatermark)
}

func TestKeysKeepToTheirPartitionAndTheOthersGoRound(t *testing.T) {
	everywhere(t, 4, func(t *testing.T, w world) {
		p := newPublisher(t, w.brokers, nil)
		var ms []outbox.Message
		for i := range 40 {
			ms = append(ms, outbox.Message{ID: fmt.Sprint("key", i), Topic: w.topic, Key: strconv.Itoa(i % 10)}, outbox.Message{ID: strconv.Itoa(i), Topic: w.topic})
		}
		for _, err := range publish(t, p, ms...) {
			require.NoError(t, err)
		}
		hash, keyless := new(kafkago.Hash), map[int]int{}
		order := map[string]int{}
		for _, d := range receive(t, w.source(t), 80) {
			m := d.Raw.(kafkago.Message)
			if m.Key == nil {
				keyless[m.Partition]++
				continue
			}
			require.Equal(t, hash.Balance(m, 0, 1, 2, 3), m.Partition)
			n, err := strconv.Atoi(strings.TrimPrefix(d.Headers["message-id"], "key"))
			require.NoError(t, err)
			require.GreaterOrEqual(t, n, order[d.Key], "the order of a key")
			order[d.Key] = n
		}
		require.Equal(t, map[int]int{0: 10, 1: 10, 2: 10, 3: 10}, keyless)
	})
}

func TestRedriveSendsADeadLetterBackUnderItsName(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		require.NoError(t, cl.ProduceSync(within(t, eventually), &kgo.Record{Key: []byte("k"), Value: nil, Headers: []kgo.RecordHeader{
			{Key: "message-id", Value: []byte("m-1")}, {Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")},
		}}).FirstErr())
		s := w.source(t)
		d := receive(t, s, 1)[0]
		d.Identify(consumer.DefaultRules(), d.Made)
		require.NoError(t, d.DeadLetter(t.Context(), 1, errors.New("why")))
		ack(t, d)

		p := newPublisher(t, w.brokers, nil)
		require.ErrorContains(t, p.Redrive(t.Context(), d.Message), "kafka: redrive \"m-1\": it has no header idemq-origin, so it is no dead letter")
		dead := receive(t, sourceOf(t, w.brokers, w.group+"-dead", []string{w.topic + ".dlt"}), 1)[0]
		require.NoError(t, p.Redrive(t.Context(), dead.Message))
		back := receive(t, s, 1)[0]
		require.True(t, back.Identify(consumer.DefaultRules(), back.Made))
		require.Equal(t, "m-1", back.Message.ID)
		require.Equal(t, 1, back.Redrive)
		require.Empty(t, back.DeadCause, "it is no dead letter any more")
		require.Equal(t, "k", back.Key)
		require.Nil(t, back.Body)
		require.Equal(t, "2", back.Headers["a"])
		require.Equal(t, w.topic, back.Headers[consumer.OriginHeader])
		require.Equal(t, "kafka/"+w.group, back.Headers[consumer.ScopeHeader])
		require.ErrorContains(t, p.Redrive(t.Context(), back.Message), "where it came from, so it is no dead letter")

		hand := &consumer.Message{Key: "k2", Headers: dead.Headers, Body: []byte("by hand")}
		require.NoError(t, p.Redrive(t.Context(), hand))
		require.Equal(t, []string{"by hand"}, bodies(receive(t, s, 1)))
	})
}

func TestPublisherIsSafeForConcurrentUseAndCloses(t *testing.T) {
	c := fakeKafka(t, 2)
	p := newPublisher(t, c.ListenAddrs(), nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				errs := make([]error, 1)
				if err := errors.Join(p.Publish(t.Context(), []outbox.Message{{ID: fmt.Sprint(i, "/", j), Topic: "t"}}, errs), errs[0]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 80, c.PartitionInfo("t", 0).HighWatermark+c.PartitionInfo("t", 1).HighWatermark)
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Close(), kafka.ErrClosed)
	require.ErrorIs(t, p.Publish(t.Context(), []outbox.Message{{ID: "1", Topic: "t"}}, make([]error, 1)), kafka.ErrClosed)
	require.ErrorContains(t, p.Publish(t.Context(), []outbox.Message{{ID: "1", Topic: "t"}}, nil), "1 messages, but room for 0 answers")
}
