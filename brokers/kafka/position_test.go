package kafka_test

import (
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/idemq/idemq/brokers/kafka"
)

func TestFromLatestCommitsWhereItBegins(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, "before")
		latest := func(o *kafka.SourceOptions) { o.FromLatest = true }
		s := w.source(t, latest)
		nothing(t, s, 500*time.Millisecond)
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 0) == 1 }, eventually, 20*time.Millisecond)
		closeSource(t, s)
		produce(t, cl, 0, "while nobody consumed")
		require.Equal(t, []string{"while nobody consumed"}, bodies(receive(t, w.source(t, latest), 1)))
	})
}

func TestLogCutOffBelowThePositionIsReportedAsDataLoss(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		for _, v := range numbers(0, 10) {
			produce(t, cl, 0, v)
		}
		var l log
		s := w.source(t)
		ack(t, receive(t, s, 2)...)
		closeSource(t, s)
		w.cut(t, 6)
		s = w.source(t, func(o *kafka.SourceOptions) { o.Logger = l.logger() })
		ds := receive(t, s, 4)
		require.Equal(t, numbers(6, 10), bodies(ds))
		require.Contains(t, l.String(), "level=ERROR msg=\"kafka: data loss: ")
		require.Contains(t, l.String(), "topic="+w.topic+" partition=0 position=2 log_start=6 lost=4")
		ack(t, ds...)
		closeSource(t, s)
		require.EqualValues(t, 10, committed(t, cl, w.group, w.topic, 0))
	})
}

func TestCommittedOffsetBeyondTheLogBeginsAnew(t *testing.T) {
	t.Parallel()
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, "a", "b")
		commit(t, w.brokers, w.group, w.topic, 0, 100)
		var l log
		s := w.source(t, func(o *kafka.SourceOptions) { o.Logger = l.logger() })
		ds := receive(t, s, 2)
		require.Equal(t, []string{"a", "b"}, bodies(ds))
		require.Contains(t, l.String(), "position=100 log_start=0 log_end=2")
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 0) == 0 }, eventually, 20*time.Millisecond,
			"what is written up to the old offset would be skipped after a restart")
		ack(t, ds...)
		closeSource(t, s)
		require.EqualValues(t, 2, committed(t, cl, w.group, w.topic, 0))
	})
}

func TestTopicMadeAnewWhileRunningIsReadFromItsStart(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, numbers(0, 10)...)
		s := w.source(t)
		old := receive(t, s, 10)
		ack(t, old[:5]...)
		req := kmsg.NewPtrDeleteTopicsRequest()
		rt := kmsg.NewDeleteTopicsRequestTopic()
		rt.Topic = &w.topic
		req.Topics, req.TopicNames = append(req.Topics, rt), []string{w.topic}
		_, err := req.RequestWith(t.Context(), cl)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return w.partitions(t, w.topic) == 0 }, eventually, 20*time.Millisecond)
		w.create(t, w.topic, 1, nil)
		produce(t, w.client(t), 0, "new")
		ds := receive(t, s, 1)
		require.Equal(t, []string{"new"}, bodies(ds))
		require.Equal(t, w.topic+"/0/0", ds[0].ID)
		<-old[0].Lost
		ack(t, old[5:]...)
		ack(t, ds...)
		closeSource(t, s)
		require.EqualValues(t, 1, committed(t, w.client(t), w.group, w.topic, 0), "an acknowledgement of the old log counted for the new one")
	})
}

// commit sets a group's offset from outside, while the group has no member.
func commit(t testing.TB, brokers []string, group, topic string, p int, offset int64) {
	t.Helper()
	pool := new(kafkago.Transport)
	defer pool.CloseIdleConnections()
	cl := kafkago.Client{Addr: kafkago.TCP(brokers...), Transport: pool}
	res, err := cl.OffsetCommit(t.Context(), &kafkago.OffsetCommitRequest{
		GroupID: group, GenerationID: -1, Topics: map[string][]kafkago.OffsetCommit{topic: {{Partition: p, Offset: offset}}},
	})
	require.NoError(t, err)
	require.NoError(t, res.Topics[topic][0].Error)
}
