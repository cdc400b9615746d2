package integration

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/redis/go-redis/v9"

	"github.com/idemq/idemq/brokers/kafka"
)

func TestTwoGroupsOnOneTopicBothRun(t *testing.T) {
	p := shared(t)
	p.publish(slices.Concat(ids(0, 100), ids(0, 100))...)
	a, b := p.run(p.topic+"-billing", nil), p.run(p.topic+"-shipping", nil)
	a.awaitDone(t, 200)
	b.awaitDone(t, 200)
	a.once(t, 100)
	b.once(t, 100)
}

func TestTenThousandCopiesOverAllPartitionsAndTwoMembersRunOnce(t *testing.T) {
	p := shared(t)
	p.publish(slices.Repeat([]string{"same"}, 10_000)...)
	slow := func(ctx context.Context, _ *consumer.Message) error {
		select {
		case <-time.After(3 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a, b := p.run(p.topic, slow), p.run(p.topic, slow)
	require.Eventually(t, func() bool { return a.done()+b.done() >= 10_000 }, time.Minute, 20*time.Millisecond)
	require.Equal(t, 1, a.effects["same"]+b.effects["same"])
}

// heldUpAfter returns a handler whose runs after the first n wait until goOn is called. Running is closed when one waits.
func heldUpAfter(n int64) (running <-chan struct{}, goOn func(), handle consumer.Handler) {
	waits, over := make(chan struct{}), make(chan struct{})
	var begun atomic.Int64
	return waits, func() { close(over) }, func(ctx context.Context, _ *consumer.Message) error {
		switch k := begun.Add(1); {
		case k <= n:
			return nil
		case k == n+1:
			close(waits)
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestRedisRestartedEmptyInMidRunLosesNothing(t *testing.T) {
	r := testenv.StartRedis(t)
	p := newPair(t, testenv.Kafka(t), r.Addr)
	p.publish(ids(0, 2_000)...)
	p.lease = 30 * time.Second // however long it takes to come back
	running, goOn, handle := heldUpAfter(500)
	g := p.run(p.topic, handle)
	<-running
	r.Restart()
	goOn()
	g.awaitDone(t, 2_000)
	g.once(t, 2_000) // nothing was delivered again, so the lost records cost no second effect
	require.Positive(t, g.lost.Load(), "what ran while Redis came back empty was written anew, and counted")
}

func TestFullRedisIsWaitedForAndNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	admin := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer admin.Close()
	p := newPair(t, testenv.Kafka(t), r.Addr)
	p.lease = 30 * time.Second // however long it is full
	p.publish(ids(0, 1_000)...)
	running, goOn, handle := heldUpAfter(300)
	g := p.run(p.topic, handle)
	<-running
	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", "1").Err())
	goOn()
	require.Eventually(t, func() bool { return g.distinct() > 300 && g.faults.Load() >= 5 }, time.Minute, time.Millisecond, "%+v", g.Stats())
	require.LessOrEqual(t, g.done(), int64(300), "a message was acknowledged whose verdict Redis had no room for")
	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", "0").Err())
	g.awaitDone(t, 1_000)
	g.once(t, 1_000)
}

func TestFailOpenGoesOnWhileRedisIsGone(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	p := newPair(t, testenv.Kafka(t), r.Addr)
	p.failOpen = true
	p.publish(ids(0, 2_000)...)
	begun := make(chan struct{}, 10_000)
	g := p.run(p.topic, func(context.Context, *consumer.Message) error { begun <- struct{}{}; return nil })
	for range 200 {
		<-begun
	}
	r.Kill()
	p.publish(ids(2_000, 2_500)...)
	g.awaitDone(t, 2_500)
	r.Start()
	p.publish(ids(2_500, 3_000)...)
	g.awaitDone(t, 3_000)
	g.stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Len(t, g.effects, 3_000, "nothing is lost; what ran unprotected may have run twice")
}

func TestDeadLettersAreRedrivenOnceEach(t *testing.T) {
	t.Parallel()
	p := shared(t)
	p.publish(ids(0, 10)...)
	var mend atomic.Bool
	g := p.run(p.topic, func(_ context.Context, m *consumer.Message) error {
		if !mend.Load() && m.ID < "m5" {
			return consumer.Permanent(errors.New("no such account"))
		}
		return nil
	})
	require.Eventually(t, func() bool { s := g.Stats(); return s.Done == 5 && s.DeadLettered == 5 }, time.Minute, 20*time.Millisecond)
	mend.Store(true)
	c := kafka.Cluster{Brokers: p.brokers}
	publisher, err := kafka.NewPublisher(c, nil)
	require.NoError(t, err)
	defer publisher.Close()
	redrive := func(match func(m *consumer.Message) bool) int {
		graves, err := kafka.NewSource(c, p.topic+"-redrive", []string{p.topic + ".dlt"}, &kafka.SourceOptions{SessionTimeout: 2 * time.Second, Logger: quiet})
		require.NoError(t, err)
		n, err := consumer.Redrive(t.Context(), graves, publisher, match)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 1, redrive(func(m *consumer.Message) bool {
		require.Equal(t, "no such account", m.DeadCause)
		return m.ID == "m3"
	}))
	g.awaitDone(t, 6)
	require.GreaterOrEqual(t, redrive(nil), 4, "what was not wanted before is still there")
	require.Eventually(t, func() bool { return g.distinct() == 10 }, time.Minute, 20*time.Millisecond)
	g.stop()
	g.once(t, 10)
}

func TestLostAnswersOfRedisChangeNothing(t *testing.T) {
	proxy := testenv.NewProxy(t, testenv.Redis(t))
	p := newPair(t, testenv.Kafka(t), proxy.Addr)
	p.publish(ids(0, 3_000)...)
	begun := make(chan struct{}, 10_000)
	g := p.run(p.topic, func(context.Context, *consumer.Message) error { begun <- struct{}{}; return nil })
	for range 3 {
		for range 300 {
			<-begun
		}
		proxy.DropAnswers()
		before := g.Stats()
		require.Eventually(t, func() bool { return !g.Stats().Receiving }, 20*time.Second, time.Millisecond, "the outage is noticed; before: %+v", before)
		proxy.PassAnswers()
	}
	g.awaitDone(t, 3_000)
	g.once(t, 3_000)
	require.Empty(t, g.Stats().DeadLettered)
}

func TestBrokerRestartedInMidRunLosesNothing(t *testing.T) {
	t.Parallel()
	k := testenv.StartKafka(t)
	p := newPair(t, []string{k.Addr}, testenv.Redis(t))
	p.publish(ids(0, 1_000)...)
	running, goOn, handle := heldUpAfter(200) // and most are fetched by then, and not begun
	g := p.run(p.topic, handle)
	<-running
	p.awaitCommit(p.topic)
	k.Restart()
	goOn()
	p.publish(slices.Concat(ids(0, 200), ids(1_000, 1_500))...) // of those in between the broker has one copy
	require.Eventually(t, func() bool { return g.distinct() == 1_500 }, 2*time.Minute, 50*time.Millisecond)
	g.once(t, 1_500)
}

func TestRedisThatMayEvictEndsTheStart(t *testing.T) {
	r := testenv.StartRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	client := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer client.Close()
	guard, err := dedup.New("app", redisstore.New(client, nil), &dedup.Options{Logger: quiet})
	require.NoError(t, err)
	source, err := kafka.NewSource(kafka.Cluster{Brokers: []string{"127.0.0.1:1"}}, "g", []string{"t"}, &kafka.SourceOptions{Logger: quiet})
	require.NoError(t, err)
	c, err := consumer.New(source, guard, func(context.Context, *consumer.Message) error { return nil }, nil)
	require.NoError(t, err)
	err = c.Run(t.Context())
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	require.ErrorContains(t, err, "maxmemory-policy")
}
