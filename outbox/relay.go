package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// RelayOptions tune a Relay; nil is the default.
type RelayOptions struct {
	// Batch is how many messages are read at once and given to the publisher at once; a relay has at most
	// six times as many in memory, and of large messages fewer: reads end at 16 MiB. Default: 512.
	Batch int
	// Poll is the longest wait of an idle relay that nobody woke. Default: 100ms.
	Poll time.Duration
	// Lease is that of a shard, after which another relay takes it over from one that died. Default: 30s.
	Lease time.Duration
	// MaxAttempts is how often one message is tried before it is parked. Default: 10.
	MaxAttempts int
	// Backoff is the wait before a message's second attempt, doubling with each further one up to
	// MaxBackoff; a quarter of it is chance. So is the wait while the broker is out of reach.
	// Default: 200ms and 30s.
	Backoff, MaxBackoff time.Duration
	// LetFollowersGo publishes what was written under a parked message's key after it. Default: it is held until the
	// parked one is requeued and sent.
	LetFollowersGo bool
	// Retention is how long published rows stay, and with them the memory of their IDs. Default: 24h.
	Retention time.Duration
	// Sweep is how often rows whose retention is over are deleted, by one relay for all. Default: 1m.
	Sweep time.Duration
	// Listen hears PostgreSQL's NOTIFY on a channel, on a connection of its own, and calls notified for
	// each, until ctx ends or the connection fails; then it is called again. See the package's doc. Default: none.
	Listen func(ctx context.Context, channel string, notified func()) error
	Name   string       // of the relay, for people who look into the table of relays. Default: host and process.
	Logger *slog.Logger // Default: slog.Default().
	// Observe hears events of the name "relay", with the table as scope and these causes: sent, failed
	// (will be tried again), parked, outage, superseded (another relay had the shard already), swept. It is called from several
	// goroutines, and what they do waits for it. Default: none.
	Observe func(dedup.Event)
}

// Relay moves committed messages to a broker. Any number may run at once, in one process or many.
type Relay struct {
	o       *Outbox
	p       Publisher
	opts    RelayOptions
	wake    chan struct{} // capacity 1
	running atomic.Bool
}

// NewRelay does no I/O. The publisher stays the caller's to close.
func NewRelay(o *Outbox, p Publisher, ro *RelayOptions) (*Relay, error) {
	if o == nil || p == nil {
		return nil, errors.New("outbox: NewRelay: it needs an Outbox and a Publisher; one is nil")
	}
	r := &Relay{o: o, p: p, wake: make(chan struct{}, 1)}
	if ro != nil {
		r.opts = *ro
	}
	if err := r.opts.fill(); err != nil {
		return nil, fmt.Errorf("outbox: NewRelay: %w", err)
	}
	if r.opts.Listen != nil && o.dialect != PostgreSQL {
		return nil, fmt.Errorf("outbox: NewRelay: RelayOptions.Listen is set, and only PostgreSQL has NOTIFY; on %s leave it out and relays poll", o.dialect)
	}
	return r, nil
}

