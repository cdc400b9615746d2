package outbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

// maxReason is the longest error that a row keeps, in bytes.
const maxReason = 1024

// failure is a row that the broker did not take.
type failure struct {
	*row
	state, attempts int64 // that it gets
	reason          string
}

// within is exec with a limit on its time.
func (o *Outbox) within(ctx context.Context, limit time.Duration, text string, args []any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return o.exec(ctx, text, args)
}

// notes writes back what became of rows, as far as they are this relay's still.
type notes struct {
	o     *Outbox
	token []byte
	limit time.Duration // of one statement
}

func (n *notes) mark(ctx context.Context, rows []*row) (int64, error) {
	q := sqldialect.NewRows(n.o.dialect, seqShape, len(rows))
	for _, r := range rows {
		q.Int(r.seq)
	}
	return n.o.within(ctx, n.limit, n.o.text.soon+n.o.text.mark, n.o.withClock(q.Args(n.token)))
}

func (n *notes) fail(ctx context.Context, rows []failure) (int64, error) {
	q := sqldialect.NewRows(n.o.dialect, failShape, len(rows))
	for _, r := range rows {
		q.Int(r.seq)
		q.Int(r.state)
		q.Int(r.attempts)
		q.Text(sqldialect.CleanText(r.reason, maxReason))
	}
	return n.o.within(ctx, n.limit, n.o.text.soon+n.o.text.fail, q.Args(n.token))
}

// errLocked is why a statement gave up that others had a row of.
var errLocked = errors.New("a row is locked by somebody's transaction")

// each makes a note of rows by write. Where transactions of others have locked some, those are returned, and the notes of the others
// are made: one locked row must not hold up all that was sent beside it. wary: that is likely, so it is asked first which are free.
func each[T interface{ ref() *row }](ctx context.Context, n *notes, wary bool, rows []T, write func(ctx context.Context, rows []T) (int64, error)) (changed int64, locked []T, err error) {
	if len(rows) == 0 {
		return 0, nil, nil
	}
	if !wary {
		changed, err = contend(ctx, n, rows, write)
		if !errors.Is(err, errLocked) {
			return changed, nil, err
		}
	}
	free, locked, err := split(ctx, n, rows)
	if err != nil || len(free) == 0 {
		return changed, locked, err
	}
	more, err := contend(ctx, n, free, write)
	if changed += more; errors.Is(err, errLocked) { // in the moment between
		return changed, rows, nil
	}
	return changed, locked, err
}

// contend calls write for all rows, and for fewer where others are in the way.
func contend[T any](ctx context.Context, n *notes, rows []T, write func(ctx context.Context, rows []T) (int64, error)) (changed int64, err error) {
	var fault error
	err = n.o.dialect.Contend(ctx, len(rows), func(from, to int) error {
		more, err := write(ctx, rows[from:to])
		changed += more
		if n.o.dialect != SQLite && (sqldialect.Classify(n.o.dialect, err) == sqldialect.LockWait || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil) {
			return errLocked
		}
		return err
	}, func(_ int, err error) { fault = err })
	return changed, cmp.Or(err, fault)
}

// split finds which rows nobody has locked. Those that are pending no more are in neither part: there is nothing to note.
func split[T interface{ ref() *row }](ctx context.Context, n *notes, rows []T) (free, locked []T, err error) {
	var rest []T
	sort := func(text string, rows []T, there, missing *[]T) error {
		seqs, err := n.seqs(ctx, text, refs(rows))
		for _, r := range rows {
			if part := missing; err == nil {
				if seqs[r.ref().seq] {
					part = there
				}
				*part = append(*part, r)
			}
		}
		return err
	}
	if err := sort(n.o.text.free, rows, &free, &rest); err != nil || len(rest) == 0 {
		return free, nil, err
	}
	var noted []T
	return free, locked, sort(n.o.text.pending, rest, &locked, &noted)
}

func refs[T interface{ ref() *row }](rows []T) []*row {
	all := make([]*row, len(rows))
	for i, r := range rows {
		all[i] = r.ref()
	}
	return all
}

// seqs are the rows that a statement finds.
func (n *notes) seqs(ctx context.Context, text string, rows []*row) (map[int64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, n.limit)
	defer cancel()
	q := sqldialect.NewRows(n.o.dialect, seqShape, len(rows))
	for _, r := range rows {
		q.Int(r.seq)
	}
	found, err := n.o.query(ctx, text, q.Args())
	if err != nil {
		return nil, err
	}
	defer found.Close()
	all := make(map[int64]bool, len(rows))
	for found.Next() {
		var seq int64
		if err := found.Scan(&seq); err != nil {
			return nil, err
		}
		all[seq] = true
	}
	return all, found.Err()
}
