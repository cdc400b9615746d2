package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// errLocked is the answer to a beat on a claim whose record another transaction has locked for long.
var errLocked = errors.New("sqlstore: the record is locked by another transaction; the lease was not extended")

// Extend implements dedup.Store. It waits for no other transaction: a claim whose record is locked
// is tried again for some hundredths of a second, and then gets an error of its own.
func (s *Store) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	b, open := s.begin(len(in), func(i int) *dedup.Key { return &in[i].Key }, func(i int) error { return checkHeld(&in[i].Held) },
		func(i int, err error) { out[i] = err })
	if len(open) == 0 {
		return ctx.Err()
	}
	err := s.beats.run(ctx, func(c conn) error {
		b.c = c
		return extending{b, in, out}.all(ctx, open)
	})
	if err != nil {
		return fmt.Errorf("sqlstore: extend of %d: %w", len(in), s.explain(err))
	}
	return ctx.Err()
}

// extending is one call of Extend.
type extending struct {
	*batch
	in  []dedup.ExtendRequest
	out []error
}

func (e extending) all(ctx context.Context, open []int) error {
	for round := 1; ; round++ {
		hit, err := e.beat(ctx, open)
		if err != nil {
			return err
		}
		// where the server freed the lock, because the session broke, the row was there to be beaten
		missed := slices.DeleteFunc(e.missed(open, hit), func(i int) bool { return e.s.locked.keeps(&e.in[i]) })
		if open, err = e.missing(ctx, missed); err != nil || len(open) == 0 {
			return err
		}
		if round == rounds || !sqldialect.Pause(ctx, time.Duration(round*round)*5*time.Millisecond) {
			break
		}
	}
	for _, i := range open {
		e.tell(i, errLocked)
	}
	return nil
}

func (e extending) put(r *sqldialect.Rows, i int) {
	q := &e.in[i]
	r.Bytes(q.Owner[:])
	r.Int(int64(q.Epoch))
	r.Int(micros(q.Lease))
	r.Int(micros(max(q.Lease, q.Retention)))
	r.Int(bit(q.Alone))
}

// beat extends what is its owner's and not locked, and returns that.
func (e extending) beat(ctx context.Context, items []int) (map[int]bool, error) {
	if e.s.dialect != MySQL {
		return e.change(ctx, e.s.text.beat, beatShape, items, e.put)
	}
	free, err := e.change(ctx, e.s.text.free, beatShape, items, e.put)
	if err != nil || len(free) == 0 {
		return nil, err
	}
	unlocked := make([]int, 0, len(free))
	for _, i := range items {
		if free[i] {
			unlocked = append(unlocked, i)
		}
	}
	hit, err := e.count(ctx, e.s.text.beat, beatShape, unlocked, e.put)
	return hit, err
}

// missing answers items that beat did not extend, and returns those that are their owner's all the same.
func (e extending) missing(ctx context.Context, items []int) (again []int, err error) {
	if len(items) == 0 {
		return nil, nil
	}
	records, now, err := e.read(ctx, e.s.text.glance, items)
	if err != nil {
		return nil, err
	}
	var lost []int
	for _, i := range items {
		f, q := records[i], &e.in[i]
		switch {
		case e.told[i]:
		case f.err != nil:
			e.tell(i, f.err)
		case f.lostTo(&q.Held, now):
			f.remake(&q.Held, now)
			f.alone = q.Alone
			lost = append(lost, i)
		case f.extend(q, now):
			again = append(again, i)
		default:
			e.out[i] = dedup.ErrSuperseded
		}
	}
	w := writing{e.batch, records, now}
	failed, err := w.anew(ctx, lost, e.out)
	return append(again, failed...), err
}

// anew writes records that were lost, says so, and returns those where another record came between.
func (w *writing) anew(ctx context.Context, items []int, out []error) (failed []int, err error) {
	var create, replace []int
	for _, i := range items {
		if w.records[i].revision == 0 {
			create = append(create, i)
		} else {
			replace = append(replace, i)
		}
	}
	if failed, err = w.all(ctx, []part{{create, w.create}, {replace, w.replace}}); err != nil {
		return nil, err
	}
	missed := make(map[int]bool, len(failed))
	for _, i := range failed {
		missed[i] = true
	}
	for _, i := range items {
		if !missed[i] && !w.told[i] {
			out[i] = dedup.ErrRecordLost
		}
	}
	return failed, nil
}

// Finish implements dedup.Store.
func (s *Store) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	b, open := s.begin(len(in), func(i int) *dedup.Key { return &in[i].Key }, func(i int) error { return s.checkFinish(&in[i]) },
		func(i int, err error) { out[i] = err })
	b.size = func(i int) int { return len(in[i].Result) }
	f := finishing{b, in, out, bare(in)}
	for round := 1; len(open) > 0; round++ {
		again, err := f.round(ctx, open)
		if err != nil {
			return fmt.Errorf("sqlstore: finish of %d: %w", len(in), s.explain(err))
		}
		if round == rounds {
			for _, i := range again {
				f.tell(i, errContended)
			}
			again = nil
		}
		open = again
	}
	return ctx.Err()
}

// finishing is one call of Finish.
type finishing struct {
	*batch
	in   []dedup.FinishRequest
	out  []error
	bare bool // no item has a result or a reason, as most do not: the statement is then a lighter one
}

func bare(in []dedup.FinishRequest) bool {
	return !slices.ContainsFunc(in, func(q dedup.FinishRequest) bool { return len(q.Result) > 0 || q.Reason != "" })
}

func (f finishing) put(r *sqldialect.Rows, i int) {
	q := &f.in[i]
	ttl := q.Retention
	if q.State == dedup.Condemned {
		ttl = max(q.Lease, q.Retention)
	}
	r.Bytes(q.Owner[:])
	r.Int(int64(q.Epoch))
	r.Int(int64(q.State))
	r.Int(micros(q.Lease))
	r.Int(micros(ttl))
	if f.bare {
		return
	}
	r.Text(sqldialect.CleanText(q.Reason, maxReason))
	if q.State == dedup.Done {
		putResult(r, q.Result)
	} else {
		r.Null()
	}
}

// round writes what is its owner's to write, answers the rest, and returns the items whose record
// changed between.
func (f finishing) round(ctx context.Context, items []int) (again []int, err error) {
	write, text, shape := f.change, f.s.text.finish, finishShape
	if f.s.dialect == MySQL {
		write = f.count
	}
	if f.bare {
		text, shape = f.s.text.word, wordShape
	}
	hit, err := write(ctx, text, shape, items, f.put)
	if err != nil {
		return nil, err
	}
	if items = f.missed(items, hit); len(items) == 0 {
		return nil, nil
	}
	records, now, err := f.read(ctx, f.s.text.glance, items)
	if err != nil {
		return nil, err
	}
	var lost []int
	for _, i := range items {
		r, q := records[i], &f.in[i]
		if f.told[i] {
			continue
		}
		if r.err != nil {
			f.tell(i, r.err)
			continue
		}
		gone := r.lostTo(&q.Held, now)
		if gone {
			r.remake(&q.Held, now)
		}
		switch word := r.finish(q, now); {
		case word == refused:
			f.out[i] = dedup.ErrSuperseded
		case gone:
			lost = append(lost, i)
		case word == applied:
			again = append(again, i)
		}
	}
	w := writing{f.batch, records, now}
	failed, err := w.anew(ctx, lost, f.out)
	return append(again, failed...), err
}
