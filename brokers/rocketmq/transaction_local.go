package rocketmq

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// outcome is what this process knows of a local transaction that it has ended.
type outcome int

const (
	unknown     outcome = iota // fn may have ended it, who knows how
	unanswered                 // COMMIT was sent, and may have happened
	committed                  // with its marker
	undone                     // rolled back, and COMMIT was never sent
	conflicted                 // undone, and wanted again from the beginning
	forestalled                // undone, because the marker's key was there
)

// localTries is how often a local transaction may meet a conflict.
const localTries = 10

var errLimit = errors.New("the local transaction has taken longer than TransactionOptions.Limit")

// carryOut runs the local transaction of h and tells the broker how it ended, if that is known.
func (p *TransactionProducer) carryOut(ctx context.Context, h *half, fn func(context.Context, *sql.Tx) error) error {
	local, cancel := context.WithTimeoutCause(ctx, p.opt.Limit-h.age(), errLimit)
	defer cancel()
	end, err := p.localTx(local, h, fn)
	for n := 1; end == conflicted && n < localTries && sqldialect.Pause(local, time.Duration(n)*10*time.Millisecond); n++ {
		end, err = p.localTx(local, h, fn)
	}
	if end == conflicted {
		end, err = undone, fmt.Errorf("%w: %w", dedup.ErrConflict, err)
	}
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(local), errLimit) {
		err = fmt.Errorf("%w, %v: %w", errLimit, p.opt.Limit, err)
	}
	if end == committed {
		p.conclude(ctx, h, sayCommit)
		return nil
	}
	return p.lookBack(ctx, h, end, err)
}

// lookBack ends what has not plainly committed, by what the marker says. Only a transaction that can
// no longer commit is called rolled back here; all others are left to the broker, which asks.
func (p *TransactionProducer) lookBack(ctx context.Context, h *half, end outcome, err error) error {
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	mark, lost := p.markers.look(look, h.key)
	switch {
	case lost != nil:
		return err
	case mark == markCommitted || mark == markConfirmed:
		p.conclude(ctx, h, sayCommit)
		if end == unanswered || end == forestalled {
			return nil // it was the answer to COMMIT that was lost, of this try or an earlier one
		}
		return fmt.Errorf("%w: it is committed, and the message will be delivered: %w", dedup.ErrTxEnded, err)
	case end == forestalled && mark == markTombstone:
		return ErrRolledBack
	case end == undone && mark == markAbsent:
		p.conclude(ctx, h, sayRollback)
	}
	return err
}

// conclude tells the broker the end of h. Where that fails the broker asks, later.
func (p *TransactionProducer) conclude(ctx context.Context, h *half, word int) {
	_, err := p.client.call(context.WithoutCancel(ctx), h.addr, endOf(h.position, p.wireGroup, h.key, word, false))
	switch {
	case err == nil && word == sayCommit:
		p.confirm(h.key)
	case err != nil && p.quiet.allow("end"):
		p.log.Warn("rocketmq: the end of a transaction could not be told; the broker will ask", "key", h.key, "error", err)
	}
}

