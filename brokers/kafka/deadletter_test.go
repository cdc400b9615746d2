package kafka_test

import (
	"encoding/base64"
	"errors"
	"math/rand/v2"
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

// limit is max.message.bytes of the topics of these tests.
const limit = 20_000

func limited(bytes string) map[string]string { return map[string]string{"max.message.bytes": bytes} }

// noise is text of n bytes that no codec makes much shorter.
func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return base64.RawStdEncoding.EncodeToString(b)[:n]
}

// raw is n bytes that no codec makes shorter.
func raw(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// arrive sends records and receives them from s, named.
func arrive(t *testing.T, cl *kgo.Client, s *kafka.Source, rs ...*kgo.Record) []consumer.Delivery {
	t.Helper()
	for _, r := range rs { // each a batch of its own
		require.NoError(t, cl.ProduceSync(within(t, eventually), r).FirstErr())
	}
	ds := receive(t, s, len(rs))
	for _, d := range ds {
		require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
	}
	return ds
}

func (w world) graves(t *testing.T, n int) []consumer.Delivery {
	t.Helper()
	return receive(t, sourceOf(t, w.brokers, w.group+"-dead", []string{w.topic + ".dlt"}), n)
}

func TestDeadLetterOfTheLargestMessageFitsTheTopicThatIsMadeForIt(t *testing.T) {
	everywhere(t, 0, func(t *testing.T, w world) {
		w.create(t, w.topic, 1, limited("20000"))
		cl, s, cause := w.client(t), w.source(t), noise(1000)
		id := noise(12_000)
		large := &kgo.Record{Value: raw(limit - 80)}
		named := &kgo.Record{Value: raw(7_500), Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(id)}}}
		for _, d := range arrive(t, cl, s, large, named) {
			require.NoError(t, d.DeadLetter(t.Context(), 1, errors.New(cause)))
		}
		ds := w.graves(t, 2)
		require.Equal(t, large.Value, ds[0].Body)
		require.Equal(t, named.Value, ds[1].Body)
		require.Equal(t, id, ds[1].Headers[consumer.IDHeader])
		for _, d := range ds {
			require.Equal(t, cause, d.DeadCause)
		}
	})
}

func TestDeadLetterOfWhatCameCompressedFitsAndGoesBack(t *testing.T) {
	everywhere(t, 0, func(t *testing.T, w world) {
		w.create(t, w.topic, 1, limited("20000"))
		w.create(t, w.topic+".dlt", 1, limited("20000"))
		cl, s := w.client(t, kgo.ProducerBatchCompression(kgo.GzipCompression())), w.source(t)
		body := strings.Repeat("ten times what the topic takes ", 10*limit/30)
		d := arrive(t, cl, s, &kgo.Record{Value: []byte(body)})[0]
		require.NoError(t, d.DeadLetter(t.Context(), 1, errors.New("why")))
		ack(t, d)
		dead := w.graves(t, 1)[0]
		require.Equal(t, body, string(dead.Body))
		require.Equal(t, "why", dead.DeadCause)

		require.NoError(t, newPublisher(t, w.brokers, nil).Redrive(t.Context(), dead.Message))
		back := receive(t, s, 1)[0]
		require.Equal(t, body, string(back.Body))
		require.Equal(t, "1", back.Headers[consumer.RedriveHeader])
	})
}

func TestDeadLetterGoesWithoutItsCauseWhereThereIsNoRoomForIt(t *testing.T) {
	everywhere(t, 0, func(t *testing.T, w world) {
		w.create(t, w.topic, 1, limited("20000"))
		w.create(t, w.topic+".dlt", 1, limited("20000"))
		r := &kgo.Record{Value: raw(limit - 600)}
		d := arrive(t, w.client(t), w.source(t), r)[0]
		require.NoError(t, d.DeadLetter(t.Context(), 3, errors.New(noise(1000))))
		dead := w.graves(t, 1)[0]
		require.Equal(t, r.Value, dead.Body)
		require.NotContains(t, dead.Headers, consumer.CauseHeader)
		require.Equal(t, d.Message.ID, dead.Headers[consumer.IDHeader])
		require.Equal(t, "3", dead.Headers[consumer.RedriveHeader])
		require.Equal(t, w.topic, dead.Headers[consumer.OriginHeader])
	})
}

