package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// A transaction that the database gave up is begun again this often, after pauses that double
// between these bounds.
const (
	txTries     = 10
	txPause     = 5 * time.Millisecond
	longTxPause = 200 * time.Millisecond
)

// JoinsTx returns nil when DoInTx and CompleteInTx can be used with this Guard, else the reason why not.
func (g *Guard) JoinsTx() error {
	if _, ok := g.store.(TxStore); !ok {
		return fmt.Errorf("dedup: a verdict inside a transaction needs a store that joins transactions (sqlstore, tierstore); the Guard has %T", g.store)
	}
	if g.opts.FailOpen {
		return errors.New("dedup: a verdict inside a transaction contradicts Options.FailOpen: an unprotected run has no verdict to commit; leave FailOpen unset")
	}
	return nil
}

// DoInTx is Do with exactly-once effect: what fn writes through tx and the verdict commit
// together. The Guard's store must be a [TxStore] (sqlstore, tierstore); tx is of its database, is
// begun before fn and ended after it, so fn neither commits nor rolls back: returning nil or an
// error says that. fn is called again, with a new tx, where the database asks for it
// (a deadlock, a serialization failure), ten times at most. Where fn has ended tx itself the error wraps
// ErrTxEnded, and what it committed would be committed once more by the next try.
//
// An error that wraps ErrUnavailable means that the database went away: nothing happened, or, if it
// does not answer the question after that either, it is not known; the next DoInTx tells.
func (g *Guard) DoInTx(ctx context.Context, w Work, fn func(ctx context.Context, tx *sql.Tx) error) (ran bool, err error) {
	if err := g.JoinsTx(); err != nil {
		return false, err
	}
	_, ran, err = g.do(ctx, w, func(ctx context.Context, c *Claim) (again bool, err error) { return c.runInTx(ctx, fn) })
	return ran, err
}

// runInTx is run for work in a transaction. A panic has rolled it back before it comes by here.
func (c *Claim) runInTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) (again bool, err error) {
	work, cancel := c.Context(ctx)
	defer cancel()
	returned := false
	defer func() {
		if !returned {
			_ = c.settle(ctx, Outcome{State: Retryable, Cause: errors.New("panic")})
		}
	}()
	err = c.CompleteInTx(work, fn)
	returned = true
	switch {
	case err == nil:
		return false, nil
	case !c.Undecided():
		return false, c.failed(ctx, work, err)
	case errors.Is(err, ErrUnavailable):
		return false, c.whetherCommitted(ctx, err)
	}
	return true, err
}

// whetherCommitted asks the store what became of a transaction whose end was not answered.
func (c *Claim) whetherCommitted(ctx context.Context, unsure error) error {
	ctx = context.WithoutCancel(ctx)
	now, err := c.g.Claim(ctx, c.Work)
	switch {
	case err != nil:
		return unsure
	case now.State == Done:
		return nil
	}
	return errors.Join(unsure, now.Release(ctx))
}

// CompleteInTx begins a transaction, calls fn and commits its writes and the verdict Done as one.
// It begins anew, and calls fn again, where the database asks for that (a deadlock, a
// serialization failure), up to ten times in all, within ctx and for as long as the claim is held.
//
// On an error of fn's own, a panic, ErrConflict and ErrTxEnded nothing was written, save what fn
// committed by itself, and the claim is still held: Fail or Release it. ErrSuperseded: another owner
// has taken over, and nothing was written. ErrUnavailable: the database went away, and the commit
// may have happened; claim the work again with the same Guard, and the answer tells.
func (c *Claim) CompleteInTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := c.g.JoinsTx(); err != nil {
		return err
	}
	if ClaimFrom(ctx) != c {
		var cancel context.CancelFunc
		ctx, cancel = c.Context(ctx)
		defer cancel()
	}
	pause := txPause
	for n := 1; ; n++ {
		err := c.inTx(ctx, fn)
		if !errors.Is(err, ErrConflict) || !c.Held() || n == txTries {
			return err
		}
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(context.Cause(ctx), err)
		}
		pause = min(2*pause, longTxPause)
	}
}

// Undecided reports that CompleteInTx found the claim superseded, or does not know whether it
// committed: only another claim of the same work tells whether it happened.
func (c *Claim) Undecided() bool {
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.undecided
}

// inTx is one transaction.
func (c *Claim) inTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	q, err := c.beginTx()
	if err != nil {
		return err
	}
	defer c.setClosing(false)
	var own error // what fn said, which the store hands back as it is
	err = c.g.store.(TxStore).InTx(ctx, q, func(tx *sql.Tx) error {
		if own = fn(ctx, tx); own == nil {
			c.setClosing(true)
		}
		return own
	})
	return c.endTx(err, own)
}

// setClosing tells the heartbeat that the transaction with the verdict is about to end, or has ended.
func (c *Claim) setClosing(on bool) {
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	c.closing = on
}

// beginTx is Outcome.begin for a verdict that is still to come.
func (c *Claim) beginTx() (FinishRequest, error) {
	q, ask, err := (&Outcome{Claim: c, State: Done}).begin()
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	c.finishing = false
	if err == nil && !ask {
		err = fmt.Errorf("dedup: %s %q is done already: its verdict cannot be committed again", c.Work.Scope, c.Work.ID)
	}
	return q, err
}

// endTx takes in what became of the transaction.
func (c *Claim) endTx(answer, own error) error {
	var cause string
	lost := errors.Is(answer, ErrRecordLost)
	switch {
	case answer == nil:
		cause = Done.String()
	case own != nil && (errors.Is(own, ErrUnavailable) || !errors.Is(answer, ErrUnavailable)):
		return answer // fn's own word, or a conflict that it met
	case errors.Is(answer, ErrUnavailable):
		cause = "unknown"
		asked := c.held.ClaimRequest
		asked.Redrive = c.Work.Redrive // the record's may be higher, and the next claim asks with this one
		c.g.unsure.put([]ClaimRequest{asked}, asked.Lease)
	case lost || errors.Is(answer, ErrSuperseded):
		if cause = "superseded"; lost {
			cause = "record_lost"
			answer = fmt.Errorf("%w: %w", ErrSuperseded, answer)
		}
	default:
		return answer
	}
	b := &c.g.beats
	b.mu.Lock()
	if answer == nil {
		if !time.Now().Before(c.deadline) {
			cause = "late"
		}
		c.finished = Done
	} else {
		c.undecided = true
		c.lose()
	}
	b.drop(c)
	b.mu.Unlock()
	c.g.Emit(Event{Name: "finish", Scope: c.Work.Scope, Cause: cause, N: 1})
	if answer != nil {
		return fmt.Errorf("dedup: finish %s %q in its transaction: %w", c.Work.Scope, c.Work.ID, answer)
	}
	return nil
}
