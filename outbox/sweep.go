package outbox

import (
	"context"
	"database/sql"
	"time"
)

// turn reports whether this relay is the one that sweeps.
func (l *leases) turn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sweeping && time.Now().Before(l.until)
}

// sweep deletes what was published longer ago than Retention, in batches with a pause between, and
// forgets relays that died. One relay does it for all.
func (r *Relay) sweep(ctx context.Context, l *leases) {
	for sleep(ctx, r.opts.Sweep) {
		if !l.turn() {
			continue
		}
		for n := int64(sweepRows); n == sweepRows && l.turn(); {
			var err error
			if n, err = r.o.sweep(ctx, r.opts.Retention); err != nil {
				if ctx.Err() == nil {
					r.opts.Logger.Warn("outbox: sweep: trying again later", "table", r.o.table.String(), "error", r.o.explain(err))
				}
				break
			}
			r.emit("swept", int(n), 0, nil)
			if !sleep(ctx, 20*time.Millisecond) {
				return
			}
		}
		if _, err := r.o.exec(ctx, r.o.text.bury, r.o.withClock(nil)); err != nil && ctx.Err() == nil {
			r.opts.Logger.Warn("outbox: forget dead relays: trying again later", "table", r.o.table.String(), "error", r.o.explain(err))
		}
	}
}

// sweep deletes one batch. On MySQL it does so at READ COMMITTED: at REPEATABLE READ, the server's default,
// the gaps between the rows would be closed to write-backs meanwhile.
func (o *Outbox) sweep(ctx context.Context, retention time.Duration) (int64, error) {
	args := o.withClock([]any{retention.Microseconds()})
	if o.dialect != MySQL {
		return o.exec(ctx, o.text.sweep, args)
	}
	tx, err := o.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	res, err := tx.ExecContext(ctx, o.text.sweep, args...)
	if err != nil {
		_ = tx.Rollback()
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
