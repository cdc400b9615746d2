package memstore_test

import (
	"testing"
	"time"

	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/stretchr/testify/require"
)

// forkable is a Store with a clock of its own that stands still but for Advance.
type forkable struct {
	*memstore.Store
	clock *time.Time
}

func newForkable() forkable {
	at := time.Now()
	s := memstore.New()
	s.SetNow(func() time.Time { return at })
	return forkable{s, &at}
}

func (f forkable) Advance(d time.Duration) { *f.clock = f.clock.Add(d) }

func (f forkable) Fork() deduptest.Forkable {
	at := *f.clock
	return forkable{f.Store.Fork(func() time.Time { return at }), &at}
}

func TestEveryOrderOfCallsOnOneKeyIsAnsweredByTheRules(t *testing.T) {
	for situation, n := range explore(t, 1, 9).Situations {
		t.Logf("%8d times: %s", n, situation)
		require.NotZero(t, n, situation)
	}
}

func TestEveryOrderOfCallsOnTwoKeysIsAnsweredByTheRules(t *testing.T) {
	explore(t, 2, 8)
}

func explore(t *testing.T, keys, steps int) deduptest.Explored {
	begun := time.Now()
	x := deduptest.Explore(t, newForkable(), keys, steps)
	t.Logf("%d keys, 3 owners each, %d steps: %d states, %d transitions in %v",
		keys, steps, x.States, x.Transitions, time.Since(begun).Round(time.Millisecond))
	require.Greater(t, x.States, 10_000)
	return x
}
