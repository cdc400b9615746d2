package tierstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/tierstore"
)

// inMemory is a tier of memory and an embedded Redis whose clock follows the time.
func inMemory(tb testing.TB) deduptest.Config {
	mini := miniredis.RunT(tb)
	client := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	tb.Cleanup(func() { _ = client.Close() })
	d := newMemory()
	return deduptest.Config{
		Open: func(testing.TB) dedup.Store { return tierstore.New(d, redisstore.New(client, nil)) },
		Advance: func(_ testing.TB, t time.Duration) {
			<-time.After(t)
			mini.FastForward(t)
		},
		Lease: 50 * time.Millisecond,
	}
}

func TestStoreOnMemoryAndMiniredis(t *testing.T) { deduptest.TestStore(t, inMemory(t)) }

func TestModelOnMemoryAndMiniredis(t *testing.T) {
	t.Parallel()
	c := inMemory(t)
	c.Lease = 20 * time.Millisecond
	deduptest.CheckModel(t, c)
}

func TestDuplicateIsAnsweredWithoutTheDecider(t *testing.T) {
	tr := newTier(t)
	q := ask(newKey())
	q.Redrive = 3
	h := acquire(t, tr, q)
	finish(t, tr, h, dedup.Done)
	require.Zero(t, tr.asked(func() {
		v := claim(t, tr, ask(h.Key))
		require.Greater(t, v.Left, 59*time.Minute)
		require.LessOrEqual(t, v.Left, time.Hour)
		v.Left = 0
		require.Equal(t, dedup.Verdict{State: dedup.Done, Epoch: h.Epoch, Attempt: 1, Redrive: 3, Result: []byte("result")}, v)
	}))
	require.Equal(t, tierstore.Stats{Answered: 1, Asked: 1, Kept: 1}, tr.Stats())
}
