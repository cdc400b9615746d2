package rabbitmq_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// benchPrefetch is what every subject may have unsettled.
const benchPrefetch = 500

// fillQueue puts n messages of 512 B into a new quorum queue.
func fillQueue(b testing.TB, n int) world {
	b.Helper()
	w := newWorld(b)
	p := w.publisher(b, &rabbitmq.PublisherOptions{Timeout: 5 * time.Minute})
	body := bytes.Repeat([]byte("x"), 512)
	for from := 0; from < n; from += 10_000 {
		ms := make([]outbox.Message, min(10_000, n-from))
		for i := range ms {
			ms[i] = outbox.Message{ID: w.queue + strconv.Itoa(from+i), Topic: w.queue, Body: body}
		}
		errs := make([]error, len(ms))
		require.NoError(b, p.Publish(b.Context(), ms, errs))
		for _, err := range errs {
			require.NoError(b, err)
		}
	}
	return w
}

// BenchmarkConsume is messages per second from a quorum queue with a handler that does nothing and an ack per message.
func BenchmarkConsume(b *testing.B) {
	for _, s := range []struct {
		name string
		run  func(b *testing.B, w world)
	}{
		{"client", func(b *testing.B, w world) { consumePlain(b, w, func(string) {}) }},
		{"naive SETNX", func(b *testing.B, w world) {
			rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(b)})
			defer rdb.Close()
			consumePlain(b, w, func(id string) {
				if _, err := rdb.SetNX(b.Context(), id, 1, time.Minute).Result(); err != nil {
					b.Error(err)
				}
			})
		}},
		{"Source", consumeSource},
		{"idemq", consumeGuarded},
	} {
		b.Run(s.name, func(b *testing.B) {
			w := fillQueue(b, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			s.run(b, w)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func consumePlain(b *testing.B, w world, handle func(id string)) {
	ch := w.channel(b)
	require.NoError(b, ch.Qos(benchPrefetch, 0, false))
	in, err := ch.Consume(w.queue, "", false, false, false, false, nil)
	require.NoError(b, err)
	for range b.N {
		d := <-in
		handle(d.MessageId)
		if err := d.Ack(false); err != nil {
			b.Fatal(err)
		}
	}
}

func consumeSource(b *testing.B, w world) {
	s := w.source(b, func(o *rabbitmq.SourceOptions) { o.Prefetch = benchPrefetch })
	for n := b.N; n > 0; {
		ds, err := s.Receive(b.Context(), min(n, 256))
		if err != nil {
			b.Fatal(err)
		}
		ack(b, ds...)
		n -= len(ds)
	}
}

func consumeGuarded(b *testing.B, w world) {
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(b)})
	defer rdb.Close()
	store := redisstore.New(rdb, &redisstore.Options{Prefix: w.queue})
	j := w.work(b, store, consumer.Policy{Backoff: delays[:1]}, nil, func(o *rabbitmq.SourceOptions) { o.Prefetch = benchPrefetch })
	for j.Stats().Done < int64(b.N) {
		<-time.After(time.Millisecond)
	}
	j.stop()
}

// A hundred thousand messages that wait do not enter the process.
func TestWaitingMessagesStayOutOfTheProcess(t *testing.T) {
	const waiting = 100_000
	w := fillQueue(t, waiting)
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Logger = slog.New(slog.DiscardHandler) })
	ds := receive(t, s, 32)
	nothing(t, s, 200*time.Millisecond)
	grown := heap() - before
	t.Logf("%d messages of 512 B wait; the heap has grown by %d KiB", waiting, grown>>10)
	require.Less(t, grown, 4<<20)
	runtime.KeepAlive(ds)
}
