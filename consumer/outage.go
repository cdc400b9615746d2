package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemq/idemq/dedup"
)

// storeDown spaces further calls, and in the end pauses receiving.
func (e *engine) storeDown(now time.Time, err error) {
	e.storePause = min(max(2*e.storePause, 50*time.Millisecond), 2*time.Second)
	if e.downSince.IsZero() {
		e.downSince = now
		e.log.Error("consumer: store is down; nothing runs and nothing is acknowledged until it is back", "scope", e.plan.Scope, "err", err)
	}
	if now.Sub(e.downSince) >= pauseReceiving && e.gate.shut() {
		e.log.Error("consumer: store is still down; receiving pauses", "scope", e.plan.Scope, "for", now.Sub(e.downSince).Round(time.Second), "err", err)
	}
}

func (e *engine) storeUp() {
	e.storePause = 0
	if e.downSince.IsZero() {
		return
	}
	e.log.Info("consumer: store is back", "scope", e.plan.Scope, "after", time.Since(e.downSince).Round(time.Millisecond))
	e.downSince, e.ask.after, e.finishAfter = time.Time{}, time.Time{}, time.Time{}
	e.gate.open()
}

// probe asks the store whether it is back while there is nothing else to ask it for: everything
// held may have been given back during the outage, and a shut gate lets nothing new in.
func (e *engine) probe(now time.Time) {
	busy := e.ask.calls+e.finishes+len(e.ask.ring)+len(e.outs) > 0
	if e.downSince.IsZero() || e.draining || e.probing || busy || now.Before(e.ask.after) {
		return
	}
	e.probing = true
	e.calls.Go(func() {
		ctx, cancel := context.WithTimeout(e.ctx, pingTimeout)
		defer cancel()
		err := e.c.guard.Ping(ctx)
		e.inbox.post(func() {
			e.probing = false
			if err == nil || errors.Is(err, dedup.ErrUnsafeStore) { // it answers
				e.storeUp()
				return
			}
			now := time.Now()
			e.storeDown(now, err)
			e.ask.after = now.Add(e.storePause)
		})
	})
}

// gate lets the receiver pass while it is open.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // closed again when the gate opens; nil: open
}

func (g *gate) shut() (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return false
	}
	g.closed = make(chan struct{})
	return true
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// pass blocks while the gate is shut; false when stop ends first.
func (g *gate) pass(stop <-chan struct{}) bool {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return true
	}
	select {
	case <-closed:
		return true
	case <-stop:
		return false
	}
}
