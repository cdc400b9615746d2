package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errBoom = errors.New("boom")
	quiet   = slog.New(slog.DiscardHandler)
)

func newGuard(tb testing.TB, s dedup.Store) *dedup.Guard {
	tb.Helper()
	g, err := dedup.New("app", s, &dedup.Options{Logger: quiet})
	require.NoError(tb, err)
	return g
}

func newConsumer(tb testing.TB, s consumer.Source, g *dedup.Guard, h consumer.Handler, o *consumer.Options) *consumer.Consumer {
	tb.Helper()
	c, err := consumer.New(s, g, h, o)
	require.NoError(tb, err)
	return c
}

// kafkaLike is a broker that cannot postpone, so the consumer waits in memory.
func kafkaLike() *consumertest.Broker {
	b := consumertest.NewBroker()
	b.Hold = -1
	return b
}

func message(id, lane string) consumer.Message {
	return consumer.Message{ID: id, Key: lane, Body: []byte("body of " + id)}
}

func messages(n int, lane string) (ms []consumer.Message) {
	for i := range n {
		ms = append(ms, message(fmt.Sprintf("m%d", i), lane))
	}
	return ms
}

// work is how a consumer of a Broker names a message's work.
func work(m consumer.Message) dedup.Work {
	return dedup.Work{Scope: "test", ID: m.ID, Fingerprint: dedup.FingerprintOf(m.Body), Retention: 24 * time.Hour}
}

// recorder is a handler that takes note of what ran, in order.
type recorder struct {
	mu   sync.Mutex
	ran  []string
	live atomic.Int64
	most atomic.Int64
	do   func(ctx context.Context, m *consumer.Message) error
}

func (r *recorder) handle(ctx context.Context, m *consumer.Message) error {
	r.mu.Lock()
	r.ran = append(r.ran, m.ID)
	r.mu.Unlock()
	r.most.Store(max(r.most.Load(), r.live.Add(1)))
	defer r.live.Add(-1)
	if r.do != nil {
		return r.do(ctx, m)
	}
	return nil
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ran)
}

func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ran = nil
}

func (r *recorder) times(id string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.ran {
		if x == id {
			n++
		}
	}
	return n
}

// counter counts events by name and cause.
type counter struct {
	mu sync.Mutex
	n  map[string]map[string]int
}

func (c *counter) observe(e dedup.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]map[string]int)
	}
	if c.n[e.Name] == nil {
		c.n[e.Name] = make(map[string]int)
	}
	c.n[e.Name][e.Cause] += e.N
}

func (c *counter) causes(name string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n[name])
}

// crash leaves ms as an owner leaves them that vanished n times: alone, if it was.
func crash(tb testing.TB, g *dedup.Guard, n int, alone bool, ms ...consumer.Message) {
	tb.Helper()
	for range n {
		works, claims := make([]dedup.Work, len(ms)), make([]*dedup.Claim, len(ms))
		for i, m := range ms {
			works[i] = work(m)
		}
		require.NoError(tb, g.ClaimBatch(tb.Context(), works, claims))
		for _, c := range claims {
			require.Equal(tb, dedup.Acquired, c.State)
			if alone {
				require.NoError(tb, c.Alone(tb.Context()))
			}
			c.Abandon()
		}
		time.Sleep(g.Options().Lease) // virtual
	}
}

// start runs c until stop is called, which returns Run's error.
func start(tb testing.TB, c *consumer.Consumer) (stop func() error) {
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() error { cancel(); return <-ended }
}

func sums(s consumer.Stats) int64 {
	return s.Done + s.Duplicates + s.Retried + s.DeadLettered + s.GivenBack + s.Running + s.Waiting
}

// faults is a Store whose calls fail as long as down says so.
func faults(down func(method string) bool) *deduptest.Faulty {
	return &deduptest.Faulty{Store: memstore.New(), Before: func(_ context.Context, method string) error {
		if down(method) {
			return errBoom
		}
		return nil
	}}
}