func (ro *RelayOptions) fill() error {
	for _, f := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"Poll", &ro.Poll, 100 * time.Millisecond}, {"Lease", &ro.Lease, 30 * time.Second}, {"Retention", &ro.Retention, 24 * time.Hour}, {"Sweep", &ro.Sweep, time.Minute},
		{"Backoff", &ro.Backoff, 200 * time.Millisecond}, {"MaxBackoff", &ro.MaxBackoff, max(30*time.Second, ro.Backoff)},
	} {
		switch {
		case *f.value < 0:
			return fmt.Errorf("RelayOptions.%s %v is negative; leave it zero for %v", f.name, *f.value, f.standard)
		case *f.value == 0:
			*f.value = f.standard
		}
	}
	for _, f := range []struct {
		name            string
		value           *int
		standard, limit int
	}{{"Batch", &ro.Batch, 512, 10_000}, {"MaxAttempts", &ro.MaxAttempts, 10, 1 << 20}} {
		switch {
		case *f.value < 0 || *f.value > f.limit:
			return fmt.Errorf("RelayOptions.%s %d is not between 0 and %d; leave it zero for %d", f.name, *f.value, f.limit, f.standard)
		case *f.value == 0:
			*f.value = f.standard
		}
	}
	if ro.MaxBackoff < ro.Backoff {
		return fmt.Errorf("RelayOptions.MaxBackoff %v is shorter than Backoff %v; raise it, or lower Backoff", ro.MaxBackoff, ro.Backoff)
	}
	if ro.Lease < 100*time.Millisecond {
		return fmt.Errorf("RelayOptions.Lease %v is too short to be kept; 100ms is the least", ro.Lease)
	}
	if ro.Logger == nil {
		ro.Logger = slog.Default()
	}
	if ro.Name == "" {
		host, _ := os.Hostname() // without it the process is name enough
		ro.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	return nil
}

// Run relays until ctx ends, then finishes the batch in flight, gives its shards back and returns nil.
// It returns an error at once where the tables are missing or of a later version; what goes wrong
// afterwards is logged and tried again.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)
	if err := r.check(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	r.o.register(r, true)
	defer r.o.register(r, false)

	leases := newLeases(r.o, r.opts.Name, r.opts.Lease, r.opts.Logger)
	var keeping, aside sync.WaitGroup
	kept, stop := context.WithCancel(context.WithoutCancel(ctx)) // ends after the batch in flight
	keeping.Go(func() { leases.run(kept) })
	aside.Go(func() { r.sweep(ctx, leases) })
	if r.opts.Listen != nil {
		aside.Go(func() { r.listen(ctx) })
	}
	newLoop(r, leases).run(ctx)
	aside.Wait()
	stop()
	keeping.Wait()
	return nil
}

// check waits for the database as long as it is out of reach.
func (r *Relay) check(ctx context.Context) error {
	for n := 1; ; n++ {
		v, err := r.version(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && v == 0:
			return fmt.Errorf("outbox: run: table %s is missing: call Migrate at start", r.o.table)
		case err == nil && v != len(r.o.schema.Steps):
			return fmt.Errorf("outbox: run: table %s has schema version %d and this program knows %d: %s", r.o.table, v, len(r.o.schema.Steps), map[bool]string{true: "call Migrate at start", false: "run a newer program"}[v < len(r.o.schema.Steps)])
		case err == nil:
			return nil
		case sqldialect.Classify(r.o.dialect, err) == sqldialect.NoTable: // dropped, and its version is noted still
			return fmt.Errorf("outbox: run: %w", r.o.explain(err))
		}
		r.opts.Logger.Warn("outbox: the database is out of reach; trying again", "table", r.o.table.String(), "error", err)
		if !sleep(ctx, r.backoff(n)) {
			return nil
		}
	}
}

func (r *Relay) version(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit(0))
	defer cancel()
	v, err := r.o.schema.Version(ctx, r.o.db)
	for _, table := range []sqldialect.Table{r.o.table, r.o.table.Beside(r.o.table.Name() + "_shards"), r.o.table.Beside(r.o.table.Name() + "_relays")} {
		if err == nil && v == len(r.o.schema.Steps) {
			_, err = r.o.db.ExecContext(ctx, "SELECT 1 FROM "+table.Quoted()+" WHERE 1 = 0")
		}
	}
	return v, err
}

// Wake makes Run look now: call it after a commit in the same process.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Stats is a snapshot of the table; see [Outbox.Stats].
func (r *Relay) Stats(ctx context.Context) (Stats, error) { return r.o.Stats(ctx) }

func (r *Relay) emit(cause string, n int, took time.Duration, err error) {
	if r.opts.Observe != nil && n > 0 {
		r.opts.Observe(dedup.Event{Name: "relay", Scope: r.o.table.String(), Cause: cause, N: n, Took: took, Err: err})
	}
}
