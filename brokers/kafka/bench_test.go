package kafka_test

import (
	"bytes"
	"log/slog"
	"strconv"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/idemq/idemq/brokers/kafka"
)

// benchTotal is how many messages of 512 B, with a header and a key, lie in 4 partitions; a
// benchmark of more begins again in a new group.
const benchTotal = 200_000

func benchTopic(b *testing.B) world {
	b.Helper()
	w := realWorld(b)
	w.create(b, w.topic, 4, nil)
	cl := w.client(b)
	value := bytes.Repeat([]byte("x"), 512)
	failed := make(chan error, 1)
	for i := range benchTotal {
		cl.Produce(b.Context(), &kgo.Record{
			Partition: int32(i % 4), Value: value, Key: []byte(strconv.Itoa(i % 1000)),
			Headers: []kgo.RecordHeader{{Key: "message-id", Value: []byte(strconv.Itoa(i))}},
		}, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	require.NoError(b, cl.Flush(b.Context()))
	require.Empty(b, failed)
	return w
}

// BenchmarkSource_Receive is what Receive and Ack cost a message, offsets committed each second.
// The first message of a group, and with it the joining, is not counted.
func BenchmarkSource_Receive(b *testing.B) {
	w := benchTopic(b)
	b.ReportAllocs()
	b.ResetTimer()
	for group, left := 0, b.N; left > 0; group++ {
		b.StopTimer()
		o := kafka.SourceOptions{Logger: slog.New(slog.DiscardHandler)}
		s, err := kafka.NewSource(kafka.Cluster{Brokers: w.brokers}, w.group+strconv.Itoa(group), []string{w.topic}, &o)
		require.NoError(b, err)
		ack(b, receive(b, s, 1)...)
		b.StartTimer()
		for n := min(left, benchTotal-1); n > 0; {
			ds, err := s.Receive(b.Context(), min(n, 256))
			if err != nil {
				b.Fatal(err)
			}
			for i := range ds {
				if err := ds[i].Ack(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			n -= len(ds)
			left -= len(ds)
		}
		b.StopTimer()
		require.NoError(b, s.Close(b.Context()))
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkReader_Fetch is the client's own Reader in a group that commits every 500 messages.
func BenchmarkReader_Fetch(b *testing.B) {
	w := benchTopic(b)
	b.ReportAllocs()
	b.ResetTimer()
	for group, left := 0, b.N; left > 0; group++ {
		b.StopTimer()
		r := kafkago.NewReader(kafkago.ReaderConfig{
			Brokers: w.brokers, GroupID: w.group + strconv.Itoa(group), Topic: w.topic, MaxWait: 500 * time.Millisecond,
			MaxBytes: 10 << 20,
		})
		_, err := r.FetchMessage(b.Context())
		require.NoError(b, err)
		b.StartTimer()
		batch := make([]kafkago.Message, 0, 500)
		for n := min(left, benchTotal-1); n > 0; n-- {
			m, err := r.FetchMessage(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			left--
			if batch = append(batch, m); len(batch) == cap(batch) || n == 1 {
				if err := r.CommitMessages(b.Context(), batch...); err != nil {
					b.Fatal(err)
				}
				batch = batch[:0]
			}
		}
		b.StopTimer()
		require.NoError(b, r.Close())
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
