package tierstore_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/tierstore"
)

// message is a key that is forgotten, and sent again, now and then.
type message struct {
	key        dedup.Key
	life       atomic.Int64         // ends when SQL forgets what was done in it
	effects    [10_000]atomic.Int64 // by life
	forgetting atomic.Int64         // calls of Forget that have not returned
}

// living counts the lives of messages, in one step with what SQL forgets and grants.
type living struct {
	tierstore.Decider
	mu       sync.RWMutex
	messages []*message
}

func (l *living) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.Decider.Claim(ctx, in, out)
}

func (l *living) Forget(ctx context.Context, k dedup.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, _ := l.Decider.Inspect(ctx, k)
	err := l.Decider.Forget(ctx, k)
	for _, m := range l.messages {
		if m.key == k && err == nil && r.State == dedup.Done {
			m.life.Add(1)
		}
	}
	return err
}

// lossy is a front that loses calls and replies.
type lossy struct{ tierstore.Front }

func lost() bool { return rand.IntN(20) == 0 }

func (l lossy) Lookup(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []tierstore.Token) error {
	if lost() {
		return errDown
	}
	if err := l.Front.Lookup(ctx, in, out, tokens); err != nil || !lost() {
		return err
	}
	return errDown
}

func (l lossy) Remember(ctx context.Context, in []dedup.FinishRequest, tokens []tierstore.Token) (int, error) {
	if lost() {
		return 0, errDown
	}
	if kept, err := l.Front.Remember(ctx, in, tokens); err != nil || !lost() {
		return kept, err
	}
	return 0, errDown
}

// Several processes, an operator who forgets what is done, and a Redis that loses calls, replies and all
// it has: in each life the effect happens once, and nothing is answered as done in which it has not.
func TestEachLifeHasOneEffectWhateverTheFrontLoses(t *testing.T) {
	tr := newTier(t)
	l := &living{Decider: tr.decider}
	for range 4 {
		l.messages = append(l.messages, &message{key: newKey()})
	}
	var workers sync.WaitGroup
	var answered, kept, refused atomic.Uint64
	for range 8 {
		workers.Go(func() {
			s := tierstore.NewWithOptions(l, lossy{tr.redis}, &tierstore.Options{Timeout: 10 * time.Second, Pause: 1, Logger: slog.New(slog.DiscardHandler)})
			for range 400 {
				m := l.messages[rand.IntN(len(l.messages))]
				switch n := rand.IntN(200); {
				case n == 0:
					tr.mini.FlushAll()
				case n < 20:
					m.forget(t, s)
				default:
					deliver(t, s, m)
				}
			}
			n := s.Stats()
			answered.Add(n.Answered)
			kept.Add(n.Kept)
			refused.Add(n.Refused)
		})
	}
	workers.Wait()
	lives := int64(0)
	for _, m := range l.messages {
		for life := range m.life.Load() {
			require.Equal(t, int64(1), m.effects[life].Load(), "effects of life %d", life)
			lives++
		}
	}
	require.NotZero(t, lives)
	require.NotZero(t, answered.Load())
	require.NotZero(t, kept.Load())
	t.Logf("%d lives; answered by the front %d, copies kept %d and refused %d", lives, answered.Load(), kept.Load(), refused.Load())
}

func (m *message) forget(t *testing.T, s *tierstore.Store) {
	m.forgetting.Add(1)
	defer m.forgetting.Add(-1)
	if err := s.Forget(context.WithoutCancel(t.Context()), m.key); !errors.Is(err, dedup.ErrInProgress) {
		assert.NoError(t, err)
	}
}

// deliver is one delivery of m: its handler fails now and then, before the effect.
func deliver(t *testing.T, s *tierstore.Store, m *message) {
	ctx := context.WithoutCancel(t.Context())
	life := m.life.Load()
	between := m.forgetting.Load() > 0 // its halves: the copy may still answer
	q, out := ask(m.key), make([]dedup.Verdict, 1)
	if !assert.NoError(t, s.Claim(ctx, []dedup.ClaimRequest{q}, out)) {
		return
	}
	switch out[0].State {
	case dedup.Done:
		assert.True(t, between || m.effects[life].Load() > 0, "answered as done in life %d, in which it is not", life)
		return
	case dedup.Acquired:
	default:
		assert.Equal(t, dedup.InProgress, out[0].State)
		return
	}
	h := dedup.Held{ClaimRequest: q, Epoch: out[0].Epoch, Attempt: out[0].Attempt}
	f := dedup.FinishRequest{Held: h, State: dedup.Done}
	effect := func(*sql.Tx) error { m.effects[m.life.Load()].Add(1); return nil }
	switch rand.IntN(3) {
	case 0:
		f.State = dedup.Retryable
		assert.NoError(t, s.Finish(ctx, []dedup.FinishRequest{f}, make([]error, 1)))
	case 1:
		assert.NoError(t, effect(nil))
		assert.NoError(t, s.Finish(ctx, []dedup.FinishRequest{f}, make([]error, 1)))
	default:
		assert.NoError(t, s.InTx(ctx, f, effect))
	}
}
