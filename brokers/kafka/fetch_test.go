package kafka_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/idemq/idemq/brokers/kafka"
)

func TestPartitionAtItsLimitStopsWhileOthersGoOn(t *testing.T) {
	everywhere(t, 2, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, numbers(0, 100)...)
		s := w.source(t, func(o *kafka.SourceOptions) { o.MaxInFlight = 10 })
		stuck := receive(t, s, 10)
		produce(t, cl, 1, numbers(0, 25)...)
		for range 5 {
			ds := receive(t, s, 5)
			for _, d := range ds {
				require.Equal(t, w.topic+"/1", d.Lane)
			}
			ack(t, ds...)
		}
		nothing(t, s, 300*time.Millisecond)
		ack(t, stuck[3])
		require.Equal(t, []string{"10"}, bodies(receive(t, s, 1)), "there was room for one")
		nothing(t, s, 200*time.Millisecond)
		ack(t, stuck[:3]...)
		ack(t, stuck[4:]...)
		require.Equal(t, numbers(11, 20), bodies(receive(t, s, 9)))
	})
}

func TestPartitionAtItsLimitIsNotFetched(t *testing.T) {
	t.Parallel()
	c := fakeKafka(t, 1)
	cl := client(t, c.ListenAddrs())
	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.MaxInFlight = 4 })
	for i := range 20 {
		produce(t, cl, 0, strconv.Itoa(i))
	}
	ds := receive(t, s, 4)
	nothing(t, s, time.Second) // fills what may wait behind the limit
	seen := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Observe: true, Count: -1})
	nothing(t, s, time.Second)
	require.Zero(t, seen.Hits())
	ack(t, ds...)
	for range 4 {
		ds = receive(t, s, 4)
		ack(t, ds...)
	}
	require.Equal(t, numbers(16, 20), bodies(ds))
}

func TestAbortedTransactionsAndMarkersNeverReachAHandler(t *testing.T) {
	t.Parallel()
	everywhere(t, 1, func(t *testing.T, w world) {
		tx := w.client(t, kgo.TransactionalID(w.group))
		send := func(end kgo.TransactionEndTry, rs ...*kgo.Record) {
			require.NoError(t, tx.BeginTransaction())
			require.NoError(t, tx.ProduceSync(within(t, eventually), rs...).FirstErr())
			require.NoError(t, tx.EndTransaction(within(t, eventually), end))
		}
		record := func(v string) *kgo.Record { return &kgo.Record{Topic: w.topic, Value: []byte(v)} }
		send(kgo.TryCommit, record("a"), record("b"))
		send(kgo.TryAbort, record("aborted"), record("aborted"))
		send(kgo.TryCommit, record("c"))
		look := &kgo.Record{Topic: w.topic, Key: []byte{0, 0, 0, 1}, Value: []byte("\x00\x00\x00\x00\x00\x00")}
		cl := w.client(t)
		require.NoError(t, cl.ProduceSync(within(t, eventually), look).FirstErr())
		send(kgo.TryAbort, record("aborted"))

		s := w.source(t)
		ds := receive(t, s, 4)
		require.Equal(t, []string{"a", "b", "c", string(look.Value)}, bodies(ds))
		nothing(t, s, 500*time.Millisecond)
		ack(t, ds...)
		// 2+1, 2+1, 1+1, 1, 1+1: the position goes past the last marker with nothing delivered behind it.
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 0) == 11 }, eventually, 20*time.Millisecond)
		send(kgo.TryAbort, record("aborted"))
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 0) == 13 }, eventually, 20*time.Millisecond)
		nothing(t, s, 200*time.Millisecond)
	})
}

func TestOpenTransactionIsWaitedForAndNotSkipped(t *testing.T) {
	t.Parallel()
	everywhere(t, 1, func(t *testing.T, w world) {
		tx := w.client(t, kgo.TransactionalID(w.group))
		cl := w.client(t)
		s := w.source(t)
		require.NoError(t, tx.BeginTransaction())
		require.NoError(t, tx.ProduceSync(t.Context(), &kgo.Record{Value: []byte("in transaction")}).FirstErr())
		produce(t, cl, 0, "behind it")
		nothing(t, s, time.Second)
		require.NoError(t, tx.EndTransaction(t.Context(), kgo.TryCommit))
		require.Equal(t, []string{"in transaction", "behind it"}, bodies(receive(t, s, 2)))
	})
}

