package bench

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

// subject consumes a topic with a handler that does next to nothing.
type subject struct {
	name string
	run  func(tb testing.TB, topic string, o observer) (stop func())
}

// observer is told of each message: as its handler gets it, and when there is nothing more to do
// about it. Duplicates have no handler.
type observer struct {
	handled func(body []byte)
	settled func()
}

// subjects are those that the throughput of b is measured with.
func (e env) subjects(b broker) (all []subject) {
	for _, c := range b.clients {
		all = append(all, subject{c.name, c.plain})
	}
	return append(all,
		subject{"naive SETNX loop", func(tb testing.TB, topic string, o observer) func() { return e.setNX(tb, b.clients[0], topic, o) }},
		subject{"Source alone", func(tb testing.TB, topic string, o observer) func() { return b.receive(tb, topic, o) }},
		e.idemq(b))
}

func (e env) idemq(b broker) subject {
	return subject{"idemq", func(tb testing.TB, topic string, o observer) func() { return e.consume(tb, b, topic, o) }}
}

func (c client) plain(tb testing.TB, topic string, o observer) func() {
	return c.run(tb, topic, func(_ string, body []byte) {
		o.handled(body)
		o.settled()
	})
}

// setNX is the usual loop: a key for each message, and whose key is there is passed over.
func (e env) setNX(tb testing.TB, c client, topic string, o observer) func() {
	prefix := newName()
	return c.run(tb, topic, func(id string, body []byte) {
		fresh, err := e.rdb.SetNX(context.Background(), prefix+id, 1, 25*time.Hour).Result()
		if err != nil {
			tb.Errorf("SETNX: %v", err)
		}
		if fresh {
			o.handled(body)
		}
		o.settled()
	})
}

// receive acknowledges what a Source brings, without a consumer around it.
func (b broker) receive(tb testing.TB, topic string, o observer) func() {
	s := b.source(tb, topic)
	return until(func(ctx context.Context) {
		for {
			ds, err := s.Receive(ctx, 512)
			if err != nil {
				over(tb, ctx, err)
				return
			}
			for i := range ds {
				o.handled(ds[i].Body)
				over(tb, ctx, ds[i].Ack(ctx))
				o.settled()
			}
		}
	}, func() { require.NoError(tb, s.Close(context.Background())) })
}

// consume is all of it: a claim and a verdict in Redis for every message.
func (e env) consume(tb testing.TB, b broker, topic string, o observer) func() {
	quiet := slog.New(slog.DiscardHandler)
	guard, err := dedup.New(newName(), redisstore.New(e.rdb, nil), &dedup.Options{Logger: quiet, Observe: func(ev dedup.Event) {
		if ev.Name == "settle" && ev.Cause != "give_back" {
			o.settled()
		}
	}})
	require.NoError(tb, err)
	options := &consumer.Options{Policy: consumer.Policy{Backoff: waits}} // no message fails
	c, err := consumer.New(b.source(tb, topic), guard, func(_ context.Context, m *consumer.Message) error { o.handled(m.Body); return nil }, options)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(tb, <-ended)
		st := c.Stats()
		require.Zero(tb, st.Retried+st.DeadLettered, "%+v", st)
	}
}

// time consumes n messages of topic and returns how long that took from the first one to the last.
func (s subject) time(tb testing.TB, topic string, n int) time.Duration {
	w := newStopwatch(n)
	stop := s.run(tb, topic, observer{handled: func([]byte) {}, settled: w.tick})
	defer stop()
	return w.wait(tb)
}

// stopwatch runs from the first tick to the n-th.
type stopwatch struct {
	n     int64
	seen  atomic.Int64
	begun atomic.Int64
	done  chan time.Duration
}

func newStopwatch(n int) *stopwatch {
	return &stopwatch{n: int64(n), done: make(chan time.Duration, 1)}
}

func (s *stopwatch) tick() {
	switch s.seen.Add(1) {
	case 1:
		s.begun.Store(time.Now().UnixNano())
	case s.n:
		s.done <- time.Duration(time.Now().UnixNano() - s.begun.Load())
	}
}

func (s *stopwatch) wait(tb testing.TB) time.Duration {
	select {
	case d := <-s.done:
		return d
	case <-time.After(5 * time.Minute):
		tb.Fatalf("only %d of %d messages came", s.seen.Load(), s.n)
		return 0
	}
}
