package sqlstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// Claim implements dedup.Store.
func (s *Store) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	b, open := s.begin(len(in), func(i int) *dedup.Key { return &in[i].Key }, func(i int) error { return checkClaim(&in[i]) },
		func(i int, err error) { out[i] = dedup.Verdict{Err: err} })
	c := claiming{batch: b, in: in, out: out}
	for round := 1; len(open) > 0; round++ {
		var err error
		if open, err = c.round(ctx, open, round == rounds); err != nil {
			return fmt.Errorf("sqlstore: claim of %d: %w", len(in), s.explain(err))
		}
	}
	return ctx.Err()
}

// claiming is one call of Claim.
type claiming struct {
	*batch
	in  []dedup.ClaimRequest
	out []dedup.Verdict
}

// round asks for open and returns those that have no answer, because their record changed between two
// statements. In the last one all are answered.
func (c *claiming) round(ctx context.Context, open []int, last bool) (again []int, err error) {
	records, now, err := c.ask(ctx, open)
	if err != nil {
		return nil, err
	}
	var create, take, repeat []int
	for _, i := range open {
		f, q := records[i], &c.in[i]
		switch {
		case c.told[i]:
		case f == nil: // PostgreSQL: neither seen nor made
			if q.MustExist {
				c.out[i] = dedup.Verdict{State: dedup.Absent}
			} else {
				again = append(again, i)
			}
		case f.err != nil:
			c.tell(i, f.err)
		case f.made:
			c.out[i] = dedup.Verdict{State: dedup.Acquired, Epoch: uint64(f.epoch), Attempt: 1, Redrive: q.Redrive}
		case q.MustExist && !f.there(now):
			c.out[i] = dedup.Verdict{State: dedup.Absent}
		case f.mismatch(q, now):
			c.out[i] = dedup.Verdict{State: dedup.Mismatch, Redrive: int(f.redrive)}
		default:
			revision, own := f.revision, f.owner == q.Owner
			changed, mine := f.claim(q, now)
			c.out[i] = f.verdict(now, mine)
			switch {
			case !changed:
			case revision == 0:
				create = append(create, i)
			case own:
				repeat = append(repeat, i)
			default:
				take = append(take, i)
			}
		}
	}
	w := writing{c.batch, records, now}
	lost, err := w.all(ctx, []part{
		{create, func(ctx context.Context, items []int) (map[int]bool, error) { return c.begin(ctx, items, now) }},
		{take, w.replace}, {repeat, w.insist},
	})
	if err != nil {
		return nil, err
	}
	if last {
		c.giveUp(append(again, lost...), take)
		return nil, nil
	}
	return append(again, lost...), nil
}

// giveUp answers what was never to be had. A record to take over that another transaction has locked
// is being changed by somebody: it is in progress there, maybe for as long as work in a transaction takes.
func (c *claiming) giveUp(open, take []int) {
	for _, i := range open {
		if slices.Contains(take, i) {
			c.out[i].State, c.out[i].Epoch, c.out[i].Left = dedup.InProgress, 0, c.in[i].Lease
		} else { // it may stand in the table all the same: the next question is to come from the same owner
			c.tell(i, fmt.Errorf("%w: %w", dedup.ErrUnavailable, errContended))
		}
	}
}

// ask reads the records of items, and on PostgreSQL makes those that are not there with the same
// statement.
func (c *claiming) ask(ctx context.Context, items []int) (records map[int]*found, now int64, err error) {
	if c.s.dialect != PostgreSQL {
		return c.read(ctx, c.s.text.read, items)
	}
	records = make(map[int]*found, len(items))
	err = c.each(ctx, items, func(piece []int) error {
		rows := c.rows(askShape, piece, func(r *sqldialect.Rows, i int) { putAsk(r, &c.in[i]) })
		at, err := c.fetch(ctx, c.s.text.ask, rows.Args(), records)
		now = max(now, at)
		return err
	})
	return records, now, err
}

func putAsk(r *sqldialect.Rows, q *dedup.ClaimRequest) {
	r.Bytes(q.Owner[:])
	putPrint(r, &q.Fingerprint)
	r.Int(micros(q.Lease))
	r.Int(micros(max(q.Lease, q.Retention)))
	r.Int(int64(q.Redrive))
	r.Int(bit(q.MustExist))
	r.Text(sqldialect.CleanText(q.Holder, maxHolder))
}

