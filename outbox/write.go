package outbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/idemq/idemq/internal/sqldialect"
)

// Write adds ms to tx, in their order and in one statement; on PostgreSQL a second one follows where
// an ID is there already. They are published if and only if tx commits. A message whose ID is there
// with the same content, tracing headers apart, is ignored; with other content the answer is
// [ErrConflict]. After any error roll tx back: a commit would go without these messages, or with some of them; only PostgreSQL's server
// does not let one pass after an error of its own.
//
// At most 1,000 messages with 6 MiB together. A *sql.DB is refused with [ErrNoTransaction], as is a
// *sql.Conn on which no transaction was begun.
func (o *Outbox) Write(ctx context.Context, tx Tx, ms ...Message) error {
	if err := o.write(ctx, tx, ms); err != nil {
		return fmt.Errorf("outbox: write: %w", err)
	}
	return nil
}

func (o *Outbox) write(ctx context.Context, tx Tx, ms []Message) error {
	if len(ms) == 0 {
		return nil
	}
	entries, err := o.entries(ms)
	if err != nil {
		return err
	}
	if err := o.inTransaction(ctx, tx); err != nil {
		return err
	}
	rows := sqldialect.NewRows(o.dialect, writeShape, len(entries))
	for i := range entries {
		entries[i].put(rows, i)
	}
	res, err := tx.ExecContext(ctx, o.text.write, o.withClock(rows.Args())...)
	if err != nil {
		return o.explainWrite(entries, err)
	}
	if o.dialect != PostgreSQL {
		return nil
	}
	if n, err := res.RowsAffected(); err != nil || int(n) == len(entries) {
		return err
	}
	same := sqldialect.NewRows(o.dialect, sameShape, len(entries))
	for i := range entries {
		same.Text(entries[i].id)
		same.Bytes(entries[i].content[:])
	}
	if _, err := tx.ExecContext(ctx, o.text.same, same.Args()...); err != nil {
		return o.explainWrite(entries, err)
	}
	return nil
}

// entries checks ms, and leaves out what is there twice.
func (o *Outbox) entries(ms []Message) ([]entry, error) {
	if len(ms) > maxWrite {
		return nil, fmt.Errorf("%d messages at once; %d is the limit: write them in several calls", len(ms), maxWrite)
	}
	now, volume := o.clock(), 0
	entries := make([]entry, 0, len(ms))
	seen := make(map[string]int, len(ms))
	for i := range ms {
		e, err := newEntry(&ms[i], i, now)
		if err != nil {
			return nil, err
		}
		if volume += e.size(); volume > maxVolume {
			return nil, fmt.Errorf("message %d, ID %q: more than %d bytes at once: write several times, and what is large elsewhere", i, ms[i].ID, maxVolume)
		}
		if first, ok := seen[e.id]; ok {
			if entries[first].content != e.content {
				return nil, fmt.Errorf("message %d, ID %q: %w, in the same call", i, e.id, ErrConflict)
			}
			continue
		}
		seen[e.id] = len(entries)
		entries = append(entries, e)
	}
	return entries, nil
}

func (e *entry) put(r *sqldialect.Rows, n int) {
	r.Int(int64(n))
	r.Text(e.id)
	r.Int(e.lane)
	r.Int(int64(shardOf(e.lane)))
	r.Text(e.Topic)
	if e.Key == "" {
		r.Null()
	} else {
		r.Text(e.Key)
	}
	putBytes(r, e.headers)
	putBytes(r, e.Body)
	r.Bytes(e.content[:])
}

func putBytes(r *sqldialect.Rows, b []byte) {
	if b == nil {
		r.Null()
		return
	}
	r.Bytes(b)
}

func (o *Outbox) explainWrite(entries []entry, err error) error {
	if sqldialect.Classify(o.dialect, err) != sqldialect.Check {
		return o.explain(err)
	}
	if len(entries) == 1 {
		return fmt.Errorf("message with ID %q: %w: %w", entries[0].id, ErrConflict, err)
	}
	return fmt.Errorf("one of the messages with IDs %q to %q: %w: %w", entries[0].id, entries[len(entries)-1].id, ErrConflict, err)
}

// What tells a transaction and a connection from a pool.
type (
	committer interface {
		Commit() error
		Rollback() error
	}
	connection interface{ Raw(f func(any) error) error }
)

// inTransaction refuses what is no transaction. A connection is asked, for somebody may have begun one
// on it by a statement. A pool is known by its BeginTx, whatever that returns: gorm's pool of prepared statements has
// a type of its own for it. That a transaction may have one, too, for savepoints, is why it is asked first.
func (o *Outbox) inTransaction(ctx context.Context, tx Tx) error {
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("tx is nil: %w", ErrNoTransaction)
	}
	if _, ok := tx.(committer); ok {
		return nil
	}
	if _, ok := tx.(connection); ok {
		return o.connInTransaction(ctx, tx)
	}
	if reflect.ValueOf(tx).MethodByName("BeginTx").IsValid() {
		return fmt.Errorf("a %T: %w: the message would be there whether or not your rows are; pass what BeginTx returned", tx, ErrNoTransaction)
	}
	return nil
}

func (o *Outbox) connInTransaction(ctx context.Context, tx Tx) error {
	if o.dialect == SQLite { // where a savepoint would begin one
		if _, err := tx.ExecContext(ctx, "BEGIN"); err != nil {
			return nil // within a transaction
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp) // else the pool would get it back with a transaction
		defer cancel()
		if _, err := tx.ExecContext(ctx, "ROLLBACK"); err != nil {
			return err
		}
		return fmt.Errorf("a %T on which no transaction was begun: %w", tx, ErrNoTransaction)
	}
	_, err := tx.ExecContext(ctx, "SAVEPOINT idemq_outbox") // MySQL takes and forgets it outside
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT idemq_outbox")
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), !sqldialect.Answered(o.dialect, err),
		sqldialect.Classify(o.dialect, err) == sqldialect.Aborted:
		return err
	}
	return fmt.Errorf("a %T on which no transaction was begun: %w: %w", tx, ErrNoTransaction, err)
}
