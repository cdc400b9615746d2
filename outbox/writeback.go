package outbox

import (
	"context"
	"time"
)

// limit is how long a statement may take after so many failures in a row. Without one, a connection that has fallen
// silent would hold the relay up for good, with shards whose lease another connection keeps. Several in turn may be silent; after that
// it may be the server that needs longer.
func (r *Relay) limit(failures int) time.Duration {
	return max(r.opts.Lease/3, time.Second) * time.Duration(1+min(failures/4, 11))
}

// write tells the table what the broker has, and what it does not take. After the end of Run's context it
// has no longer than cleanUp.
func (l *loop) write(work context.Context) {
	w := written{sent: l.sent, failed: l.failed}
	l.writing, l.sent, l.failed = true, nil, nil
	limit := l.limit(l.badWrites)
	ctx, cancel := context.WithCancel(work)
	if !l.stopped.IsZero() {
		ctx, cancel = context.WithTimeout(work, cleanUp)
	}
	l.cut = cancel
	l.jobs.Go(func() {
		defer cancel()
		w.err = l.writeBack(ctx, limit, &w)
		l.written <- w
	})
}

func (l *loop) writeBack(ctx context.Context, limit time.Duration, w *written) error {
	if len(w.sent) > 0 {
		n, err := l.o.mark(ctx, limit, l.leases.token, w.sent)
		if err != nil {
			return err
		}
		l.emit("superseded", len(w.sent)-int(n), 0, nil)
	}
	if len(w.failed) == 0 {
		return nil
	}
	n, err := l.o.fail(ctx, limit, l.leases.token, w.failed)
	if err == nil {
		l.emit("superseded", len(w.failed)-int(n), 0, nil)
	}
	return err
}

// wrote: what was not written back is another time, and until then nothing of those lanes is read.
func (l *loop) wrote(w written) {
	l.writing = false
	if w.err != nil {
		l.sent = append(w.sent, l.sent...)
		l.failed = append(w.failed, l.failed...)
		l.badWrites++
		l.writeAt = l.fault("write back", l.badWrites, w.err)
		return
	}
	l.badWrites = 0
	for _, r := range w.sent {
		l.look = l.lanes.marked(r) || l.look
		l.leases.hold(r.lane, -1)
	}
	for _, f := range w.failed {
		l.look = l.lanes.marked(f.row) || l.look
		l.leases.hold(f.lane, -1)
	}
}

// fault is the nth in a row; it returns when the database is asked again.
func (l *loop) fault(what string, n int, err error) time.Time {
	wait := l.backoff(n)
	l.opts.Logger.Warn("outbox: "+what+": trying again", "table", l.o.table.String(), "after", wait, "error", l.o.explain(err))
	return time.Now().Add(wait)
}
