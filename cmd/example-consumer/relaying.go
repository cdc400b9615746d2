package main

import (
	"context"
	"fmt"
	"net/http"
)

// relaying is how a trial's orders get to the broker with --outbox: the desk commits them, relays publish them.
type relaying struct {
	dsn     string // of the desk's database; empty: without an outbox
	desk    *desk
	relays  *relayDirector
	passage *passage // at the end
}

const relayPath = "/relay"

// openDesk has the relays report beside the consumers.
func (t *trial) openDesk(ctx context.Context, mux *http.ServeMux) (err error) {
	if t.dsn == "" {
		return nil
	}
	if t.desk, err = openDesk(ctx, t.dsn, t.topic); err != nil {
		return fmt.Errorf("the desk's database: %w", err)
	}
	t.relays = newRelayDirector(t.plan, t.director.ledger, t.desk.pending, t.kill)
	mux.Handle(relayPath, t.relays)
	return nil
}

func (t *trial) closeDesk() {
	if t.desk != nil {
		_ = t.desk.close() // its folder goes with it
	}
}

// takeOrders is publish where relays do that.
func (t *trial) takeOrders(ctx context.Context, orders []string) error {
	for _, id := range orders {
		if err := t.desk.take(ctx, id, t.plan.declined[id]); err != nil {
			return fmt.Errorf("take %s: %w", id, err)
		}
	}
	return nil
}

// unrelayed is how many messages wait in the outbox.
func (t *trial) unrelayed(ctx context.Context) (int, error) {
	if t.desk == nil {
		return 0, nil
	}
	pending, err := t.desk.pending(ctx)
	return len(pending), err
}

// countPassage takes what the desk's database has into the numbers.
func (t *trial) countPassage(ctx context.Context) (err error) {
	if t.desk == nil {
		return nil
	}
	t.passage = t.relays.passage()
	t.passage.RolledBack = len(t.plan.declined)
	t.passage.orders, t.passage.Committed, err = t.desk.committed(ctx)
	return err
}
