package kafka_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeaksOfProxies()...) }

// fakeKafka is a broker that speaks Kafka's protocol, with topic "t" of the given partitions.
func fakeKafka(t testing.TB, partitions int32, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	opts = append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100 * time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	}, opts...)
	if partitions > 0 {
		opts = append(opts, kfake.SeedTopics(partitions, "t"))
	}
	c, err := kfake.NewCluster(opts...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// log collects what a source says.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// eventually is long enough for a slow machine, and soon over where all is well.
const eventually = 20 * time.Second

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// newSource is a source of topic "t" in group "g" with a session of 2 s, closed at the end.
func newSource(t testing.TB, brokers []string, edit ...func(*kafka.SourceOptions)) *kafka.Source {
	t.Helper()
	return sourceOf(t, brokers, "g", []string{"t"}, edit...)
}

func sourceOf(t testing.TB, brokers []string, group string, topics []string, edit ...func(*kafka.SourceOptions)) *kafka.Source {
	t.Helper()
	o := kafka.SourceOptions{SessionTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	for _, e := range edit {
		e(&o)
	}
	s, err := kafka.NewSource(kafka.Cluster{Brokers: brokers}, group, topics, &o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx) // ErrClosed where the test has closed it
	})
	return s
}

// receive waits for n deliveries.
func receive(t testing.TB, s *kafka.Source, n int) []consumer.Delivery {
	t.Helper()
	ctx := within(t, eventually)
	var all []consumer.Delivery
	for len(all) < n {
		ds, err := s.Receive(ctx, n-len(all))
		require.NoError(t, err, "after %d of %d deliveries", len(all), n)
		all = append(all, ds...)
	}
	return all
}

// nothing asserts that no delivery comes within d.
func nothing(t testing.TB, s *kafka.Source, d time.Duration) {
	t.Helper()
	ds, err := s.Receive(within(t, d), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded, "delivered %v", bodies(ds))
}

func ack(t testing.TB, ds ...consumer.Delivery) {
	t.Helper()
	for _, d := range ds {
		require.NoError(t, d.Ack(t.Context()))
	}
}

func bodies(ds []consumer.Delivery) []string {
	var bs []string
	for _, d := range ds {
		bs = append(bs, string(d.Body))
	}
	return bs
}

func closeSource(t testing.TB, s *kafka.Source) {
	t.Helper()
	require.NoError(t, s.Close(within(t, 10*time.Second)))
}

// client is a plain client of another library, to produce and to look.
func client(t testing.TB, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("t"),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// produce sends values to partition p, all in one batch.
func produce(t testing.TB, cl *kgo.Client, p int32, values ...string) {
	t.Helper()
	var rs []*kgo.Record
	for _, v := range values {
		rs = append(rs, &kgo.Record{Partition: p, Value: []byte(v)})
	}
	require.NoError(t, cl.ProduceSync(within(t, eventually), rs...).FirstErr())
}

func numbers(from, to int) []string {
	var vs []string
	for i := from; i < to; i++ {
		vs = append(vs, strconv.Itoa(i))
	}
	return vs
}

// committed is the group's offset, -1 for none.
func committed(t testing.TB, cl *kgo.Client, group, topic string, p int32) int64 {
	t.Helper()
	at, err := committedOf(cl, group, topic, p)
	require.NoError(t, err)
	return at
}

// world is a broker, with names on it that nobody else uses.
type world struct {
	brokers      []string
	topic, group string
	fake         *kfake.Cluster // nil: a real one
}

// everywhere runs f on the fake and on a real broker, so that the fake cannot drift.
func everywhere(t *testing.T, partitions int32, f func(t *testing.T, w world)) {
	t.Run("fake", func(t *testing.T) {
		c := fakeKafka(t, partitions)
		f(t, world{brokers: c.ListenAddrs(), topic: "t", group: "g", fake: c})
	})
	t.Run("real", func(t *testing.T) {
		w := realWorld(t)
		if partitions > 0 {
			w.create(t, w.topic, partitions, nil)
		}
		f(t, w)
	})
}

func realWorld(t testing.TB) world {
	t.Helper()
	id := "test-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	return world{brokers: testenv.Kafka(t), topic: id, group: id + "-g"}
}

func (w world) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	return client(t, w.brokers, append([]kgo.Opt{kgo.DefaultProduceTopic(w.topic)}, opts...)...)
}

func (w world) source(t testing.TB, edit ...func(*kafka.SourceOptions)) *kafka.Source {
	t.Helper()
	return sourceOf(t, w.brokers, w.group, []string{w.topic}, edit...)
}

func (w world) create(t testing.TB, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	cl := w.client(t)
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, partitions, -1
	for k, v := range configs {
		rc := kmsg.NewCreateTopicsRequestTopicConfig()
		rc.Name, rc.Value = k, &v
		rt.Configs = append(rt.Configs, rc)
	}
	req.Topics = append(req.Topics, rt)
	res, err := req.RequestWith(within(t, eventually), cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(res.Topics[0].ErrorCode))
	require.Eventually(t, func() bool { // its leaders are elected a little later
		cl.ForceMetadataRefresh()
		m := kmsg.NewPtrMetadataRequest()
		mt := kmsg.NewMetadataRequestTopic()
		mt.Topic = &topic
		m.Topics = append(m.Topics, mt)
		res, err := m.RequestWith(t.Context(), cl)
		if err != nil || res.Topics[0].ErrorCode != 0 {
			return false
		}
		for _, p := range res.Topics[0].Partitions {
			if p.ErrorCode != 0 || p.Leader < 0 {
				return false
			}
		}
		return true
	}, eventually, 10*time.Millisecond)
}

// cut deletes the records of partition 0 below offset.
func (w world) cut(t testing.TB, offset int64) {
	t.Helper()
	cl := w.client(t)
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = w.topic
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Offset = offset
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	for _, shard := range cl.RequestSharded(within(t, eventually), req) {
		require.NoError(t, shard.Err)
		for _, rt := range shard.Resp.(*kmsg.DeleteRecordsResponse).Topics {
			require.NoError(t, kerr.ErrorForCode(rt.Partitions[0].ErrorCode))
		}
	}
}

// high is a partition's high watermark.
func (w world) high(t testing.TB, topic string, p int32) int64 {
	t.Helper()
	pool := new(kafkago.Transport)
	defer pool.CloseIdleConnections()
	cl := kafkago.Client{Addr: kafkago.TCP(w.brokers...), Transport: pool}
	res, err := cl.ListOffsets(within(t, eventually), &kafkago.ListOffsetsRequest{
		Topics: map[string][]kafkago.OffsetRequest{topic: {kafkago.LastOffsetOf(int(p))}},
	})
	require.NoError(t, err)
	require.NoError(t, res.Topics[topic][0].Error)
	return res.Topics[topic][0].LastOffset
}

func (w world) partitions(t testing.TB, topic string) int {
	t.Helper()
	pool := new(kafkago.Transport)
	defer pool.CloseIdleConnections()
	cl := kafkago.Client{Addr: kafkago.TCP(w.brokers...), Transport: pool}
	res, err := cl.Metadata(within(t, eventually), &kafkago.MetadataRequest{Topics: []string{topic}})
	require.NoError(t, err)
	return len(res.Topics[0].Partitions)
}
