package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
)

// InTx begins a transaction, runs f in it, commits where f returned nil, and then wakes the relays of this
// Outbox. An error of f comes back as it is, after the rollback. An error of the commit may mean that it happened; where f itself
// ended the transaction it is dedup.ErrTxEnded.
func (o *Outbox) InTx(ctx context.Context, opts *sql.TxOptions, f func(ctx context.Context, tx *sql.Tx) error) error {
	if f == nil {
		return errors.New("outbox: in tx: f is nil; pass the function that writes")
	}
	tx, err := o.db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("outbox: in tx: begin: %w", err)
	}
	defer tx.Rollback() // after the commit it is nothing; else, with a panic of f too, it is what is left
	if err := f(ctx, tx); err != nil {
		return err
	}
	err = tx.Commit()
	if errors.Is(err, sql.ErrTxDone) {
		o.Wake() // in case that f has committed
		return fmt.Errorf("outbox: in tx: %w: return nil to commit or an error to roll back, and call neither Commit nor Rollback", dedup.ErrTxEnded)
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
