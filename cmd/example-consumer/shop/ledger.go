package shop

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/idemq/idemq/consumer"
)

// book is the handler of orders that arrive from the broker. tx also takes the verdict that they were booked.
func (s *Shop) book(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return consumer.Permanent(fmt.Errorf("not an order: %w", err))
	}
	return s.tables.book(ctx, tx, o)
}

// ledgerPage is the page of what was booked.
type ledgerPage struct {
	sums
	Entries []order
	You     string // which of them are the visitor's
}

const entriesShown = 50

func (s *Shop) showLedger(w http.ResponseWriter, r *http.Request) {
	page := ledgerPage{You: pseudonym(customerOf(r))}
	var err error
	if page.sums, err = s.tables.sums(r.Context(), s.parts.DB); err == nil {
		page.Entries, err = s.tables.ledger(r.Context(), s.parts.DB, entriesShown)
	}
	if err != nil {
		s.fail(w, r, outOfReach, err)
		return
	}
	if page.OnTheirWay() > 0 {
		w.Header().Set("Refresh", "1") // until nothing is
	}
	w.Header().Set("Cache-Control", "no-store")
	s.show(w, http.StatusOK, "ledger", page)
}
