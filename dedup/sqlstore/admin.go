package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// Inspect implements dedup.Admin.
func (s *Store) Inspect(ctx context.Context, k dedup.Key) (dedup.Record, error) {
	r, now, err := s.look(ctx, k, s.text.read)
	switch {
	case err != nil:
		return dedup.Record{}, fmt.Errorf("sqlstore: inspect: %w", s.explain(err))
	case r == nil || r.err == nil && !r.there(now):
		return dedup.Record{}, dedup.ErrNotFound
	case r.err != nil:
		return dedup.Record{}, r.err
	}
	return r.inspect(k), nil
}

// look reads one record; nil where no row was answered.
func (s *Store) look(ctx context.Context, k dedup.Key, text string) (*found, int64, error) {
	b, items := s.begin(1, func(int) *dedup.Key { return &k }, func(int) error { return nil }, func(int, error) {})
	records, now, err := b.read(ctx, text, items)
	return records[0], now, err
}

// Forget implements dedup.Admin.
func (s *Store) Forget(ctx context.Context, k dedup.Key) error {
	res, err := s.exec(ctx, nil, s.text.forget, []any{k[:]})
	if err != nil {
		return fmt.Errorf("sqlstore: forget: %w", s.explain(err))
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	r, _, err := s.look(ctx, k, s.text.glance)
	if err != nil {
		return fmt.Errorf("sqlstore: forget: %w", s.explain(err))
	}
	if r != nil && r.revision != 0 {
		return dedup.ErrInProgress
	}
	return nil
}

// cleanUp is how long what must be undone may take once ctx has ended.
const cleanUp = 5 * time.Second

// sweepRows bounds one SweepBatch, and with it how long its locks last.
const sweepRows = 250 // of 1,000 they last long enough to be seen in the slowest hundredth of claims

// SweepBatch implements dedup.Sweeper: it deletes up to 250 records whose retention is over, and none
// while another process does. It never deletes a claim whose lease runs. After a full batch it rests for
// about as long as that took, so that whoever calls it again at once leaves half of the database to claims.
func (s *Store) SweepBatch(ctx context.Context) (int, error) {
	begun := time.Now()
	n, err := s.sweep(ctx)
	if err != nil {
		return 0, fmt.Errorf("sqlstore: sweep: %w", s.explain(err))
	}
	if n == sweepRows {
		sqldialect.Pause(ctx, time.Since(begun)*4/3)
	}
	return int(n), nil
}

func (s *Store) sweep(ctx context.Context) (int64, error) {
	if s.dialect == MySQL {
		return s.sweepMySQL(ctx)
	}
	res, err := s.exec(ctx, nil, s.text.sweep, nil)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// sweepMySQL takes turns by a named lock, and deletes at READ COMMITTED: at REPEATABLE READ, the
// server's default, the gaps between expired records would be closed to new claims meanwhile.
func (s *Store) sweepMySQL(ctx context.Context) (n int64, err error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	name := s.table.LockName("sweep")
	var turn sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT GET_LOCK("+name+", 0)").Scan(&turn); err != nil || turn.Int64 != 1 {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		_, e := c.ExecContext(ctx, "DO RELEASE_LOCK("+name+")") // the end of the connection releases it, too
		if err == nil {
			err = e
		}
	}()
	tx, err := c.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	res, err := tx.ExecContext(ctx, s.text.sweep)
	if err != nil {
		_ = tx.Rollback()
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