func TestDeadLetterThatFitsNowhereIsKeptUntilItsTopicTakesMore(t *testing.T) {
	t.Parallel()
	everywhere(t, 0, func(t *testing.T, w world) {
		w.create(t, w.topic, 1, limited("20000"))
		w.create(t, w.topic+".dlt", 1, limited("10000"))
		var l log
		cl := w.client(t)
		s := w.source(t, func(o *kafka.SourceOptions) { o.Logger = l.logger() })
		r := &kgo.Record{Value: raw(15_000)}
		ds := arrive(t, cl, s, &kgo.Record{Value: []byte("before")}, r, &kgo.Record{Value: []byte("behind")})
		require.Contains(t, l.String(), `level=WARN msg="kafka: the dead letter topic takes smaller messages than its origin; `)
		require.Contains(t, l.String(), " topic="+w.topic+".dlt max.message.bytes=10000 origin="+w.topic+" origin_takes=20000")

		small := ds[2].DeadLetter
		for range 2 {
			err := ds[1].DeadLetter(t.Context(), 1, errors.New("why"))
			require.ErrorIs(t, err, kafkago.MessageSizeTooLarge)
			require.ErrorContains(t, err, "kafka: dead-letter "+w.topic+"/0/1 to "+w.topic+".dlt: ")
			require.ErrorContains(t, err, " bytes is more than the broker takes (max.message.bytes)")
			require.NoError(t, small(t.Context(), 1, errors.New("why")), "the others are not held")
		}
		require.Equal(t, 1, strings.Count(l.String(), "level=ERROR"), "not at each try: %s", l.String())
		require.Regexp(t, `level=ERROR msg="kafka: a dead letter is larger than its topic takes; .*" group=\S+ topic=`+w.topic+`\.dlt max\.message\.bytes=10000 size=15\d\d\d message=`+w.topic+`/0/1`, l.String())
		ack(t, ds[0], ds[2])
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 0) == 1 }, eventually, 20*time.Millisecond)

		w.alter(t, w.topic+".dlt", "max.message.bytes", "20000")
		require.Eventually(t, func() bool { return ds[1].DeadLetter(t.Context(), 1, errors.New("why")) == nil }, eventually, 20*time.Millisecond)
		ack(t, ds[1])
		closeSource(t, s)
		require.EqualValues(t, 3, committed(t, cl, w.group, w.topic, 0))
		require.Contains(t, bodies(w.graves(t, 3)), string(r.Value))
	})
}

func TestBrokerThatDoesNotKnowTheCompressionIsToldApartFromOneThatIsAway(t *testing.T) {
	c := fakeKafka(t, 1)
	require.NoError(t, c.CreateTopic("t.dlt", 1, limited("10000")))
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t.dlt", Err: kerr.UnsupportedCompressionType, Count: -1, When: func(r kmsg.Request) bool {
		const attributes = 22 // the lower byte, in the header of a batch
		return r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records[attributes]&7 != 0
	}})
	d := arrive(t, client(t, c.ListenAddrs()), newSource(t, c.ListenAddrs()), &kgo.Record{Value: make([]byte, 15_000)})[0]
	require.ErrorIs(t, d.DeadLetter(t.Context(), 1, nil), kafkago.MessageSizeTooLarge)
	require.EqualValues(t, 2, f.Hits(), "once with its cause, once without")
}

func TestDeadLetterTopicIsMadeWhereTheClusterBoundsItsSettings(t *testing.T) {
	for name, refuse := range map[string][]kfake.Fault{
		"twice the size": {{Err: kerr.PolicyViolation}},
		"any size":       {{Err: kerr.InvalidConfig}, {Err: kerr.PolicyViolation}},
	} {
		t.Run(name, func(t *testing.T) {
			c := fakeKafka(t, 1)
			for i := range refuse {
				refuse[i].Keys, refuse[i].Topic = []kmsg.Key{kmsg.CreateTopics}, "t.dlt"
			}
			f := c.Fault(refuse...)
			s := newSource(t, c.ListenAddrs())
			d := arrive(t, client(t, c.ListenAddrs()), s, &kgo.Record{Value: []byte("a")})[0]
			require.NoError(t, d.DeadLetter(t.Context(), 1, nil))
			require.EqualValues(t, len(refuse), f.Hits())
			require.EqualValues(t, 1, c.PartitionInfo("t.dlt", 0).HighWatermark)
		})
	}
}

// alter changes a setting of a topic, as an operator does.
func (w world) alter(t *testing.T, topic, name, value string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	rr := kmsg.NewIncrementalAlterConfigsRequestResource()
	rr.ResourceType, rr.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	rc := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	rc.Name, rc.Value = name, &value
	rr.Configs = append(rr.Configs, rc)
	req.Resources = append(req.Resources, rr)
	res, err := req.RequestWith(within(t, eventually), w.client(t))
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(res.Resources[0].ErrorCode))
}
