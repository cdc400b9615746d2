package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// RocketMQ's client library logs per process.
func TestMain(m *testing.M) {
	rocketmq.SetLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

const (
	partitions = 4
	bodySize   = 512
)

// env is the real servers.
type env struct {
	rdb     *redis.Client
	brokers []broker
}

func (e env) of(name string) broker {
	for _, b := range e.brokers {
		if b.name == name {
			return b
		}
	}
	return broker{}
}

// broker is one of them, as the benchmarks need it.
type broker struct {
	name     string
	addr     string // of its server
	messages int    // of one run
	once     bool   // what was consumed is gone, so that each run needs a topic of its own
	shares   int    // of a topic that members of a group divide among them

	create  func(tb testing.TB) (topic string, drop func()) // of partitions, where it has any
	publish func(tb testing.TB) publisher
	source  func(tb testing.TB, topic string) consumer.Source // in a new group
	clients []client                                          // the first one is the usual one
}

type publisher interface {
	outbox.Publisher
	Close() error
}

// client is a loop around the broker's client library alone: from the beginning of topic, in a
// new group, each message is given to handle and acknowledged.
type client struct {
	name string
	run  func(tb testing.TB, topic string, handle func(id string, body []byte)) (stop func())
}

func newEnv(tb testing.TB) env {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(tb)})
	tb.Cleanup(func() { rdb.Close() })
	return env{rdb: rdb, brokers: []broker{newKafka(tb), newRabbitMQ(tb), newRocketMQ(tb)}}
}

// fill makes a topic of n messages whose IDs are those of distinct pieces of work.
func (b broker) fill(tb testing.TB, n, distinct int) (topic string, drop func()) {
	tb.Helper()
	topic, drop = b.create(tb)
	p := b.publish(tb)
	for at := 0; at < n; {
		ms := make([]outbox.Message, 0, 10_000)
		for ; at < n && len(ms) < cap(ms); at++ {
			ms = append(ms, newMessage(topic, at%distinct, time.Time{})) // copies are equal
		}
		send(tb, p, ms)
	}
	require.NoError(tb, p.Close())
	return topic, drop
}

// newMessage says in its body when it was made.
func newMessage(topic string, number int, made time.Time) outbox.Message {
	body := make([]byte, bodySize)
	binary.BigEndian.PutUint64(body, uint64(made.UnixNano()))
	return outbox.Message{ID: fmt.Sprintf("%s-%d", topic, number), Topic: topic, Body: body}
}

func age(body []byte) time.Duration {
	return time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(body))))
}

func send(tb testing.TB, p publisher, ms []outbox.Message) {
	errs := make([]error, len(ms))
	err := p.Publish(context.Background(), ms, errs)
	if err = errors.Join(append(errs, err)...); err != nil {
		tb.Errorf("publish: %v", err)
	}
}

var names atomic.Int64

func newName() string { return fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), names.Add(1)) }
