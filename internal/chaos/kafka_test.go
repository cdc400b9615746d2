package chaos

import (
	"context"
	"log/slog"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
)

type kafkaTopic struct {
	client       *kafkago.Client
	topic, group string
	partitions   int
}

func startKafka(t *testing.T, s *childSpec, partitions int) broker {
	s.Brokers = testenv.Kafka(t)
	k := &kafkaTopic{client: &kafkago.Client{Addr: kafkago.TCP(s.Brokers...)}, topic: s.Topic, group: s.Group, partitions: partitions}
	_, err := k.client.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: k.topic, NumPartitions: partitions, ReplicationFactor: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = k.client.DeleteTopics(context.Background(), &kafkago.DeleteTopicsRequest{Topics: []string{k.topic, k.topic + ".dlt"}})
	})
	return k
}

func openKafka(s *childSpec, log *slog.Logger) (consumer.Source, error) {
	return kafka.NewSource(kafka.Cluster{Brokers: s.Brokers}, s.Group, []string{s.Topic},
		&kafka.SourceOptions{SessionTimeout: s.Session, RebalanceTimeout: s.Session, Logger: log})
}

func (k *kafkaTopic) publish(t *testing.T, all []published) {
	w := &kafkago.Writer{Addr: k.client.Addr, Topic: k.topic, RequiredAcks: kafkago.RequireAll, BatchSize: 1000, BatchTimeout: time.Millisecond,
		Balancer: kafkago.BalancerFunc(func(m kafkago.Message, _ ...int) int { return m.Partition })}
	defer w.Close()
	for len(all) > 0 {
		batch := all[:min(len(all), 5000)]
		all = all[len(batch):]
		ms := make([]kafkago.Message, len(batch))
		for i, m := range batch {
			ms[i] = kafkago.Message{Partition: m.partition, Value: []byte(m.id), Headers: []kafkago.Header{{Key: kafka.IDHeader, Value: []byte(m.id)}}}
		}
		require.NoError(t, w.WriteMessages(t.Context(), ms...))
	}
}

// left is how many messages the group has not committed.
func (k *kafkaTopic) left() (sum int64, err error) {
	asked := map[string][]int{k.topic: nil}
	var ends []kafkago.OffsetRequest
	for p := range k.partitions {
		asked[k.topic] = append(asked[k.topic], p)
		ends = append(ends, kafkago.LastOffsetOf(p))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	committed, err := k.client.OffsetFetch(ctx, &kafkago.OffsetFetchRequest{GroupID: k.group, Topics: asked})
	if err != nil {
		return 0, err
	}
	end, err := k.client.ListOffsets(ctx, &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{k.topic: ends}})
	if err != nil {
		return 0, err
	}
	for _, e := range end.Topics[k.topic] {
		sum += e.LastOffset
	}
	for _, o := range committed.Topics[k.topic] {
		sum -= max(o.CommittedOffset, 0)
	}
	return sum, nil
}

func (k *kafkaTopic) deadLetters() (int64, error) {
	dead := k.topic + ".dlt"
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	end, err := k.client.ListOffsets(ctx, &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{dead: {kafkago.LastOffsetOf(0)}}})
	if err != nil {
		return 0, nil // there is no such topic
	}
	for _, p := range end.Topics[dead] {
		if p.Error == nil {
			return p.LastOffset, nil
		}
	}
	return 0, nil
}

func (k *kafkaTopic) restart() {}
