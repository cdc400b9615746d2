package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// Bounds of one statement: more rows gain nothing, and MySQL takes packets of 16 MiB by default.
const (
	maxRows  = 1024
	maxBytes = 4 << 20
)

// rounds is how often a call looks again at items whose record changed between two of its
// statements.
const rounds = 5

// errContended is an item's answer after that.
var errContended = errors.New("sqlstore: the record changed, or was locked by another transaction, each time it was looked at; call again")

// batch is one call of the port, in the order of its keys, so that two calls lock rows in one order.
type batch struct {
	s     *Store
	c     conn // nil: the pool
	key   func(i int) *dedup.Key
	fault func(i int, err error)
	size  func(i int) int // bytes of an item beside the usual; nil: none
	at    map[dedup.Key]int
	told  map[int]bool
}

// begin leaves out what check refuses, and sorts.
func (s *Store) begin(n int, key func(i int) *dedup.Key, check func(i int) error, fault func(i int, err error)) (*batch, []int) {
	b := &batch{s: s, key: key, fault: fault, at: make(map[dedup.Key]int, n)}
	items := make([]int, 0, n)
	for i := range n {
		if err := check(i); err != nil {
			fault(i, err)
			continue
		}
		if _, twice := b.at[*key(i)]; twice {
			fault(i, fmt.Errorf("sqlstore: key %x stands in the batch twice", *key(i)))
			continue
		}
		b.at[*key(i)] = i
		items = append(items, i)
	}
	slices.SortFunc(items, func(a, c int) int { return bytes.Compare(key(a)[:], key(c)[:]) })
	return b, items
}

