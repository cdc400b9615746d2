package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// InTx begins a transaction, runs f in it, commits where f returned nil, and then wakes the relays of this
// Outbox. An error of f comes back as it is, after the rollback. An error of the commit may mean that it happened; where f
// ended the transaction, or passed over an error at which MySQL or SQLite took it back, it is dedup.ErrTxEnded.
func (o *Outbox) InTx(ctx context.Context, opts *sql.TxOptions, f func(ctx context.Context, tx *sql.Tx) error) error {
	if f == nil {
		return errors.New("outbox: in tx: f is nil; pass the function that writes")
	}
	tx, err := o.db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("outbox: in tx: begin: %w", err)
	}
	defer tx.Rollback() // after the commit it is nothing; else, with a panic of f too, it is what is left
	if err := o.mark(ctx, tx, "SAVEPOINT "); err != nil {
		return fmt.Errorf("outbox: in tx: begin: %w", err)
	}
	if err := f(ctx, tx); err != nil {
		return err
	}
	err = o.mark(ctx, tx, "RELEASE SAVEPOINT ")
	gone := sqldialect.NoSavepoint(o.dialect, err)
	if err == nil {
		err = tx.Commit()
	}
	if gone || errors.Is(err, sql.ErrTxDone) {
		o.Wake() // in case that something is committed
		return fmt.Errorf("outbox: in tx: %w, or passed over an error at which the server did: what it wrote before may be lost, and what it wrote after that committed by itself; "+
			"return nil to commit and every error to roll back, and call neither Commit nor Rollback: %w", dedup.ErrTxEnded, err)
	}
	if err != nil {
		return fmt.Errorf("outbox: in tx: commit: %w", err)
	}
	o.Wake()
	if o.notify {
		o.tell(ctx)
	}
	return nil
}

// mark puts a savepoint at the beginning of a transaction, or takes it away at the end, which fails where the transaction has ended
// meanwhile: MySQL and SQLite commit by itself what is written after that. PostgreSQL would answer nothing more.
func (o *Outbox) mark(ctx context.Context, tx *sql.Tx, verb string) error {
	if o.dialect == PostgreSQL {
		return nil
	}
	_, err := tx.ExecContext(ctx, verb+"idemq_outbox_tx")
	return err
}

// Wake makes the relays of this Outbox that run in this process look now: call it after a commit.
func (o *Outbox) Wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.relays {
		r.Wake()
	}
}

func (o *Outbox) register(r *Relay, runs bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if runs {
		o.relays[r] = true
	} else {
		delete(o.relays, r)
	}
}

// Channel is the channel of PostgreSQL's NOTIFY that stands for the table.
func (o *Outbox) Channel() string { return o.table.String() }

// maxChannel is what PostgreSQL takes.
const maxChannel = 63

// notifyEvery is how much of its time a process spends on telling others, at most.
const notifyEvery = 10 * time.Millisecond

// tell notifies the relays of other processes. Where that fails, or it was done a moment ago, they
// find the message when they poll.
func (o *Outbox) tell(ctx context.Context) {
	now := time.Now()
	o.mu.Lock()
	early := now.Sub(o.notified) < notifyEvery
	if !early {
		o.notified = now
	}
	o.mu.Unlock()
	if early {
		return
	}
	_, _ = o.db.ExecContext(ctx, "SELECT pg_notify($1, '')", o.Channel())
}

// listen wakes the relay for each notification.
func (r *Relay) listen(ctx context.Context) {
	for n := 0; ctx.Err() == nil; {
		began := time.Now()
		err := r.opts.Listen(ctx, r.o.Channel(), r.Wake)
		if ctx.Err() != nil {
			return
		}
		if n++; time.Since(began) > r.opts.MaxBackoff {
			n = 1
		}
		r.opts.Logger.Warn("outbox: listen: trying again; relays poll meanwhile", "table", r.o.table.String(), "error", err)
		sleep(ctx, r.backoff(n))
	}
}