func TestCompactionLeavesNothingToReplayAndNothingOut(t *testing.T) {
	c := fakeKafka(t, 0)
	require.NoError(t, c.CreateTopic("t", 1, map[string]string{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}))
	cl := client(t, c.ListenAddrs())
	put := func(key, value string) *kgo.Record { return &kgo.Record{Key: []byte(key), Value: []byte(value)} }
	send := func(rs ...*kgo.Record) { require.NoError(t, cl.ProduceSync(within(t, eventually), rs...).FirstErr()) }
	send(put("a", "a0"), put("x", "x1"))
	send(put("b", "2"), put("b", "3"), put("b", "4"))
	send(put("b", "5"), put("b", "6"))
	send(put("b", "7"), put("a", "8"))
	send(put("c", "9"))
	c.Compact()

	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.DeadLetterTopic = "dead" })
	ds := receive(t, s, 4)
	require.Equal(t, []string{"x1", "7", "8", "9"}, bodies(ds))
	nothing(t, s, 500*time.Millisecond)
	ack(t, ds...)
	closeSource(t, s)
	require.EqualValues(t, 10, committed(t, cl, "g", "t", 0))
}

// TestEmptyBatchesThatCompactionLeavesArePassed: of an idempotent producer the cleaner keeps the last batch even
// where none of its records is left, and an answer ends with its segment; so there are answers without a record.
func TestEmptyBatchesThatCompactionLeavesArePassed(t *testing.T) {
	w := realWorld(t)
	w.create(t, w.topic, 1, map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "100", "segment.bytes": strconv.Itoa(1 << 20),
	})
	at := time.Now().Add(-time.Hour)
	send := func(cl *kgo.Client, size int, keys ...string) { // a batch, in a segment of its own
		var rs []*kgo.Record
		at = at.Add(time.Minute)
		for _, k := range keys {
			rs = append(rs, &kgo.Record{Key: []byte(k), Value: append([]byte(k), raw(size)...), Timestamp: at})
		}
		require.NoError(t, cl.ProduceSync(within(t, eventually), rs...).FirstErr())
	}
	last := w.client(t)
	send(last, 1, "kept", "a")
	for range 4 { // producers that end, and whose records are all replaced; too large for two to share a segment
		send(w.client(t), 14_000, numbers(0, 50)...)
	}
	send(last, 1, numbers(0, 50)...)
	send(last, 1, "end") // the segment that is written to is not cleaned
	t.Parallel()         // the broker looks for what to clean each 15 s, while the other tests run

	require.Eventually(t, func() bool { return w.empty(t, 2+50) && w.empty(t, 2+2*50) }, 3*eventually, 200*time.Millisecond)
	var want []string
	plain := w.client(t, kgo.ConsumeTopics(w.topic))
	for end := false; !end; {
		plain.PollFetches(within(t, eventually)).EachRecord(func(r *kgo.Record) {
			want = append(want, string(r.Value))
			end = string(r.Key) == "end"
		})
	}
	require.Len(t, want, 2+50+1)
	s := w.source(t)
	ds := receive(t, s, len(want))
	require.Equal(t, want, bodies(ds))
	ack(t, ds...)
	closeSource(t, s)
	require.EqualValues(t, 2+5*50+1, committed(t, last, w.group, w.topic, 0))
}

// empty reports whether a fetch at offset brings batches, but no record.
func (w world) empty(t *testing.T, offset int64) bool {
	t.Helper()
	pool := new(kafkago.Transport)
	defer pool.CloseIdleConnections()
	res, err := pool.RoundTrip(within(t, eventually), kafkago.TCP(w.brokers...), &fetch.Request{
		ReplicaID: -1, MinBytes: 1, MaxBytes: 1 << 20, SessionEpoch: -1,
		Topics: []fetch.RequestTopic{{Topic: w.topic, Partitions: []fetch.RequestPartition{{FetchOffset: offset, CurrentLeaderEpoch: -1, PartitionMaxBytes: 1 << 20}}}},
	})
	require.NoError(t, err)
	p := res.(*fetch.Response).Topics[0].Partitions[0]
	require.Zero(t, p.ErrorCode)
	batches := p.RecordSet.Records.(*protocol.RecordStream).Records
	for _, b := range batches {
		if _, err := b.ReadRecord(); !errors.Is(err, io.EOF) {
			require.NoError(t, err)
			return false
		}
	}
	return len(batches) > 0
}

func TestRecordsOfEveryCompressionArrive(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		var want []string
		for _, c := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
			var batch []string
			for i := range 100 {
				batch = append(batch, fmt.Sprintf("%d is a text that a codec makes shorter", len(want)+i))
			}
			produce(t, w.client(t, kgo.ProducerBatchCompression(c)), 0, batch...)
			want = append(want, batch...)
		}
		s := w.source(t, func(o *kafka.SourceOptions) { o.MaxInFlight = len(want) })
		require.Equal(t, want, bodies(receive(t, s, len(want))))
	})
}

