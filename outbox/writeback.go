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

// written is what is to be written back, and what has become of it.
type written struct {
	sent   []*row
	failed []failure
	wary   bool   // they were locked a moment ago
	done   []*row // of them
	locked aside
	err    error // then sent and failed are what is left
}

// aside are notes for which somebody's transaction has locked the rows.
type aside struct {
	sent   []*row
	failed []failure
	at     time.Time // when it is tried again
	tries  int
}

func (a *aside) len() int { return len(a.sent) + len(a.failed) }

// asideAtMost is the longest wait between two looks at rows that are locked: a transaction that writes an ID again is short, as a rule.
const asideAtMost = time.Second

// write tells the table what the broker has, and what it does not take. After the end of Run's context it
// has no longer than cleanUp.
func (l *loop) write(work context.Context, wary bool) {
	w := written{sent: l.sent, failed: l.failed, wary: wary}
	bad := l.badWrites
	if wary {
		bad = max(bad, l.aside.tries)
		w.sent, w.failed = l.aside.sent, l.aside.failed
		l.aside.sent, l.aside.failed = nil, nil
	} else {
		l.sent, l.failed = nil, nil
	}
	l.writing = true
	n := notes{o: l.o, token: l.leases.token, limit: l.limit(bad)}
	ctx, cancel := context.WithCancel(work)
	if !l.stopped.IsZero() {
		ctx, cancel = context.WithTimeout(work, cleanUp)
	}
	l.cut = cancel
	l.jobs.Go(func() {
		defer cancel()
		w.err = l.writeBack(ctx, &n, &w)
		l.written <- w
	})
}

func (l *loop) writeBack(ctx context.Context, n *notes, w *written) error {
	changed, locked, err := each(ctx, n, w.wary, w.sent, n.mark)
	if err != nil {
		return err
	}
	l.settle(w, refs(w.sent), refs(locked), changed)
	w.locked.sent, w.sent = locked, nil
	changed, lost, err := each(ctx, n, w.wary, w.failed, n.fail)
	if err != nil {
		return err
	}
	l.settle(w, refs(w.failed), refs(lost), changed)
	w.locked.failed, w.failed = lost, nil
	return nil
}

// settle adds what is not locked to what is done. What is not this relay's any more is changed no more; nor is what an earlier try has changed
// whose reply was lost.
func (l *loop) settle(w *written, rows, locked []*row, changed int64) {
	stay := make(map[*row]bool, len(locked))
	for _, r := range locked {
		stay[r] = true
	}
	fresh := 0
	for _, r := range rows {
		if stay[r] {
			continue
		}
		w.done = append(w.done, r)
		if !r.asked {
			fresh++
		}
	}
	l.emit("superseded", fresh-int(changed), 0, nil)
}

// wrote: what was not written back is another time, and until then nothing of those lanes is read.
func (l *loop) wrote(w written) {
	l.writing = false
	for _, r := range w.done {
		l.look = l.lanes.marked(r) || l.look
		l.leases.hold(r.lane, -1)
	}
	l.setAside(&w)
	if w.err == nil {
		l.badWrites = 0
		return
	}
	for _, r := range append(refs(w.sent), refs(w.failed)...) {
		r.asked = true
	}
	l.sent = append(w.sent, l.sent...)
	l.failed = append(w.failed, l.failed...)
	l.badWrites++
	l.writeAt = l.fault("write back", l.badWrites, w.err)
}

func (l *loop) setAside(w *written) {
	if w.wary && len(w.done) == 0 {
		l.aside.tries++
	} else if w.wary {
		l.aside.tries = 1
	}
	if w.locked.len() == 0 {
		return
	}
	for _, r := range append(refs(w.locked.sent), refs(w.locked.failed)...) {
		r.asked = true
	}
	l.aside.sent = append(l.aside.sent, w.locked.sent...)
	l.aside.failed = append(l.aside.failed, w.locked.failed...)
	l.aside.at = time.Now().Add(min(l.backoff(max(l.aside.tries, 1)), asideAtMost))
	if !w.wary {
		l.opts.Logger.Warn("outbox: rows are locked by somebody's transaction; what became of them is noted later", "table", l.o.table.String(), "messages", w.locked.len())
	}
}

// fault is the nth in a row; it returns when the database is asked again.
func (l *loop) fault(what string, n int, err error) time.Time {
	wait := l.backoff(n)
	l.opts.Logger.Warn("outbox: "+what+": trying again", "table", l.o.table.String(), "after", wait, "error", l.o.explain(err))
	return time.Now().Add(wait)
}
