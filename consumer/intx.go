package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
)

// TxHandler is a Handler whose writes through tx commit together with the verdict on m, or not at
// all: the effect happens once whatever dies when. It neither commits nor rolls back; what it
// returns says which. It is called again within the attempt, with a new tx, where the database gives
// the transaction up (a deadlock, a serialization failure).
type TxHandler func(ctx context.Context, tx *sql.Tx, m *Message) error

// NewInTx is New for a TxHandler. The Guard's store must be a dedup.TxStore (sqlstore, tierstore), and
// tx is of its database. Options.Middleware runs inside the transaction.
//
// A database that goes away in the middle costs no attempt: the message is claimed again, which
// tells whether the commit had happened.
func NewInTx(s Source, g *dedup.Guard, h TxHandler, o *Options) (*Consumer, error) {
	if h == nil {
		return nil, errors.New("consumer: NewInTx: handler is nil")
	}
	inner := func(ctx context.Context, m *Message) error { return h(ctx, ctx.Value(txKey{}).(*sql.Tx), m) }
	c, err := New(s, g, inner, o)
	if err != nil {
		return nil, err
	}
	if err := g.JoinsTx(); err != nil {
		return nil, fmt.Errorf("consumer: NewInTx: %w", err)
	}
	if c.opts.AllowNoID {
		return nil, errors.New("consumer: NewInTx contradicts Options.AllowNoID: a message without a name has no verdict to commit; leave AllowNoID unset, and such a message is dead-lettered")
	}
	c.handler = inTx(c.handler)
	return c, nil
}

type txKey struct{}

// inTx has h run inside the transaction that finishes the claim.
func inTx(h Handler) Handler {
	return func(ctx context.Context, m *Message) error {
		err := dedup.ClaimFrom(ctx).CompleteInTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			return h(context.WithValue(ctx, txKey{}, tx), m.clone()) // a run that was given up may have changed it
		})
		if errors.Is(err, dedup.ErrTxEnded) { // each further attempt could commit its effect once more
			return Permanent(err)
		}
		return err
	}
}

// undecided claims t again, by which it is told whether t happened. The claim of a transaction
// whose end is not known is found under its own token, so that no lease has to end first.
func (e *engine) undecided(t *task) {
	err := t.result
	if !errors.Is(err, dedup.ErrUnavailable) {
		t.cutOff = 0
		e.askAgain(t)
		return
	}
	// Within the lease, for as long as the claim's token is known to be ours.
	pause := min(txPause<<t.cutOff, e.c.guard.Options().Lease/3)
	if t.cutOff++; t.cutOff == cutOffs {
		t.cutOffBy = err
	}
	e.log.Warn("consumer: the database went away inside a transaction; the message is claimed again, which tells whether it happened", "scope", t.Scope, "id", short(t.Message.ID), "in", pause, "err", err)
	if e.turn == t {
		e.nextTurn()
	}
	e.askLater(t, time.Now(), pause)
}

const (
	txPause = time.Second // what a database that went away gets, doubling to a third of the lease

	// cutOffs is after how many transactions in a row that were cut off, while claims between them were answered,
	// a message is taken for what does it, and an attempt is counted: a statement that takes the server's
	// process down, rows that were left open on the connection.
	cutOffs = 10
)