func TestMovedLeadersAreFollowed(t *testing.T) {
	c := fakeKafka(t, 3, kfake.NumBrokers(3))
	cl := client(t, c.ListenAddrs())
	s := newSource(t, c.ListenAddrs())
	want := map[string]bool{}
	for round := range 4 {
		for p := range int32(3) {
			v := fmt.Sprint(round, "/", p)
			want[v] = true
			produce(t, cl, p, v)
		}
		for _, d := range receive(t, s, 3) {
			require.True(t, want[string(d.Body)], "%s came twice", d.Body)
			delete(want, string(d.Body))
			ack(t, d)
		}
		for p := range int32(3) {
			require.NoError(t, c.MoveTopicPartition("t", p, (c.LeaderFor("t", p)+1)%3))
		}
	}
	require.Empty(t, want)
}

func TestCorruptRecordsHoldTheirPartitionAlone(t *testing.T) {
	c := fakeKafka(t, 2)
	cl := client(t, c.ListenAddrs())
	produce(t, cl, 0, "good", "again")
	produce(t, cl, 1, numbers(0, 10)...)
	var corrupt atomic.Bool
	corrupt.Store(true)
	c.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		hit := false
		res := req.ResponseKind().(*kmsg.FetchResponse)
		for _, rt := range req.Topics {
			t := kmsg.NewFetchResponseTopic()
			t.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				p := kmsg.NewFetchResponseTopicPartition()
				p.Partition, p.HighWatermark, p.LastStableOffset = rp.Partition, 2, 2
				if rp.Partition == 0 {
					hit = true
					p.RecordBatches = bytes.Repeat([]byte{2}, 80)
					copy(p.RecordBatches, make([]byte, 11))
					p.RecordBatches[11] = 68
					p.RecordBatches[21], p.RecordBatches[22] = 0, 0 // not compressed
				}
				t.Partitions = append(t.Partitions, p)
			}
			res.Topics = append(res.Topics, t)
		}
		if !hit || !corrupt.Load() {
			return nil, nil, false
		}
		return res, nil, true
	})
	var l log
	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.Logger = l.logger() })
	ds := receive(t, s, 10)
	require.Equal(t, numbers(0, 10), bodies(ds))
	ack(t, ds...)
	require.Eventually(t, func() bool { return bytes.Contains([]byte(l.String()), []byte("topic=t partition=0 offset=0")) }, eventually, 20*time.Millisecond)
	require.Contains(t, l.String(), "kafka: records cannot be decoded")
	require.Contains(t, l.String(), "crc32")
	corrupt.Store(false)
	require.Equal(t, []string{"good", "again"}, bodies(receive(t, s, 2)))
}

func TestRecordsLargerThanAFetchArrive(t *testing.T) {
	c := fakeKafka(t, 3, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "20000000", "group.initial.rebalance.delay.ms": "0"}))
	cl := client(t, c.ListenAddrs(), kgo.ProducerBatchMaxBytes(16<<20))
	for p := range int32(3) {
		for i := range 3 {
			produce(t, cl, p, string(bytes.Repeat([]byte{byte('0' + i)}, 3<<20)))
		}
	}
	s := newSource(t, c.ListenAddrs())
	last := map[string]byte{}
	for _, d := range receive(t, s, 9) {
		require.Len(t, d.Body, 3<<20)
		require.Greater(t, d.Body[0], last[d.Lane])
		last[d.Lane] = d.Body[0]
		ack(t, d)
	}
}

func TestTenThousandMessages(t *testing.T) {
	everywhere(t, 4, func(t *testing.T, w world) {
		cl := w.client(t)
		const total = 10_000
		for p := range int32(4) {
			produce(t, cl, p, numbers(0, total/4)...)
		}
		s := w.source(t)
		next := map[string]int{}
		for n := 0; n < total; {
			ds, err := s.Receive(within(t, eventually), 500) // acknowledged as they come: a partition may be ahead of the others
			require.NoError(t, err, "after %d deliveries", n)
			for _, d := range ds {
				require.Equal(t, strconv.Itoa(next[d.Lane]), string(d.Body))
				next[d.Lane]++
			}
			n += len(ds)
			ack(t, ds...)
		}
		closeSource(t, s)
		for p := range int32(4) {
			require.EqualValues(t, total/4, committed(t, cl, w.group, w.topic, p))
		}
	})
}