// localTx is one try. The marker is the first thing that the transaction writes: from then on a
// check-back waits for its end, instead of deciding it.
func (p *TransactionProducer) localTx(ctx context.Context, h *half, fn func(context.Context, *sql.Tx) error) (outcome, error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return undone, fmt.Errorf("begin: %w", err)
	}
	tx, err := conn.BeginTx(ctx, p.opt.Tx)
	if err != nil {
		_ = conn.Close()
		return undone, fmt.Errorf("begin: %w", err)
	}
	over := false
	defer func() {
		if !over { // a panic in fn, or runtime.Goexit; it goes on
			_ = tx.Rollback()
			_ = conn.Close()
		}
	}()
	if err = p.markers.mark(ctx, tx, h); err != nil {
		over = true
		if sqldialect.Classify(p.markers.dialect, err) == sqldialect.Duplicate {
			_, err = p.rollBack(ctx, conn, tx, fmt.Errorf("marker: %w", err))
			return forestalled, err
		}
		return p.rollBack(ctx, conn, tx, fmt.Errorf("marker: %w", p.markers.explain(err)))
	}
	if err = p.inTime(h); err == nil {
		err = fn(ctx, tx)
	}
	over = true
	if err != nil {
		return p.rollBack(ctx, conn, tx, err)
	}
	there, err := p.markers.holds(ctx, tx, h.key)
	switch {
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		_ = conn.Close()
		return unknown, fmt.Errorf("%w: return nil to commit or an error to roll back, and call neither Commit nor Rollback", dedup.ErrTxEnded)
	case err != nil:
		return p.rollBack(ctx, conn, tx, fmt.Errorf("before commit: %w", err))
	case !there:
		_, _ = p.rollBack(ctx, conn, tx, nil)
		return unknown, fmt.Errorf("%w: its marker is gone, so it was rolled back before, by a statement of its own or by the server at an error that was passed over", dedup.ErrTxEnded)
	}
	if err = p.inTime(h); err != nil {
		return p.rollBack(ctx, conn, tx, err)
	}
	return p.commit(ctx, conn, tx)
}

// inTime refuses a transaction whose tombstone could be gone already: that of a process which stood
// still, and did not see its context end. Once the marker is written no tombstone can come.
func (p *TransactionProducer) inTime(h *half) error {
	if h.age() > p.opt.Limit {
		return fmt.Errorf("%w, %v", errLimit, p.opt.Limit)
	}
	return nil
}

// rollBack ends the transaction of err, which comes back with what the database's part in it means.
func (p *TransactionProducer) rollBack(ctx context.Context, conn *sql.Conn, tx *sql.Tx, err error) (outcome, error) {
	class := sqldialect.Classify(p.markers.dialect, err)
	ended := tx.Rollback()
	if ended != nil && !errors.Is(ended, sql.ErrTxDone) {
		discard(conn)
	}
	_ = conn.Close()
	switch {
	case errors.Is(ended, sql.ErrTxDone) && ctx.Err() == nil: // fn has ended it, who knows how
		return unknown, fmt.Errorf("%w, and failed: %w", dedup.ErrTxEnded, err)
	case errors.Is(ended, sql.ErrTxDone):
		return unknown, err
	case class == sqldialect.Conflict:
		return conflicted, err
	case class == sqldialect.Unreachable && ctx.Err() == nil, ended != nil:
		return undone, fmt.Errorf("the connection was lost in the middle of the transaction: %w", err)
	}
	return undone, err
}

// commit waits for the server no longer than ctx. Some drivers do not watch it while they commit:
// then the connection is left to its own time-out. After an error the connection is thrown away,
// since SQLite can refuse a COMMIT and leave the transaction open, which not every driver mends. No error means "rollback": some come after the
// commit was made.
func (p *TransactionProducer) commit(ctx context.Context, conn *sql.Conn, tx *sql.Tx) (outcome, error) {
	done := make(chan error, 1)
	go func() {
		err := tx.Commit()
		if err != nil {
			discard(conn)
		}
		_ = conn.Close()
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		default:
			return unanswered, fmt.Errorf("commit: %w: it may have happened: %w", dedup.ErrUnavailable, context.Cause(ctx))
		}
	}
	switch {
	case err == nil:
		return committed, nil
	case sqldialect.Classify(p.markers.dialect, err) == sqldialect.Conflict:
		return conflicted, err // were it committed all the same, the next try would find its marker
	case sqldialect.Answered(p.markers.dialect, err):
		return unanswered, fmt.Errorf("commit: %w", err)
	}
	return unanswered, fmt.Errorf("commit: %w: it may have happened: %w", dedup.ErrUnavailable, err)
}

// discard keeps a connection from being used again.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}
