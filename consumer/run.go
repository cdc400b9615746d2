package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
)

const (
	receiveBatch = 512
	pingTimeout  = 5 * time.Second
	closeTimeout = 10 * time.Second
)

// Run consumes until ctx ends, then drains and returns nil; a broker or store outage
// makes it wait, not return. It returns an error where waiting cannot help: a setting of broker or
// store that contradicts the plan, as many handlers that never end as there are slots, or a source
// that did not close in time. It may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	if c.begun.Swap(true) {
		return errors.New("consumer: Run was called before; make a new Source and a new Consumer")
	}
	c.logPlan("consumer: starting")
	err := c.waitForStore(ctx)
	if err == nil && ctx.Err() == nil {
		err = c.run(ctx)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if cerr := c.source.Close(closing); cerr != nil {
		err = errors.Join(err, fmt.Errorf("consumer: close the source: %w", cerr))
	}
	return err
}

func (c *Consumer) run(ctx context.Context) error {
	e := newEngine(c)
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	e.handling, e.cancelHandling = context.WithCancelCause(e.ctx)
	defer e.cancelHandling(nil)
	receiving, stopReceiving := context.WithCancel(ctx)
	defer stopReceiving()
	e.stopReceiving = stopReceiving

	e.calls.Go(func() { e.receive(receiving) })
	e.calls.Go(func() { _ = c.guard.Sweep(receiving) })
	e.loop(ctx)

	e.live.each(func(t *task) {
		if t.claim != nil {
			t.claim.Abandon()
		}
	})
	cancel()
	e.calls.Wait()
	return e.fatal
}

// waitForStore returns once the store can be trusted, or never will be.
func (c *Consumer) waitForStore(ctx context.Context) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		pinging, cancel := context.WithTimeout(ctx, pingTimeout)
		err := c.guard.Ping(pinging)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errors.Is(err, dedup.ErrUnsafeStore):
			return fmt.Errorf("consumer: start of %s: %w", c.Plan().Scope, err)
		}
		if c.guard.Options().FailOpen {
			c.guard.Logger().Warn("consumer: store does not answer; starting without it, as FailOpen says", "scope", c.Plan().Scope, "err", err)
			return nil
		}
		c.guard.Logger().Error("consumer: store does not answer; will try again before anything is received", "scope", c.Plan().Scope, "in", pause, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (c *Consumer) logPlan(what string) {
	p := c.Plan()
	args := []any{"scope", p.Scope, "window", p.Window, "because", p.Why, "retention", p.Retention,
		"attempts", p.MaxAttempts, "backoff", p.Backoff, "handler_timeout", p.HandlerTimeout, "concurrency", p.Concurrency}
	if n := c.guard.RecordBytes(); n > 0 {
		args = append(args, "store_mb_per_million_messages", n)
	}
	c.guard.Logger().Info(what, args...)
}

// receive hands deliveries to the loop until ctx ends.
func (e *engine) receive(ctx context.Context) {
	defer e.inbox.post(func() { e.received = true })
	planned := false
	for e.gate.pass(ctx.Done()) {
		ds, err := e.c.source.Receive(ctx, receiveBatch)
		if err != nil {
			if ctx.Err() == nil {
				e.inbox.post(func() { e.fail(fmt.Errorf("consumer: receive from %s: %w", e.plan.Scope, err)) })
			}
			return
		}
		if !planned {
			planned = true
			err = e.replan()
		}
		ts := e.normalise(ds)
		e.inbox.mu.Lock()
		e.inbox.arrived = append(e.inbox.arrived, ts...)
		if err != nil { // the drain gives back what has arrived
			e.inbox.news = append(e.inbox.news, func() { e.fail(err) })
		}
		e.inbox.mu.Unlock()
		e.inbox.signal()
		if err != nil {
			return
		}
	}
}

// replan takes in what the source has learnt from the broker by now. Nothing runs yet.
func (e *engine) replan() error {
	before := e.c.Plan()
	if err := e.c.replan(); err != nil {
		return err
	}
	after := e.c.Plan()
	if before.Why != after.Why || before.Retention != after.Retention {
		e.c.logPlan("consumer: planned anew with the broker's settings")
	}
	planned := make(chan struct{})
	e.inbox.post(func() { e.plan = after; close(planned) })
	select {
	case <-planned:
	case <-e.ctx.Done():
	}
	return nil
}

// normalise names the deliveries.
func (e *engine) normalise(ds []Delivery) []*task {
	plan := e.c.Plan()
	tasks := make([]task, len(ds))
	ts := make([]*task, len(ds))
	for i := range ds {
		t := &tasks[i]
		t.Delivery = ds[i]
		m := t.Message
		m.Scope = plan.Scope
		named, err := m.identify(e.c.opts.MessageID, t.Made)
		t.unnamed, t.outcome.Cause = !named, err
		t.work = m.Work()
		t.work.Retention = plan.Retention
		ts[i] = t
	}
	if len(ds) > 0 {
		e.c.guard.Emit(dedup.Event{Name: "receive", Scope: plan.Scope, N: len(ds)})
	}
	return ts
}