// writing is records as they are to become, in place of what was read.
type writing struct {
	*batch
	records map[int]*found
	now     int64
}

// part is items with the way to write them.
type part struct {
	items []int
	write func(ctx context.Context, items []int) (hit map[int]bool, err error)
}

// all writes parts and returns the items whose record was not as it was read any more, or is locked. What
// is to be taken over does not wait for a lock (replace): whoever has it is changing the record. An owner
// waits (insist), for it may be its own transaction that is committing still.
func (w *writing) all(ctx context.Context, parts []part) (lost []int, err error) {
	for _, p := range parts {
		if len(p.items) == 0 {
			continue
		}
		hit, err := p.write(ctx, p.items)
		if err != nil {
			return nil, err
		}
		lost = append(lost, w.missed(p.items, hit)...)
	}
	return lost, nil
}

func (w *writing) put(r *sqldialect.Rows, i int) { putRecord(r, &w.records[i].record, w.now) }

func (w *writing) create(ctx context.Context, items []int) (map[int]bool, error) {
	return w.insert(ctx, w.s.text.create, recordShape, items, w.put)
}

// begin makes the records of new keys, as record.begin describes them.
func (c *claiming) begin(ctx context.Context, items []int, now int64) (map[int]bool, error) {
	return c.insert(ctx, c.s.text.begin, beginShape, items, func(r *sqldialect.Rows, i int) { putBegin(r, &c.in[i], now) })
}

func putBegin(r *sqldialect.Rows, q *dedup.ClaimRequest, now int64) {
	r.Bytes(q.Owner[:])
	putPrint(r, &q.Fingerprint)
	r.Int(int64(q.Redrive))
	r.Int(now)
	r.Int(micros(q.Lease))
	r.Int(micros(max(q.Lease, q.Retention)))
	r.Text(sqldialect.CleanText(q.Holder, maxHolder))
}

// insert makes what is not there and returns that.
func (b *batch) insert(ctx context.Context, text string, shape sqldialect.Shape, items []int, put func(r *sqldialect.Rows, i int)) (map[int]bool, error) {
	if b.s.dialect != MySQL {
		return b.change(ctx, text, shape, items, put)
	}
	hit := make(map[int]bool, len(items))
	err := b.each(ctx, items, func(piece []int) error {
		_, err := b.s.exec(ctx, b.c, text, b.rows(shape, piece, put).Args())
		if sqldialect.Classify(MySQL, err) == sqldialect.Duplicate {
			return nil // somebody was there meanwhile: none was made, all are looked at again
		}
		for _, i := range piece {
			hit[i] = err == nil
		}
		return err
	})
	return hit, err
}

func (w *writing) replace(ctx context.Context, items []int) (map[int]bool, error) {
	if w.s.dialect != MySQL {
		return w.change(ctx, w.s.text.replace, recordShape, items, w.put)
	}
	unlocked, err := w.change(ctx, w.s.text.probe, recordShape, items, w.put)
	if err != nil {
		return nil, err
	}
	free := make([]int, 0, len(unlocked))
	for _, i := range items {
		if unlocked[i] {
			free = append(free, i)
		}
	}
	if len(free) == 0 {
		return nil, nil
	}
	return w.insist(ctx, free)
}

func (w *writing) insist(ctx context.Context, items []int) (map[int]bool, error) {
	if w.s.dialect != MySQL {
		return w.change(ctx, w.s.text.insist, recordShape, items, w.put)
	}
	hit, err := w.count(ctx, w.s.text.replace, recordShape, items, w.put)
	if err != nil {
		return nil, err
	}
	unknown := w.missed(items, hit)
	if len(unknown) == 0 {
		return hit, nil
	}
	records, _, err := w.read(ctx, w.s.text.glance, unknown)
	if err != nil {
		return nil, err
	}
	for i, f := range records {
		mine := &w.records[i].record
		// The revision alone is not proof: the owner's own verdict or beat may have come between.
		hit[i] = f.revision == mine.revision+1 && f.owner == mine.owner && f.epoch == mine.epoch &&
			f.state == mine.state && f.lease == mine.lease && f.expires == mine.expires
	}
	return hit, nil
}
