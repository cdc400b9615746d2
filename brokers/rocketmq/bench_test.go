package rocketmq_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	rc "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
)

// benchTotal is how many messages of 512 B lie in 4 queues; a benchmark of more begins again in a new group.
const benchTotal = 50_000

func benchTopic(b *testing.B) world {
	b.Helper()
	w := newWorld(b, 4)
	p := newClientProducer(b, w)
	body := bytes.Repeat([]byte("x"), 512)
	for i := 0; i < benchTotal; i += 500 {
		batch := make([]*primitive.Message, 500)
		for j := range batch {
			batch[j] = primitive.NewMessage(w.topic, body)
			batch[j].WithProperty("message-id", w.topic+strconv.Itoa(i+j))
		}
		p.send(b, batch...)
	}
	return w
}

// counted runs subject, which consumes the topic of w in a new group and calls tick for each
// message, from its first message to the last of b.N, and reports messages per second.
func counted(b *testing.B, subject func(w world, tick func(), done <-chan struct{})) {
	w := benchTopic(b)
	b.ResetTimer()
	b.StopTimer()
	var spent time.Duration
	for group, left := 0, b.N; left > 0; group++ {
		n := int64(min(left, benchTotal-1))
		var seen, begun atomic.Int64
		done := make(chan struct{})
		of := w
		of.group += strconv.Itoa(group)
		subject(of, func() {
			switch seen.Add(1) {
			case 1:
				begun.Store(time.Now().UnixNano())
				b.StartTimer()
			case n + 1:
				b.StopTimer()
				spent += time.Duration(time.Now().UnixNano() - begun.Load())
				close(done)
			}
		}, done)
		left -= int(n)
	}
	b.ReportMetric(float64(b.N)/spent.Seconds(), "msg/s")
}

// BenchmarkSource_Receive is what Receive and Ack cost a message, positions committed each second.
func BenchmarkSource_Receive(b *testing.B) {
	b.ReportAllocs()
	counted(b, func(w world, tick func(), done <-chan struct{}) {
		s := w.source(b)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		go func() { <-done; cancel() }()
		for {
			ds, err := s.Receive(ctx, 256)
			if err != nil {
				break
			}
			for _, d := range ds {
				require.NoError(b, d.Ack(ctx))
				tick()
			}
		}
		require.NoError(b, s.Close(context.WithoutCancel(ctx)))
	})
}

// BenchmarkConsumer is the whole of it: a handler that does nothing, and Redis.
func BenchmarkConsumer(b *testing.B) {
	rdb := benchRedis(b)
	counted(b, func(w world, tick func(), done <-chan struct{}) {
		store := redisstore.New(rdb, nil)
		quiet := slog.New(slog.DiscardHandler)
		guard, err := dedup.New("bench", store, &dedup.Options{Logger: quiet})
		require.NoError(b, err)
		s := w.source(b, func(o *rocketmq.SourceOptions) { o.MaxInFlight = 1024 })
		c, err := consumer.New(s, guard, func(context.Context, *consumer.Message) error { tick(); return nil }, nil)
		require.NoError(b, err)
		ctx, cancel := context.WithCancel(b.Context())
		go func() { <-done; cancel() }()
		require.NoError(b, c.Run(ctx))
	})
}

// BenchmarkClient_Push is the client library's own push consumer, without dedup.
func BenchmarkClient_Push(b *testing.B) {
	counted(b, func(w world, tick func(), done <-chan struct{}) {
		push(b, w, done, func(context.Context, *primitive.MessageExt) { tick() })
	})
}

// BenchmarkClient_PushWithSETNX is the usual loop: SETNX before the handler.
func BenchmarkClient_PushWithSETNX(b *testing.B) {
	rdb := benchRedis(b)
	counted(b, func(w world, tick func(), done <-chan struct{}) {
		push(b, w, done, func(ctx context.Context, m *primitive.MessageExt) {
			fresh, err := rdb.SetNX(ctx, w.group+m.GetProperty("message-id"), 1, time.Hour).Result()
			select {
			case <-done: // what the client still has in memory
				return
			default:
			}
			if err != nil || !fresh {
				b.Errorf("SETNX: %v %v", fresh, err)
			}
			tick()
		})
	})
}

func push(b *testing.B, w world, done <-chan struct{}, f func(context.Context, *primitive.MessageExt)) {
	b.Helper()
	c, err := rc.NewPushConsumer(rc.WithGroupName(w.group), rc.WithInstance(w.group), rc.WithConsumeFromWhere(rc.ConsumeFromFirstOffset),
		rc.WithNsResolver(primitive.NewPassthroughResolver(w.cluster.NameServers)))
	require.NoError(b, err)
	require.NoError(b, c.Subscribe(w.topic, rc.MessageSelector{}, func(ctx context.Context, ms ...*primitive.MessageExt) (rc.ConsumeResult, error) {
		for _, m := range ms {
			f(ctx, m)
		}
		return rc.ConsumeSuccess, nil
	}))
	require.NoError(b, c.Start())
	<-done
	require.NoError(b, c.Shutdown())
}

func benchRedis(b *testing.B) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(b)})
	b.Cleanup(func() { require.NoError(b, rdb.Close()) })
	return rdb
}
