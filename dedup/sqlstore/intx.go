package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// InTx implements dedup.TxStore. On SQLite the transaction takes the lock to write at once, whatever
// the DSN says, so that work which reads first cannot fail with SQLITE_BUSY_SNAPSHOT when it writes.
func (s *Store) InTx(ctx context.Context, f dedup.FinishRequest, work func(tx *sql.Tx) error) (err error) {
	if f.State != dedup.Done || f.Condemned {
		return fmt.Errorf("sqlstore: in tx: only a claim to run ends in its transaction, as done; this one is to end as %v", f.State)
	}
	if err := s.checkFinish(&f); err != nil {
		return err
	}
	verdict, err := s.prepare(ctx, s.text.verdict) // before: inside, it would need a second connection
	if err != nil {
		return fmt.Errorf("sqlstore: in tx: prepare: %w: %w", dedup.ErrUnavailable, s.explain(err))
	}
	release, err := s.beats.reserve(ctx)
	if err != nil {
		return fmt.Errorf("sqlstore: in tx: begin: %w", err)
	}
	defer release()
	tx, err := s.beginTx(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("sqlstore: in tx: begin: %w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("sqlstore: in tx: begin: %w: %w", dedup.ErrUnavailable, s.explain(err))
	}
	over := false
	defer func() {
		if !over { // a panic in work, or runtime.Goexit; it goes on
			_ = tx.Rollback()
		}
	}()
	if s.text.lock != "" {
		if err := s.lock(ctx, tx, &f); err != nil {
			over = true
			return err
		}
		defer func() { s.unlock(ctx, &f, err) }()
	}
	err = work(tx)
	over = true
	if err != nil {
		return s.afterWork(ctx, tx, err)
	}
	n, err := s.writeVerdict(ctx, tx, verdict, &f)
	var gone *vanishedError
	if errors.As(err, &gone) {
		_ = tx.Rollback()
		return s.afterVanishing(f.Owner, gone)
	}
	s.vanished.forget(f.Owner)
	switch {
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return fmt.Errorf("sqlstore: in tx: %w: the verdict could not go with it; return nil to commit or an error to roll back, and call neither Commit nor Rollback", dedup.ErrTxEnded)
	case err != nil:
		return s.afterVerdict(ctx, tx, "verdict", err)
	case n == 0:
		return s.afterMiss(ctx, tx, &f)
	}
	return s.commit(ctx, tx)
}

func (s *Store) beginTx(ctx context.Context) (*sql.Tx, error) {
	tx, err := s.db.BeginTx(ctx, s.tx)
	if err != nil || s.text.enter == "" {
		return tx, err
	}
	if _, err := tx.ExecContext(ctx, s.text.enter); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

// afterWork ends the transaction of work that returned err, which comes back as it is, unless the
// database had its part in it. Whether the connection was lost the rollback tells: err itself may speak of any
// other connection that work has. Once ctx has ended a connection is closed for that alone: it tells nothing then.
func (s *Store) afterWork(ctx context.Context, tx *sql.Tx, err error) error {
	ended := ctx.Err() != nil
	rolledBack := tx.Rollback()
	switch {
	case ended:
		return err
	case rolledBack != nil && !errors.Is(rolledBack, sql.ErrTxDone) && !sqldialect.Answered(s.dialect, rolledBack): // SQLite refuses where it rolled back by itself
		return fmt.Errorf("%w: the connection was lost in the middle of the transaction: %w", dedup.ErrUnavailable, err)
	case sqldialect.Classify(s.dialect, err) == sqldialect.Conflict:
		return fmt.Errorf("%w: %w", dedup.ErrConflict, err)
	}
	return err
}

// writeVerdict returns how many rows it changed, 1 or 0.
func (s *Store) writeVerdict(ctx context.Context, tx *sql.Tx, verdict *sql.Stmt, f *dedup.FinishRequest) (int64, error) {
	if err := s.leave(ctx, tx); err != nil {
		return 0, err
	}
	var result []byte
	if len(f.Result) > 0 {
		result = f.Result
	}
	ttl := micros(f.Retention)
	args := s.withClock([]any{result, ttl, ttl, f.Key[:], f.Owner[:], int64(f.Epoch)})
	var res sql.Result
	var err error
	if verdict == nil {
		res, err = tx.ExecContext(ctx, s.text.verdict, args...)
	} else {
		res, err = tx.StmtContext(ctx, verdict).ExecContext(ctx, args...)
	}
	if err != nil {
		return 0, tooLarge(s.dialect, len(f.Result), err)
	}
	return res.RowsAffected()
}

// afterVerdict: a statement of this package's own failed, so nothing of the transaction happens.
func (s *Store) afterVerdict(ctx context.Context, tx *sql.Tx, what string, err error) error {
	_ = tx.Rollback()
	kind := error(dedup.ErrUnavailable)
	switch {
	case sqldialect.Classify(s.dialect, err) == sqldialect.Conflict:
		kind = dedup.ErrConflict
	case ctx.Err() != nil:
		return fmt.Errorf("sqlstore: in tx: %s: %w: %w", what, context.Cause(ctx), err)
	case sqldialect.Answered(s.dialect, err):
		return fmt.Errorf("sqlstore: in tx: %s: %w", what, s.explain(err))
	}
	return fmt.Errorf("sqlstore: in tx: %s: %w: %w", what, kind, err)
}

// afterMiss rolls back and finds out, outside the transaction, whose snapshot may be old, why no row
// was the owner's.
func (s *Store) afterMiss(ctx context.Context, tx *sql.Tx, f *dedup.FinishRequest) error {
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("sqlstore: in tx: roll back: %w: %w", dedup.ErrUnavailable, err)
	}
	r, now, err := s.look(ctx, f.Key, s.text.glance)
	if err != nil {
		return fmt.Errorf("sqlstore: in tx: rolled back, why is not known: %w: %w", dedup.ErrUnavailable, s.explain(err))
	}
	switch {
	case r == nil || r.err == nil && r.lostTo(&f.Held, now):
		return fmt.Errorf("sqlstore: in tx: rolled back: %w", dedup.ErrRecordLost)
	case r.err != nil:
		return r.err
	}
	return fmt.Errorf("sqlstore: in tx: rolled back: %w", dedup.ErrSuperseded)
}

// commit waits for the server no longer than ctx. Some drivers do not watch it while they commit: then
// the connection is left to its own time-out.
func (s *Store) commit(ctx context.Context, tx *sql.Tx) error {
	done := make(chan error, 1)
	go func() { done <- tx.Commit() }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		default:
			return fmt.Errorf("sqlstore: in tx: commit: %w: it may have happened: %w", dedup.ErrUnavailable, context.Cause(ctx))
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return fmt.Errorf("sqlstore: in tx: commit: %w", dedup.ErrTxEnded)
	case sqldialect.Classify(s.dialect, err) == sqldialect.Conflict:
		return fmt.Errorf("sqlstore: in tx: commit: %w: %w", dedup.ErrConflict, err)
	case sqldialect.Answered(s.dialect, err):
		return fmt.Errorf("sqlstore: in tx: commit: %w", err)
	}
	return fmt.Errorf("sqlstore: in tx: commit: %w: it may have happened: %w", dedup.ErrUnavailable, err)
}
