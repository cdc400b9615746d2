package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

func (o *Outbox) query(ctx context.Context, text string, args []any) (*sql.Rows, error) {
	p, err := o.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return o.db.QueryContext(ctx, text, args...)
	}
	return p.QueryContext(ctx, args...)
}

// exec returns how many rows the statement changed.
func (o *Outbox) exec(ctx context.Context, text string, args []any) (int64, error) {
	p, err := o.prepare(ctx, text)
	if err != nil {
		return 0, err
	}
	var res sql.Result
	if p == nil {
		res, err = o.db.ExecContext(ctx, text, args...)
	} else {
		res, err = p.ExecContext(ctx, args...)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// withClock adds SQLite's clock to args.
func (o *Outbox) withClock(args []any) []any {
	if o.dialect == SQLite {
		args = append(args[:len(args):len(args)], o.clock().UnixMicro())
	}
	return args
}

// prepare returns nil on PostgreSQL: pgx prepares by itself, or not, as it was told for the proxy in between.
func (o *Outbox) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if o.dialect == PostgreSQL {
		return nil, nil
	}
	o.mu.Lock()
	p := o.prepared[text]
	o.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := o.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if first := o.prepared[text]; first != nil {
		_ = p.Close() // two came at once
		return first, nil
	}
	o.prepared[text] = p
	return p, nil
}

// row is a pending row as it was read.
type row struct {
	seq, lane int64
	attempts  int
	damage    error // why it cannot be read; it is parked in its turn
	size      int   // in bytes, about
	asked     bool  // its note was sent before, and nobody knows whether it is in the table
	Message
}

// volume notes what r takes in memory, headers as they are in the table.
func (r *row) volume(headers []byte) int {
	r.size = len(r.Body) + len(headers) + len(r.ID) + len(r.Topic) + 200
	return r.size
}

func (r *row) ref() *row { return r }

// done forgets what nobody needs any more once the publisher has answered.
func (r *row) done() { r.Headers, r.Body = nil, nil }

// reading is what a read asks for.
type reading struct {
	strict bool     // without followers of parked rows
	mask   uint64   // of shards
	lanes  []int64  // to leave out
	topics []string // to leave out, with all that has their messages' keys
	limit  int
}

// readBytes bounds what one read keeps, unless one row alone is larger, and with it what a relay has in memory: some of these.
const readBytes = 16 << 20

// read returns the oldest pending rows, and whether there may be more.
func (o *Outbox) read(ctx context.Context, r reading) (rows []*row, full bool, err error) {
	text := o.text.read
	if r.strict {
		text = o.text.strict
	}
	lanes := sqldialect.NewRows(o.dialect, laneShape, len(r.lanes))
	for _, l := range r.lanes {
		lanes.Int(l)
	}
	args := lanes.Args()
	if len(r.topics) > 0 {
		text = o.text.readOpen
		if r.strict {
			text = o.text.strictOpen
		}
		topics := sqldialect.NewRows(o.dialect, topicShape, len(r.topics))
		for _, name := range r.topics {
			topics.Text(name)
		}
		args = append(args, topics.Args()[0])
	}
	args = append(args, int64(r.mask), int64(r.limit))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found, err := o.query(ctx, text, args)
	if err != nil {
		return nil, false, err
	}
	defer found.Close()
	rows = make([]*row, 0, r.limit)
	for size := 0; size < readBytes && found.Next(); {
		r := &row{}
		var key sql.NullString
		var headers sql.RawBytes
		var none bool // no driver need tell nothing from nothing in it
		if err := found.Scan(&r.seq, &r.ID, &r.lane, &r.Topic, &key, &headers, &r.Body, &none, &r.attempts); err != nil {
			return nil, false, err
		}
		size += r.volume(headers)
		full = size >= readBytes
		r.Key = key.String
		if !none && r.Body == nil {
			r.Body = []byte{}
		}
		if headers != nil {
			if err := json.Unmarshal(headers, &r.Headers); err != nil {
				r.damage = Permanent(fmt.Errorf("outbox: row %d, ID %q: its headers cannot be read: %w", r.seq, r.ID, err))
			}
		}
		rows = append(rows, r)
	}
	if full && len(rows) < r.limit {
		cancel() // or all that follows would be read to its end
		return rows, true, nil
	}
	return rows, full || len(rows) == r.limit, found.Err()
}

// Requeue lets parked messages, and the followers held behind them, be published again: at once
// by relays that run, with attempts counted anew. It is an error if one of ids is not parked; the others are requeued.
func (o *Outbox) Requeue(ctx context.Context, ids ...string) error {
	distinct := make(map[string]bool, len(ids))
	for _, id := range ids {
		distinct[id] = true
	}
	q := sqldialect.NewRows(o.dialect, idShape, len(ids))
	for id := range distinct {
		if checkText(id, maxID) == nil { // else no message has it
			q.Text(id)
		}
	}
	n, err := o.exec(ctx, o.text.requeue, q.Args())
	if err != nil {
		return fmt.Errorf("outbox: requeue: %w", o.explain(err))
	}
	o.Wake()
	if int(n) < len(distinct) {
		return fmt.Errorf("outbox: requeue: %d of %d messages are requeued; the others are not parked", n, len(distinct))
	}
	return nil
}

// Stats are the table's numbers, shared by all relays.
type Stats struct {
	Pending, Parked int64 // those held behind a parked one are pending
	// Oldest is how long ago the oldest pending message was written.
	Oldest time.Duration
}

// Stats counts, for which it reads every pending row's entry in an index.
func (o *Outbox) Stats(ctx context.Context) (s Stats, err error) {
	rows, err := o.query(ctx, o.text.count, o.withClock(nil))
	if err != nil {
		return s, fmt.Errorf("outbox: stats: %w", o.explain(err))
	}
	defer rows.Close()
	for rows.Next() {
		var oldest sql.NullInt64
		if err := rows.Scan(&s.Pending, &s.Parked, &oldest); err != nil {
			return s, fmt.Errorf("outbox: stats: %w", err)
		}
		s.Oldest = time.Duration(max(oldest.Int64, 0)) * time.Microsecond
	}
	if err := rows.Err(); err != nil {
		return s, fmt.Errorf("outbox: stats: %w", err)
	}
	return s, nil
}
