package outbox_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// TestPartialOutageCostsNoAttempt: one topic takes nothing, while the others do; a message that is never taken is parked beside it.
func TestPartialOutageCostsNoAttempt(t *testing.T) {
	b := newBase(t, outbox.SQLite)
	var mended atomic.Bool
	var asked atomic.Int64
	got := &arrived{}
	run(t, b.Outbox, publisher(func(ms []outbox.Message, errs []error) error {
		for i, m := range ms {
			switch {
			case m.Topic == "down" && !mended.Load():
				asked.Add(1)
				errs[i] = fmt.Errorf("broker: publish %q: %w", m.ID, outbox.Unavailable(errors.New("not enough replicas")))
			case m.Key == "bad":
				errs[i] = outbox.Unavailable(outbox.Permanent(errors.New("never")))
			default:
				_ = got.Publish(t.Context(), ms[i:i+1], errs[i:i+1])
			}
		}
		return nil
	}), outbox.RelayOptions{MaxAttempts: 2, Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond})
	b.write(t, outbox.Message{ID: "bad", Topic: "up", Key: "bad"})
	for n := range 12 {
		b.write(t, outbox.Message{ID: fmt.Sprint("down-", n), Topic: "down", Key: fmt.Sprint("k", n%4)}, outbox.Message{ID: fmt.Sprint("up-", n), Topic: "up", Key: fmt.Sprint("l", n%4)})
	}
	b.awaitStats(t, 12, 1)
	before := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() > before+20 }, eventually, time.Millisecond, "it is tried again")
	b.awaitStats(t, 12, 1)
	mended.Store(true)
	b.awaitStats(t, 0, 1)
	var attempts int
	require.NoError(t, b.db.QueryRow("SELECT sum(attempts) FROM "+b.table+" WHERE id <> 'bad'").Scan(&attempts))
	require.Zero(t, attempts)
	next := make(map[byte]int)
	for _, id := range got.all() {
		var n int
		if _, err := fmt.Sscanf(id, "down-%d", &n); err == nil {
			require.Equal(t, next[byte(n%4)], n/4, "the order of a key: %s", id)
			next[byte(n%4)]++
		}
	}
}
