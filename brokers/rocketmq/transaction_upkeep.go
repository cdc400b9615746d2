package rocketmq

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/idemq/idemq/outbox"
)

const (
	confirmPause = 20 * time.Millisecond // in which more come; a crash loses no more than these notes
	confirmMost  = 1000                  // in one statement
	confirmRoom  = 100_000               // that wait for a database that is away
	sweepEvery   = time.Minute
)

// confirm takes note that the message of a marker is visible.
func (p *TransactionProducer) confirm(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.confirmed) < confirmRoom { // others stay as they are, and may be sent again
		p.confirmed = append(p.confirmed, key)
	}
	select {
	case p.toConfirm <- struct{}{}:
	default:
	}
}

// confirms writes these notes, many at once, until ctx ends.
func (p *TransactionProducer) confirms(ctx context.Context) {
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-p.toConfirm:
		}
		sleep(ctx, confirmPause)
		if p.confirmAll(ctx) {
			n = 0
			continue
		}
		n++
		sleep(ctx, backoff(n))
		select { // what could not be written is still there
		case p.toConfirm <- struct{}{}:
		default:
		}
	}
}

// confirmAll reports whether nothing is left.
func (p *TransactionProducer) confirmAll(ctx context.Context) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		keys := slices.Clone(p.confirmed[:min(len(p.confirmed), confirmMost)])
		p.mu.Unlock()
		if len(keys) == 0 {
			return true
		}
		slices.Sort(keys) // so that all lock in one order
		if err := p.markers.confirm(ctx, keys); err != nil {
			if ctx.Err() == nil && p.quiet.allow("confirm") {
				p.log.Warn("rocketmq: markers of visible messages could not be confirmed; trying again", "error", err)
			}
			return false
		}
		p.mu.Lock()
		p.confirmed = slices.Delete(p.confirmed, 0, len(keys))
		p.mu.Unlock()
	}
	return false
}

// sweeps deletes what is old, and tells of what brokers have given up, until ctx ends.
func (p *TransactionProducer) sweeps(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		if err := p.sweep(ctx); err != nil && ctx.Err() == nil && p.quiet.allow("sweep") {
			p.log.Warn("rocketmq: the table of markers could not be swept; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (p *TransactionProducer) sweep(ctx context.Context) error {
	for n := int64(sweepRows); n >= sweepRows; {
		var err error
		if n, err = p.markers.sweep(ctx, p.opt.Retention); err != nil {
			return err
		}
	}
	n, err := p.markers.waiting(ctx, p.givenUpAfter())
	if n > 0 {
		p.log.Error("rocketmq: committed messages were confirmed by no broker for as long as brokers ask; call Resend", "messages", n, "table", p.markers.table.String())
	}
	return err
}

// givenUpAfter is the age from which on no broker asks for a marker any more.
func (p *TransactionProducer) givenUpAfter() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.horizon
}

// Unconfirmed lists messages whose transaction is committed and which no broker has confirmed for
// as long as brokers ask: because no producer of the group answered in all that time, most likely. Some may
// be visible all the same. The oldest come first, at most limit.
func (p *TransactionProducer) Unconfirmed(ctx context.Context, limit int) ([]outbox.Message, error) {
	if limit < 1 {
		return nil, fmt.Errorf("rocketmq: unconfirmed: limit %d is below 1: nothing would be listed", limit)
	}
	all, err := p.markers.unconfirmed(ctx, p.givenUpAfter(), place{}, limit)
	if err != nil {
		return nil, fmt.Errorf("rocketmq: unconfirmed: %w", err)
	}
	ms := make([]outbox.Message, len(all))
	for i := range all {
		if ms[i], err = all[i].message(); err != nil {
			return nil, fmt.Errorf("rocketmq: unconfirmed: marker %s: %w", all[i].key, err)
		}
	}
	return ms, nil
}
