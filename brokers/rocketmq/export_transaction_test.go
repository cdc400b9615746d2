package rocketmq

import (
	"context"
	"database/sql"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/outbox"
)

// Half is a half message whose local transaction has not begun.
type Half struct {
	p *TransactionProducer
	h *half
}

// Prepare is the first half of Send.
func (p *TransactionProducer) Prepare(ctx context.Context, m outbox.Message) (*Half, error) {
	done, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	h, err := p.prepare(ctx, &m)
	return &Half{p, h}, err
}

// CarryOut is the second half.
func (h *Half) CarryOut(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return h.p.carryOut(ctx, h.h, fn)
}

// Try is CarryOut without the word to the broker, as of a process that dies before it; it reports whether it committed.
func (h *Half) Try(ctx context.Context, fn func(context.Context, *sql.Tx) error) (bool, error) {
	end, err := h.p.localTx(ctx, h.h, fn)
	return end == committed, err
}

// Commit tells the broker that the transaction has committed.
func (h *Half) Commit(ctx context.Context) { h.p.conclude(ctx, h.h, sayCommit) }

// Age makes the half message older by d: by the clock on the wall, or by the one that only runs.
func (h *Half) Age(d time.Duration, wall bool) {
	h.h.begun = h.h.begun.Add(-d)
	if wall {
		h.h.begun = h.h.begun.Round(0) // which leaves nothing but the wall's
	}
}

// Key is the name of the half message.
func (h *Half) Key() string { return h.h.key }

// Sweep is what Run does each minute.
func (p *TransactionProducer) Sweep(ctx context.Context) error { return p.sweep(ctx) }

// GivenUpAfter is how long the brokers ask.
func (p *TransactionProducer) GivenUpAfter() time.Duration { return p.givenUpAfter() }

// HorizonOf is how long a broker with these settings asks.
func HorizonOf(settings map[string]string) time.Duration { return horizonOf(settings) }

// Bury writes a tombstone for the half message; the class of its error.
func (h *Half) Bury(ctx context.Context) sqldialect.Class {
	return sqldialect.Classify(h.p.markers.dialect, h.p.markers.bury(ctx, h.h.key))
}
