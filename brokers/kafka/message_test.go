package kafka_test

import (
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
)

func TestRepeatedAndBinaryHeadersAndTombstones(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		at := time.UnixMilli(1_700_000_000_123)
		require.NoError(t, cl.ProduceSync(within(t, eventually),
			&kgo.Record{Timestamp: at, Key: []byte("k\xff\x00"), Value: []byte("v"), Headers: []kgo.RecordHeader{
				{Key: "a", Value: []byte("first")}, {Key: "b", Value: []byte("\x00\xff\xfe")}, {Key: "a", Value: []byte("last")}, {Key: "nil"},
			}},
			&kgo.Record{Key: []byte("gone")},
			&kgo.Record{Key: []byte(""), Value: []byte("")},
			&kgo.Record{Value: []byte("keyless")},
		).FirstErr())
		s := w.source(t, func(o *kafka.SourceOptions) { o.LaneByKey = true })

		ds := receive(t, s, 4)
		m := ds[0]
		require.Equal(t, map[string]string{"a": "last", "b": "\x00\xff\xfe", "nil": ""}, m.Headers)
		require.Equal(t, "k\xff\x00", m.Key)
		require.Equal(t, w.topic+"/0/k\xff\x00", m.Lane)
		require.True(t, at.Equal(m.Time))
		raw := m.Raw.(kafkago.Message)
		require.Equal(t, []kafkago.Header{
			{Key: "a", Value: []byte("first")}, {Key: "b", Value: []byte("\x00\xff\xfe")}, {Key: "a", Value: []byte("last")}, {Key: "nil"},
		}, raw.Headers)
		require.Equal(t, []byte("k\xff\x00"), raw.Key)

		require.Nil(t, ds[1].Body, "a tombstone is not an empty body")
		require.Nil(t, ds[1].Raw.(kafkago.Message).Value)
		require.NotNil(t, ds[2].Body)
		require.Empty(t, ds[2].Body)
		require.Equal(t, w.topic+"/0/", ds[2].Lane, "an empty key is a key")
		require.Empty(t, ds[3].Lane, "records without a key have no order")
		require.Nil(t, ds[3].Headers)
		ack(t, ds...)
	})
}

func TestWhatAHandlerDoesToItsMessageStaysThere(t *testing.T) {
	c := fakeKafka(t, 1)
	cl := client(t, c.ListenAddrs())
	require.NoError(t, cl.ProduceSync(within(t, eventually),
		&kgo.Record{Value: []byte("body"), Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}}},
	).FirstErr())
	s := newSource(t, c.ListenAddrs())
	spoil := func(m *consumer.Message) {
		copy(m.Body, "XXXX")
		m.Body = append(m.Body, "more"...)
		m.Headers["a"] = "X"
		m.Raw = nil
	}
	d := receive(t, s, 1)[0]
	spoil(d.Message)
	require.NoError(t, d.GiveBack(t.Context()))

	d = receive(t, s, 1)[0]
	require.Equal(t, "body", string(d.Body))
	require.Equal(t, "1", d.Headers["a"])
	spoil(d.Message)
	require.NoError(t, d.DeadLetter(t.Context(), 1, nil))
	dead := receive(t, sourceOf(t, c.ListenAddrs(), "dead", []string{"t.dlt"}), 1)[0]
	require.Equal(t, "body", string(dead.Body))
	require.Equal(t, "1", dead.Headers["a"])
}

func TestMessageFromIsNamedByTheDefaultRules(t *testing.T) {
	m := kafka.MessageFrom(kafkago.Message{
		Topic: "t", Partition: 3, Offset: 42, Key: []byte("k"), Value: []byte("v"), Time: time.Unix(1, 0),
		Headers: []kafkago.Header{{Key: "Message-ID", Value: []byte("m-1")}, {Key: consumer.CauseHeader, Value: []byte("why")}},
	})
	require.Equal(t, "m-1", m.ID)
	require.Equal(t, "header:message-id", m.IDFrom)
	require.Equal(t, "why", m.DeadCause)
	require.Equal(t, "k", m.Key)
	require.Equal(t, []byte("v"), m.Body)

	m = kafka.MessageFrom(kafkago.Message{Topic: "t", Partition: 3, Offset: 42, Value: []byte("v")})
	require.Contains(t, m.ID, "t/3/42/", "coordinates, and a hash of the body, since a topic can be made anew")
	require.Equal(t, "broker", m.IDFrom)
}
