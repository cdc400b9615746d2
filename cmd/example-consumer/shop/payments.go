package shop

import (
	"encoding/json"
	"net/http"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
)

// takePayment orders and pays in one request, for programs. It runs behind httpdedup.Middleware: whoever
// sends the request again with its Idempotency-Key is given this answer again.
func (s *Shop) takePayment(w http.ResponseWriter, r *http.Request) {
	o, err := orderOf(r, "payment")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // remembered as well
		return
	}
	o.ID = numberFor(dedup.ClaimFrom(r.Context()).Work.ID)
	if err := s.place(r.Context(), o); err != nil {
		s.parts.Logger.Error("shop: a payment failed", "err", err)
		http.Error(w, "try again with the same key", http.StatusServiceUnavailable) // not remembered: the next try runs
		return
	}
	httpdedup.EffectDone(r.Context())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/ledger#"+o.ID)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o) // an error means that the client has gone
}
