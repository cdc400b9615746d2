package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
		if _, err := r.o.within(ctx, sweepLimit, r.o.text.bury, r.o.withClock(nil)); err != nil && ctx.Err() == nil {
			r.opts.Logger.Warn("outbox: forget dead relays: trying again later", "table", r.o.table.String(), "error", r.o.explain(err))
		}
	}
}

// sweepLimit is how long one statement may take. A connection that has fallen silent would hold the turn to sweep up for good.
const sweepLimit = time.Minute

// sweep deletes one batch.
func (o *Outbox) sweep(ctx context.Context, retention time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	args := o.withClock([]any{retention.Microseconds()})
	if o.dialect != MySQL {
		return o.exec(ctx, o.text.sweep, args)
	}
	conn, err := o.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	n, err := sweepMySQL(ctx, conn, o.text.sweep, args)
	if err != nil { // the next transaction on it would be at another level than its user expects
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return n, err
}

// sweepMySQL deletes at READ COMMITTED: at REPEATABLE READ, the server's default, the gaps between the rows would be
// closed to write-backs meanwhile. It begins no transaction of the driver's, whose COMMIT would heed no context.
func sweepMySQL(ctx context.Context, conn *sql.Conn, text string, args []any) (int64, error) {
	if _, err := conn.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
		return 0, err
	}
	res, err := conn.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
