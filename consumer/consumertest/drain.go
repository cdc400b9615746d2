package consumertest

import (
	"context"
	"testing"
	"time"

	"github.com/idemq/idemq/consumer"
)

// drainLimit is virtual time in a synctest bubble; elsewhere the test's own timeout comes first.
const drainLimit = 24 * time.Hour

// Drain runs c, which must consume from b, until every message is settled for good, then stops
// it and returns its counters. The test fails when Run ends early or with an error, or when
// something is still unsettled after 24 hours.
func (b *Broker) Drain(tb testing.TB, c *consumer.Consumer) consumer.Stats {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()

	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	for {
		open, changed := b.unsettled()
		if open == 0 {
			break
		}
		select {
		case <-changed:
		case err := <-ran:
			tb.Fatalf("consumertest: Drain: Run returned with %d messages unsettled: %v", open, err)
		case <-limit.C:
			cancel()
			tb.Fatalf("consumertest: Drain: %d messages are unsettled after %v; Run: %v", open, drainLimit, <-ran)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		tb.Fatalf("consumertest: Drain: Run: %v", err)
	}
	return c.Stats()
}

func (b *Broker) unsettled() (n int, changed <-chan struct{}) {
	b.q.mu.Lock()
	defer b.q.mu.Unlock()
	return b.q.open, b.q.changed
}
