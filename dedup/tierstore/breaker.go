package tierstore

import (
	"log/slog"
	"sync"
	"time"
)

// faultsInARow is after how many failed calls the front is left alone.
const faultsInARow = 3

// breaker keeps a front that is down or slow from being waited for again and again.
type breaker struct {
	pause time.Duration
	log   *slog.Logger

	mu     sync.Mutex
	faults int       // in a row
	until  time.Time // while faults >= faultsInARow: nobody asks before
}

// allows reports whether the front may be asked. When a pause is over, one call may; the others wait
// for what comes of it for another pause at most.
func (b *breaker) allows() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults < faultsInARow {
		return true
	}
	now := time.Now()
	if now.Before(b.until) {
		return false
	}
	b.until = now.Add(b.pause)
	return true
}

// report takes in how a call that was allowed ended.
func (b *breaker) report(err error) {
	b.mu.Lock()
	was := b.faults
	if err == nil {
		b.faults = 0
	} else {
		b.faults++
		b.until = time.Now().Add(b.pause)
	}
	now := b.faults
	b.mu.Unlock()
	switch {
	case was < faultsInARow && now >= faultsInARow:
		b.log.Warn("tierstore: the front fails and is left alone; the decider is asked for everything", "pause", b.pause, "err", err)
	case was >= faultsInARow && now == 0:
		b.log.Info("tierstore: the front answers again")
	}
}
