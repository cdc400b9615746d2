package integration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

const eventually = time.Minute

// run is one call of the handler.
type run struct {
	ID, Body         string
	Attempt, Redrive int
}

// script is a handler that ends each run as it is told, in turn.
type script struct {
	mu      sync.Mutex
	answers []error
	runs    []run
}

var errUnforeseen = errors.New("a run more than foreseen")

func (s *script) handle(_ context.Context, m *consumer.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, run{m.ID, string(m.Body), m.Attempt, m.Redrive})
	if n := len(s.runs); n <= len(s.answers) {
		return s.answers[n-1]
	}
	return consumer.Permanent(errUnforeseen)
}

func (s *script) all() []run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]run(nil), s.runs...)
}

func (h home) guard(t *testing.T) *dedup.Guard {
	client := redis.NewClient(&redis.Options{Addr: testenv.Redis(t)})
	t.Cleanup(func() { client.Close() })
	g, err := dedup.New(h.topic, redisstore.New(client, &redisstore.Options{Logger: quiet}), &dedup.Options{Lease: 2 * time.Second, Logger: quiet})
	require.NoError(t, err)
	return g
}

// consume runs a consumer of s until the test ends.
func (h home) consume(t *testing.T, s consumer.Source, handle consumer.Handler, p consumer.Policy) *consumer.Consumer {
	p.Backoff = []time.Duration{h.backoff}
	c, err := consumer.New(s, h.guard(t), handle, &consumer.Options{Policy: p})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (h home) newPublisher(t *testing.T) publisher {
	p, err := h.publisher()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func send(t *testing.T, p outbox.Publisher, m outbox.Message) {
	errs := make([]error, 1)
	require.NoError(t, p.Publish(t.Context(), []outbox.Message{m}, errs))
	require.NoError(t, errs[0])
}

// grave waits for a dead letter, leaves it where it is unless take is true, and returns it as it was read.
func (h home) grave(t *testing.T, take bool) *consumer.Message {
	graves, err := h.graves()
	require.NoError(t, err)
	_, err = graves.Plan(consumer.Policy{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	ds, err := graves.Receive(ctx, 1)
	require.NoError(t, err)
	require.True(t, ds[0].Identify(consumer.DefaultRules(), ds[0].Made))
	settle := ds[0].GiveBack
	if take {
		settle = ds[0].Ack
	}
	require.NoError(t, settle(ctx))
	require.NoError(t, graves.Close(ctx))
	return ds[0].Message
}

// TestMessageKeepsItsIDOnEveryWayThroughABroker follows one message of each Publisher: it is
// retried, dead-lettered, redriven, dead-lettered again, and copied back by a plain client.
func TestMessageKeepsItsIDOnEveryWayThroughABroker(t *testing.T) {
	t.Parallel()
	for name, of := range homes() {
		t.Run(name, func(t *testing.T) {
			h := newHome(t, of)
			p := h.newPublisher(t)
			id, body := "order 7/ü", `{"order":7}`
			s := &script{answers: []error{errors.New("busy"), consumer.Permanent(errors.New("no such account")), consumer.Permanent(errors.New("still none")), nil}}
			source, err := h.source()
			require.NoError(t, err)
			c := h.consume(t, source, s.handle, consumer.Policy{})
			await := func(what string, f func(consumer.Stats) bool) {
				t.Helper()
				require.Eventually(t, func() bool { return f(c.Stats()) }, eventually, 10*time.Millisecond, "%s: %+v, runs %+v", what, c.Stats(), s.all())
			}

			send(t, p, outbox.Message{ID: id, Topic: h.topic, Key: "customer 1", Headers: map[string]string{"tenant": "a"}, Body: []byte(body)})
			await("dead-lettered", func(s consumer.Stats) bool { return s.DeadLettered == 1 })
			dead := h.grave(t, false)
			require.Equal(t, id, dead.ID)
			require.Equal(t, "no such account", dead.DeadCause)
			h.secondCopy(t, id, []byte(body))
			await("a plain second copy is a duplicate", func(s consumer.Stats) bool { return s.Duplicates == 1 })

			graves, err := h.graves()
			require.NoError(t, err)
			n, err := consumer.Redrive(t.Context(), graves, p, func(m *consumer.Message) bool {
				return m.ID == id && m.DeadCause == dead.DeadCause // not what comes back meanwhile
			})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			await("redriven, and dead-lettered again", func(s consumer.Stats) bool { return s.DeadLettered == 2 })

			dead = h.grave(t, true)
			require.Equal(t, id, dead.ID)
			require.Equal(t, "still none", dead.DeadCause)
			require.Equal(t, "a", dead.Headers["tenant"])
			h.copyBack(t, dead)
			await("copied back, and done", func(s consumer.Stats) bool { return s.Done == 1 })
			h.copyBack(t, dead)
			h.secondCopy(t, id, []byte(body))
			await("further copies are duplicates", func(s consumer.Stats) bool { return s.Duplicates == 3 })
			require.Equal(t, []run{{id, body, 1, 0}, {id, body, 2, 0}, {id, body, 1, 1}, {id, body, 1, 2}}, s.all())
		})
	}
}

// hasty is a source that keeps no message in memory that another process has in hand.
type hasty struct {
	consumer.Source
	pause   time.Duration // in the place of what the consumer asks for
	bounces atomic.Int64
}

func (h *hasty) Plan(p consumer.Policy) (consumer.Plan, error) {
	plan, err := h.Source.Plan(p)
	plan.Hold = 0
	return plan, err
}

func (h *hasty) Receive(ctx context.Context, limit int) ([]consumer.Delivery, error) {
	ds, err := h.Source.Receive(ctx, limit)
	for i := range ds {
		ds[i].Settler = bouncer{ds[i].Settler, h}
	}
	return ds, err
}

type bouncer struct {
	consumer.Settler
	of *hasty
}

func (b bouncer) Retry(ctx context.Context, d time.Duration, cause error) error {
	if errors.Is(cause, dedup.ErrInProgress) {
		b.of.bounces.Add(1)
		d = b.of.pause
	}
	return b.Settler.Retry(ctx, d, cause)
}

// TestMessageInProgressElsewhereMayBounceForEver: what another process has in hand comes and goes
// more often than any limit of a broker or of the policy allows failures, and is then done, once. Kafka
// cannot postpone a message, so there it waits in memory.
func TestMessageInProgressElsewhereMayBounceForEver(t *testing.T) {
	t.Parallel()
	const bounces = 24 // RocketMQ's own limit is 16, RabbitMQ's 20 since 4.0
	brokers := homes()
	delete(brokers, "kafka")
	for name, of := range brokers {
		t.Run(name, func(t *testing.T) {
			h := newHome(t, of)
			s := &script{answers: []error{nil}}
			source, err := h.source()
			require.NoError(t, err)
			plan, err := source.Plan(consumer.Policy{})
			require.NoError(t, err)
			id, body := "held", []byte("body")
			elsewhere, err := h.guard(t).Claim(t.Context(), dedup.Work{Scope: plan.Scope, ID: id, Fingerprint: dedup.FingerprintOf(body), Retention: time.Hour})
			require.NoError(t, err)
			require.True(t, elsewhere.Held())

			quick := &hasty{Source: source, pause: h.backoff}
			c := h.consume(t, quick, s.handle, consumer.Policy{MaxAttempts: 2, MaxCrashes: 1})
			send(t, h.newPublisher(t), outbox.Message{ID: id, Topic: h.topic, Body: body})
			require.Eventually(t, func() bool { return quick.bounces.Load() >= bounces }, 2*eventually, 20*time.Millisecond, "%+v", c.Stats())
			require.Empty(t, s.all())
			require.NoError(t, elsewhere.Release(t.Context()))
			require.Eventually(t, func() bool { return c.Stats().Done == 1 }, eventually, 20*time.Millisecond, "%+v", c.Stats())
			require.Equal(t, []run{{id, string(body), 1, 0}}, s.all())
			require.Zero(t, c.Stats().DeadLettered)
			t.Logf("%s: %d bounces, then one run", h.broker, quick.bounces.Load())
		})
	}
}
