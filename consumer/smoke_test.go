package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

type memSource struct {
	mu   sync.Mutex
	q    []consumer.Message
	lane string
	left int
	done context.CancelFunc
	dead int
	hold time.Duration
	wake chan struct{}
}

func (s *memSource) Plan(p consumer.Policy) (consumer.Plan, error) {
	p, err := p.Complete(consumer.Policy{MaxAttempts: 5, Backoff: []time.Duration{time.Second}})
	return consumer.Plan{Policy: p, Scope: "test", Window: time.Hour, Why: "test", Hold: s.hold}, err
}
func (s *memSource) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	for {
		s.mu.Lock()
		n := min(max, len(s.q))
		if n > 0 {
			ds := make([]consumer.Delivery, n)
			for i := range ds {
				m := s.q[i]
				ds[i] = consumer.Delivery{Message: &m, Lane: s.lane, Settler: &memSettler{s: s, m: m}}
			}
			s.q = s.q[n:]
			s.mu.Unlock()
			return ds, nil
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
func (s *memSource) Close(context.Context) error { return nil }

type memSettler struct {
	s *memSource
	m consumer.Message
}

func (m *memSettler) end() {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.left--; m.s.left == 0 {
		m.s.done()
	}
}
func (m *memSettler) Ack(context.Context) error { m.end(); return nil }
func (m *memSettler) back() {
	m.s.mu.Lock()
	m.s.q = append(m.s.q, m.m)
	m.s.mu.Unlock()
	select {
	case m.s.wake <- struct{}{}:
	default:
	}
}
func (m *memSettler) Retry(ctx context.Context, d time.Duration, cause error) error {
	time.AfterFunc(d, m.back)
	return nil
}
func (m *memSettler) GiveBack(context.Context) error { m.back(); return nil }
func (m *memSettler) DeadLetter(ctx context.Context, n int, cause error) error {
	m.s.mu.Lock()
	m.s.dead++
	m.s.mu.Unlock()
	return nil
}

func TestSmoke(t *testing.T) {
	for _, lane := range []string{"", "one"} {
		for _, hold := range []time.Duration{-1, 5 * time.Second} {
			t.Run(fmt.Sprint(lane, hold), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					s := &memSource{lane: lane, hold: hold, left: 1300, done: cancel, wake: make(chan struct{}, 1)}
					for i := range 1300 {
						s.q = append(s.q, consumer.Message{ID: fmt.Sprint(i % 1000), Body: []byte("x")})
					}
					g, err := dedup.New("app", memstore.New(), nil)
					require.NoError(t, err)
					var mu sync.Mutex
					runs := map[string]int{}
					c, err := consumer.New(s, g, func(ctx context.Context, m *consumer.Message) error {
						mu.Lock()
						defer mu.Unlock()
						runs[m.ID]++
						switch {
						case m.ID == "7":
							return consumer.Permanent(errors.New("no"))
						case m.ID == "9":
							panic("nine")
						case runs[m.ID] == 1 && len(m.ID) == 2:
							return errors.New("again")
						}
						return nil
					}, nil)
					require.NoError(t, err)
					require.NoError(t, c.Run(ctx))
					require.Len(t, runs, 1000)
					t.Logf("%+v", c.Stats())
					require.Equal(t, 2, s.dead)
					require.Equal(t, 5, runs["9"])
					require.Equal(t, 2, runs["55"])
					require.Equal(t, 1, runs["555"])
					require.EqualValues(t, 998, c.Stats().Done)
				})
			})
		}
	}
}
