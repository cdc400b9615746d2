package dedup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Guard runs work at most once per (application, scope, ID) while the record is retained.
// It is safe for concurrent use and has no Close: its heartbeat goroutine lives only while
// claims are held.
type Guard struct {
	app   string
	store Store
	opts  Options

	claims   batcher[ClaimRequest, Verdict]
	extends  batcher[ExtendRequest, error]
	finishes batcher[FinishRequest, error]
	beats    heartbeat
	unsure   unsureOwners
}

// Options tune a Guard. The zero value, and nil, are the production defaults.
type Options struct {
	// Lease is how long a claim is believed without a sign of life; it is beaten every Lease/3.
	// It bounds the wait after a crash, not the run time of the work. At least 100ms. Default: 30s.
	Lease time.Duration
	// Retention is how long a verdict is remembered where neither [Work] nor the caller
	// (a consumer derives it from the broker's retry window) says otherwise. Default: 24h.
	Retention time.Duration
	// FailOpen runs work unprotected while the store is down; each such run is logged and
	// counted, and so is each verdict that the store does not take. Default: false: nothing runs and
	// Claim returns ErrUnavailable.
	FailOpen bool
	// Holder tells operators which process holds a claim. Default: host name and pid.
	Holder string
	// Logger is used by everything built on this Guard. Default: slog.Default() as it is when New is called.
	Logger *slog.Logger
	// Observe receives every event of everything built on this Guard, from any goroutine.
	// It must not block. Default: none.
	Observe func(Event)
}

const minLease = 100 * time.Millisecond

// New returns the Guard of the application app on store. Two applications sharing a
// store never share a record; processes of one application must use the same app.
func New(app string, store Store, o *Options) (*Guard, error) {
	g := &Guard{app: app, store: store}
	if o != nil {
		g.opts = *o
	}
	if err := g.opts.complete(app, store); err != nil {
		return nil, err
	}
	g.claims = batcher[ClaimRequest, Verdict]{
		do: g.storeClaim, held: func(q *ClaimRequest) *ClaimRequest { return q },
		failed: func(err error) Verdict { return Verdict{Err: err} },
		fold:   foldClaim, orphaned: g.releaseOrphans,
	}
	asIs := func(err error) error { return err }
	g.extends = batcher[ExtendRequest, error]{do: g.storeExtend, failed: asIs, apart: apart, held: func(q *ExtendRequest) *ClaimRequest { return &q.ClaimRequest }}
	g.finishes = batcher[FinishRequest, error]{do: g.storeFinish, failed: asIs, held: func(q *FinishRequest) *ClaimRequest { return &q.ClaimRequest }}
	g.beats.g = g
	return g, nil
}

func (o *Options) complete(app string, store Store) error {
	switch {
	case app == "":
		return errors.New("dedup: New: app is empty: applications on one store would share records; pass the application's name")
	case store == nil:
		return errors.New("dedup: New: store is nil; pass a Store, such as redisstore.New(client, nil)")
	case o.Lease < 0:
		return fmt.Errorf("dedup: Options.Lease %v is negative; leave it zero for 30s", o.Lease)
	case o.Retention < 0:
		return fmt.Errorf("dedup: Options.Retention %v is negative; leave it zero for 24h", o.Retention)
	}
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.Retention == 0 {
		o.Retention = 24 * time.Hour
	}
	if o.Lease < minLease {
		return fmt.Errorf("dedup: Options.Lease %v is below %v: a garbage collection would lose the claim; raise it", o.Lease, minLease)
	}
	if o.Retention < o.Lease {
		return fmt.Errorf("dedup: Options.Retention %v is below Options.Lease %v: the record of running work could expire; raise Retention", o.Retention, o.Lease)
	}
	if o.Holder == "" {
		host, _ := os.Hostname()
		o.Holder = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Options are the settings in force, defaults filled in.
func (g *Guard) Options() Options { return g.opts }

// Logger is the Guard's logger, for packages built on it.
func (g *Guard) Logger() *slog.Logger { return g.opts.Logger }

// Inspect tells what is remembered of w; ErrNotFound when nothing is.
// It fails with errors.ErrUnsupported when the store is no [Admin].
func (g *Guard) Inspect(ctx context.Context, w Work) (Record, error) {
	a, ok := g.store.(Admin)
	if !ok {
		return Record{}, fmt.Errorf("dedup: inspect: %T: %w", g.store, errors.ErrUnsupported)
	}
	if err := w.check(&g.opts); err != nil {
		return Record{}, err
	}
	return a.Inspect(ctx, keyOf(g.app, w.Scope, w.ID))
}

// Forget removes the record of w, so that its next delivery is new.
// It returns ErrInProgress while a live claim holds it.
func (g *Guard) Forget(ctx context.Context, w Work) error {
	a, ok := g.store.(Admin)
	if !ok {
		return fmt.Errorf("dedup: forget: %T: %w", g.store, errors.ErrUnsupported)
	}
	if err := w.check(&g.opts); err != nil {
		return err
	}
	return a.Forget(ctx, keyOf(g.app, w.Scope, w.ID))
}

// Ping reports whether the store can be trusted now: reachable, schema in place,
// no eviction. For start-up and readiness checks.
func (g *Guard) Ping(ctx context.Context) error {
	if p, ok := g.store.(Pinger); ok {
		return p.Ping(ctx)
	}
	return ctx.Err()
}

// RecordBytes is about what the store needs to remember one finished message; 0 where it does not tell.
func (g *Guard) RecordBytes() int {
	if s, ok := g.store.(Sizer); ok {
		return s.RecordBytes()
	}
	return 0
}

// Sweep deletes expired records in bounded batches until ctx ends; at once nil where the
// store expires by itself. A running consumer does this; who uses a Guard without one calls it.
func (g *Guard) Sweep(ctx context.Context) error {
	s, ok := g.store.(Sweeper)
	if !ok {
		return nil
	}
	const idle = time.Minute
	for {
		n, err := s.SweepBatch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			g.opts.Logger.Warn("dedup: sweep failed, will try again", "err", err)
		}
		if n > 0 && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(idle):
		}
	}
}