// each runs a statement for items, or several: cut into pieces that fit one, and smaller where others
// are in the way. Items that cannot be had even alone are told as faults and left.
func (b *batch) each(ctx context.Context, items []int, run func(piece []int) error) error {
	for len(items) > 0 {
		n, total := 0, 0
		for n < len(items) && n < maxRows {
			if b.size != nil {
				total += 2 * b.size(items[n])
			}
			if n > 0 && total > maxBytes {
				break
			}
			n++
		}
		if err := b.piece(ctx, items[:n], run); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// piece runs one statement, and halves what has results and the server finds too big, until the item that is to blame is
// alone. Without results it is no item's fault, but the table's or the server's.
func (b *batch) piece(ctx context.Context, items []int, run func(piece []int) error) error {
	err := b.s.dialect.Contend(ctx, len(items), func(from, to int) error { return run(items[from:to]) }, func(at int, err error) {
		b.tell(items[at], fmt.Errorf("sqlstore: key %x: %w", *b.key(items[at]), err))
	})
	sized := func(i int) bool { return b.size(i) > 0 }
	if err == nil || ctx.Err() != nil || sqldialect.Classify(b.s.dialect, err) != sqldialect.TooBig || b.size == nil || !slices.ContainsFunc(items, sized) {
		return err
	}
	if len(items) == 1 {
		b.tell(items[0], fmt.Errorf("sqlstore: key %x: %w", *b.key(items[0]), tooLarge(b.s.dialect, b.size(items[0]), err)))
		return nil
	}
	half := len(items) / 2
	if err := b.piece(ctx, items[:half], run); err != nil {
		return err
	}
	return b.piece(ctx, items[half:], run)
}

// tooLarge makes dedup.ErrResultTooLarge of a server's refusal of what has a result of that size.
func tooLarge(d Dialect, size int, err error) error {
	if size == 0 || sqldialect.Classify(d, err) != sqldialect.TooBig {
		return err
	}
	return fmt.Errorf("%w, whose limit is below Options.MaxResult (MySQL: max_allowed_packet; results are sent twice as long): it has %d bytes: %w", dedup.ErrResultTooLarge, size, err)
}

// tell gives an item its own fault; it takes no part any more.
func (b *batch) tell(i int, err error) {
	if b.told == nil {
		b.told = make(map[int]bool)
	}
	b.told[i] = true
	b.fault(i, err)
}

// missed are those of items that were neither hit nor told.
func (b *batch) missed(items []int, hit map[int]bool) (rest []int) {
	for _, i := range items {
		if !hit[i] && !b.told[i] {
			rest = append(rest, i)
		}
	}
	return rest
}

// change runs a statement that returns the keys of the rows it changed, or of those it found.
func (b *batch) change(ctx context.Context, text string, shape sqldialect.Shape, items []int, put func(r *sqldialect.Rows, i int)) (hit map[int]bool, err error) {
	hit = make(map[int]bool, len(items))
	err = b.each(ctx, items, func(piece []int) error {
		rows, err := b.s.query(ctx, b.c, text, b.rows(shape, piece, put).Args())
		if err != nil {
			return err
		}
		defer rows.Close()
		var k sql.RawBytes
		var found []int
		for rows.Next() {
			if err := rows.Scan(&k); err != nil {
				return err
			}
			i, err := b.item(k)
			if err != nil {
				return err
			}
			found = append(found, i)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for _, i := range found {
			hit[i] = true
		}
		return nil
	})
	return hit, err
}

// count is change on MySQL, which tells only how many rows it changed: where that is all of them,
// they are hit. Of the others nothing is known.
func (b *batch) count(ctx context.Context, text string, shape sqldialect.Shape, items []int, put func(r *sqldialect.Rows, i int)) (hit map[int]bool, err error) {
	hit = make(map[int]bool, len(items))
	err = b.each(ctx, items, func(piece []int) error {
		res, err := b.s.exec(ctx, b.c, text, b.rows(shape, piece, put).Args())
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		for _, i := range piece {
			if int(n) == len(piece) {
				hit[i] = true
			}
		}
		return err
	})
	return hit, err
}

func (b *batch) rows(shape sqldialect.Shape, items []int, put func(r *sqldialect.Rows, i int)) *sqldialect.Rows {
	r := sqldialect.NewRows(b.s.dialect, shape, len(items))
	for _, i := range items {
		r.Bytes(b.key(i)[:])
		if put != nil {
			put(r, i)
		}
	}
	return r
}

func (b *batch) item(k []byte) (int, error) {
	if len(k) == len(dedup.Key{}) {
		if i, ok := b.at[dedup.Key(k)]; ok {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the database answered for key %x, which nobody asked for", k)
}

// found is a record as it was read; err where the row is none.
type found struct {
	record
	made bool // by the statement that read it
	err  error
}

// read returns the record of each item, and the database's clock.
func (b *batch) read(ctx context.Context, text string, items []int) (records map[int]*found, now int64, err error) {
	records = make(map[int]*found, len(items))
	err = b.each(ctx, items, func(piece []int) error {
		at, err := b.fetch(ctx, text, b.rows(keyShape, piece, nil).Args(), records)
		now = max(now, at) // a piece that failed told no time
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	for _, i := range items {
		if records[i] == nil && !b.told[i] {
			return nil, 0, fmt.Errorf("the database did not answer for key %x", *b.key(i))
		}
	}
	return records, now, nil
}

func (b *batch) fetch(ctx context.Context, text string, args []any, records map[int]*found) (now int64, err error) {
	rows, err := b.s.query(ctx, b.c, text, args)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var k []byte
		f := &found{}
		if now, err = scan(rows, &k, f); err != nil {
			return 0, err
		}
		if now <= 0 {
			return 0, errors.New("the database told no time")
		}
		i, err := b.item(k)
		if err != nil {
			return 0, err
		}
		if f.err != nil {
			f.err = fmt.Errorf("sqlstore: key %x: %w", k, f.err)
		}
		records[i] = f
	}
	return now, rows.Err()
}

// scan reads one row: the key, the clock, the columns.
func scan(rows *sql.Rows, k *[]byte, f *found) (now int64, err error) {
	var revision, state, epoch, attempts, crashes, redrive, alone, claimed, lease, expires sql.NullInt64
	var owner, print, holder, lastError sql.RawBytes
	err = rows.Scan(k, &now, &revision, &state, &owner, &epoch, &attempts, &crashes, &redrive, &alone,
		&print, &holder, &lastError, &f.result, &claimed, &lease, &expires)
	if err != nil {
		return 0, err
	}
	f.epoch = epoch.Int64
	if !revision.Valid {
		f.made = epoch.Valid
		return now, nil
	}
	f.record = record{
		state: dedup.State(state.Int64), epoch: epoch.Int64, attempts: attempts.Int64, crashes: crashes.Int64, redrive: redrive.Int64,
		alone: alone.Int64 != 0, holder: string(holder), lastError: string(lastError), result: f.result,
		claimed: claimed.Int64, lease: lease.Int64, expires: expires.Int64, revision: revision.Int64,
	}
	if len(owner) != len(f.owner) || print != nil && len(print) != len(f.fingerprint) || state.Int64 < 0 || state.Int64 > 255 {
		f.err = errGarbage
		return now, nil
	}
	copy(f.owner[:], owner)
	copy(f.fingerprint[:], print)
	f.err = f.check()
	return now, nil
}

// putRecord gives all of a row but its key: r replaces what has revision was, or nothing if 0.
func putRecord(rows *sqldialect.Rows, r *record, now int64) {
	next := r.revision + 1
	if r.revision == 0 {
		next = now // a later life of the key begins with a revision that no earlier one had
	}
	rows.Int(r.revision)
	rows.Int(next)
	rows.Int(int64(r.state))
	rows.Bytes(r.owner[:])
	rows.Int(r.epoch)
	rows.Int(r.attempts)
	rows.Int(r.crashes)
	rows.Int(r.redrive)
	rows.Int(bit(r.alone))
	putPrint(rows, &r.fingerprint)
	rows.Text(sqldialect.CleanText(r.holder, maxHolder))
	rows.Text(sqldialect.CleanText(r.lastError, maxReason))
	putResult(rows, r.result)
	rows.Int(r.claimed)
	if r.lease == 0 {
		rows.Null()
	} else {
		rows.Int(r.lease)
	}
	rows.Int(r.expires)
}

func putPrint(rows *sqldialect.Rows, f *dedup.Fingerprint) {
	if *f == (dedup.Fingerprint{}) {
		rows.Null()
		return
	}
	rows.Bytes(f[:])
}

func putResult(rows *sqldialect.Rows, result []byte) {
	if len(result) == 0 {
		rows.Null()
		return
	}
	rows.Bytes(result)
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
