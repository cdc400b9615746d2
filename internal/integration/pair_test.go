// Package integration tests the consumer on a real Kafka and a real Redis together, while
// something happens to one of them.
package integration

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
)

func TestMain(m *testing.M) {
	rocketmq.SetLogger(quiet)
	goleak.VerifyTestMain(m, append(testenv.LeaksOfProxies(), // and what RocketMQ's client library leaves behind after its Shutdown, and begins when it is imported
		goleak.IgnoreAnyFunction("github.com/apache/rocketmq-client-go/v2/primitive.WithRecover"),
		goleak.IgnoreTopFunction("github.com/patrickmn/go-cache.(*janitor).Run"))...)
}

var quiet = slog.New(slog.DiscardHandler)

// pair is one topic on a broker, and a Redis.
type pair struct {
	t       *testing.T
	brokers []string
	redis   string
	topic   string
	app     string
	sent    atomic.Int64

	failOpen bool          // of the groups to be run
	lease    time.Duration // of theirs
}

var names atomic.Int64

func newPair(t *testing.T, brokers []string, redisAddr string) *pair {
	t.Helper()
	name := fmt.Sprintf("integration-%d-%d", time.Now().UnixNano(), names.Add(1))
	p := &pair{t: t, brokers: brokers, redis: redisAddr, topic: name, app: name, lease: 2 * time.Second}
	client := &kafkago.Client{Addr: kafkago.TCP(brokers...), Transport: &kafkago.Transport{}}
	_, err := client.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: name, NumPartitions: 4, ReplicationFactor: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = client.DeleteTopics(context.Background(), &kafkago.DeleteTopicsRequest{Topics: []string{name}})
		client.Transport.(*kafkago.Transport).CloseIdleConnections()
	})
	return p
}

// publish sends one message for each ID, with the ID as its body.
func (p *pair) publish(ids ...string) {
	tr := &kafkago.Transport{}
	defer tr.CloseIdleConnections()
	w := &kafkago.Writer{Addr: kafkago.TCP(p.brokers...), Topic: p.topic, RequiredAcks: kafkago.RequireAll, BatchTimeout: time.Millisecond, BatchSize: 1000, Transport: tr, Balancer: &kafkago.RoundRobin{}}
	defer w.Close()
	ms := make([]kafkago.Message, len(ids))
	for i, id := range ids {
		ms[i] = kafkago.Message{Value: []byte(id), Headers: []kafkago.Header{{Key: "message-id", Value: []byte(id)}}}
	}
	require.NoError(p.t, w.WriteMessages(p.t.Context(), ms...))
	p.sent.Add(int64(len(ids)))
}

// awaitCommit waits until the group has committed a position above the beginning.
func (p *pair) awaitCommit(group string) {
	client := &kafkago.Client{Addr: kafkago.TCP(p.brokers...), Transport: &kafkago.Transport{}}
	defer client.Transport.(*kafkago.Transport).CloseIdleConnections()
	require.Eventually(p.t, func() bool {
		committed, err := client.OffsetFetch(p.t.Context(), &kafkago.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{p.topic: {0, 1, 2, 3}}})
		require.NoError(p.t, err)
		return slices.ContainsFunc(committed.Topics[p.topic], func(o kafkago.OffsetFetchPartition) bool { return o.CommittedOffset > 0 })
	}, time.Minute, 50*time.Millisecond)
}

func ids(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, "m"+strconv.Itoa(i))
	}
	return out
}

// group is a running consumer and the effects of its handler.
type group struct {
	*consumer.Consumer
	lost   atomic.Int64 // records that were made anew
	faults atomic.Int64 // calls that the store did not answer
	stop   func()

	mu      sync.Mutex
	effects map[string]int
}

func (p *pair) run(name string, handle func(ctx context.Context, m *consumer.Message) error) *group {
	p.t.Helper()
	g := &group{effects: map[string]int{}}
	client := redis.NewClient(&redis.Options{Addr: p.redis, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second})
	guard, err := dedup.New(p.app, redisstore.New(client, &redisstore.Options{Logger: quiet}), &dedup.Options{Lease: p.lease, FailOpen: p.failOpen, Logger: quiet, Observe: func(e dedup.Event) {
		if e.Cause == "record_lost" || e.Name == "record_lost" {
			g.lost.Add(int64(e.N))
		}
		if e.Name == "store" && e.Err != nil {
			g.faults.Add(1)
		}
	}})
	require.NoError(p.t, err)
	source, err := kafka.NewSource(kafka.Cluster{Brokers: p.brokers}, name, []string{p.topic}, &kafka.SourceOptions{SessionTimeout: 2 * time.Second, Logger: quiet})
	require.NoError(p.t, err)
	g.Consumer, err = consumer.New(source, guard, func(ctx context.Context, m *consumer.Message) error {
		if handle != nil {
			if err := handle(ctx, m); err != nil {
				return err
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.effects[m.ID]++
		return nil
	}, nil)
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Error(err)
		}
		client.Close()
	})
	p.t.Cleanup(g.stop)
	return g
}

func (g *group) done() int64 {
	s := g.Stats()
	return s.Done + s.Duplicates
}

// distinct is how many messages have had an effect.
func (g *group) distinct() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.effects)
}

// awaitDone waits until n messages were acknowledged.
func (g *group) awaitDone(t *testing.T, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return g.done() >= n }, time.Minute, 20*time.Millisecond, "%+v", g.Stats())
}

// once demands one effect for each of want distinct messages.
func (g *group) once(t *testing.T, want int) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Len(t, g.effects, want)
	for id, n := range g.effects {
		require.Equal(t, 1, n, id)
	}
}

func shared(t *testing.T) *pair { return newPair(t, testenv.Kafka(t), testenv.Redis(t)) }
