package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/idemq/idemq/consumer"
)

func TestKeptDeadLetterIsAtTheEndOfItsTopicAsItWas(t *testing.T) {
	w := world{brokers: fakeKafka(t, 1).ListenAddrs(), topic: "t", group: "g"}
	require.NoError(t, w.client(t).ProduceSync(within(t, eventually), &kgo.Record{Key: []byte("k"), Headers: []kgo.RecordHeader{
		{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")},
		{Key: consumer.IDHeader, Value: []byte("order-7")}, {Key: consumer.RedriveHeader, Value: []byte("1")},
		{Key: consumer.CauseHeader, Value: []byte("why")}, {Key: consumer.OriginHeader, Value: []byte("t")}, {Key: consumer.ScopeHeader, Value: []byte("kafka/billing")},
		{Key: consumer.KeptHeader, Value: []byte("an earlier run")},
	}}).FirstErr())
	s, p := w.source(t), newPublisher(t, w.brokers, nil)
	dead := receive(t, s, 1)[0]
	m := *dead.Message
	m.Headers = map[string]string{consumer.KeptHeader: "this run"}
	require.NoError(t, p.Keep(t.Context(), &m))
	ack(t, dead)

	kept := receive(t, s, 1)[0]
	want := dead.Headers
	want[consumer.KeptHeader] = "this run"
	require.Equal(t, want, kept.Headers)
	require.Equal(t, "k", kept.Key)
	require.Nil(t, kept.Body)
	require.Equal(t, "why", kept.DeadCause)
	ack(t, kept)

	kept.Message.Topic = "t.dlt" // as if it had come from there
	require.NoError(t, p.Redrive(t.Context(), kept.Message))
	require.NotContains(t, receive(t, s, 1)[0].Headers, consumer.KeptHeader)
}
