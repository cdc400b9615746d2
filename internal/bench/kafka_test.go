package bench

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"

	idemqkafka "github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
)

func newKafka(tb testing.TB) broker {
	addrs := testenv.Kafka(tb)
	return broker{
		name: "kafka", addr: addrs[0], messages: 200_000, shares: partitions,
		create: func(tb testing.TB) (string, func()) { return createTopic(tb, addrs) },
		publish: func(tb testing.TB) publisher {
			p, err := idemqkafka.NewPublisher(idemqkafka.Cluster{Brokers: addrs}, &idemqkafka.PublisherOptions{Timeout: 5 * time.Minute})
			require.NoError(tb, err)
			return p
		},
		source: func(tb testing.TB, topic string) consumer.Source {
			s, err := idemqkafka.NewSource(idemqkafka.Cluster{Brokers: addrs}, newName(), []string{topic}, &idemqkafka.SourceOptions{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(tb, err)
			return s
		},
		clients: []client{
			{"kafka-go Reader, commits of 500", func(tb testing.TB, topic string, handle func(string, []byte)) func() {
				return read(tb, addrs, topic, handle)
			}},
			{"kafka-go fetch, no group", func(tb testing.TB, topic string, handle func(string, []byte)) func() {
				return fetchAll(tb, addrs, topic, handle)
			}},
		},
	}
}

func createTopic(tb testing.TB, addrs []string) (topic string, drop func()) {
	topic = newName()
	client := &kafka.Client{Addr: kafka.TCP(addrs...)}
	_, err := client.CreateTopics(context.Background(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}})
	require.NoError(tb, err)
	return topic, func() {
		_, _ = client.DeleteTopics(context.Background(), &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	}
}

func read(tb testing.TB, addrs []string, topic string, handle func(string, []byte)) func() {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: addrs, Topic: topic, GroupID: newName(), MinBytes: 1, MaxBytes: 10 << 20,
		StartOffset: kafka.FirstOffset, QueueCapacity: 1000,
	})
	return until(func(ctx context.Context) {
		batch := make([]kafka.Message, 0, 500)
		for {
			m, err := r.FetchMessage(ctx)
			if err != nil {
				over(tb, ctx, err)
				return
			}
			handle(string(m.Headers[0].Value), m.Value)
			if batch = append(batch, m); len(batch) == cap(batch) {
				over(tb, ctx, r.CommitMessages(ctx, batch...))
				batch = batch[:0]
			}
		}
	}, func() { r.Close() })
}

// fetchAll is what the broker and the wire format allow.
func fetchAll(tb testing.TB, addrs []string, topic string, handle func(string, []byte)) func() {
	tr := &kafka.Transport{}
	req := &fetch.Request{ReplicaID: -1, MaxWaitTime: 500, MinBytes: 1, MaxBytes: 10 << 20, IsolationLevel: 1,
		Topics: []fetch.RequestTopic{{Topic: topic}}}
	for p := range partitions {
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetch.RequestPartition{Partition: int32(p), CurrentLeaderEpoch: -1, LogStartOffset: -1, PartitionMaxBytes: 1 << 20})
	}
	return until(func(ctx context.Context) {
		for {
			answer, err := tr.RoundTrip(ctx, kafka.TCP(addrs...), req)
			if err != nil {
				over(tb, ctx, err)
				return
			}
			for _, p := range answer.(*fetch.Response).Topics[0].Partitions {
				if p.RecordSet.Records == nil {
					continue
				}
				if err := records(p.RecordSet.Records.(*protocol.RecordStream), &req.Topics[0].Partitions[p.Partition].FetchOffset, handle); err != nil {
					over(tb, ctx, err)
					return
				}
			}
		}
	}, tr.CloseIdleConnections)
}

// records hands on those from next on, and moves it.
func records(s *protocol.RecordStream, next *int64, handle func(string, []byte)) error {
	for _, b := range s.Records {
		for {
			r, err := b.ReadRecord()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			body, err := protocol.ReadAll(r.Value)
			if err != nil {
				return err
			}
			if r.Offset >= *next {
				*next = r.Offset + 1
				handle("", body)
			}
		}
	}
	return nil
}

// until runs loop in the background; the function it returns ends loop, and then what it worked on.
func until(loop func(context.Context), end func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { loop(ctx) })
	return func() {
		cancel()
		ended.Wait()
		end()
	}
}

// over reports an error that is not its loop's end.
func over(tb testing.TB, ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		tb.Errorf("consume: %v", err)
	}
}
