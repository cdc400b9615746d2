package shop

import (
	"context"
	"errors"
	"net/http"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
)

// form is the checkout page.
type form struct {
	Items       []item
	MaxQuantity int
	Token       string
}

// showForm may be kept by the browser, so that its back button brings the same form with the same token: a form that is
// fetched anew has another token, and is another order. So it is sent to another path than its own, since a
// browser forgets what it has of a path that it posts to.
func (s *Shop) showForm(w http.ResponseWriter, r *http.Request) {
	token, err := s.forms.Issue(r.Context(), customerOf(r))
	switch {
	case errors.Is(err, httpdedup.ErrTokenLimit):
		s.fail(w, r, tooMany, err)
		return
	case err != nil:
		s.fail(w, r, outOfReach, err)
		return
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	s.show(w, http.StatusOK, "checkout", form{items, maxQuantity, token})
}

// receipt is the page after an order.
type receipt struct {
	Order order
	Again bool // the form had been sent before
}

// takeForm answers with the receipt itself and not with a redirect to it, which would keep reloads away: here
// a reload sends the form again, and nothing happens.
func (s *Shop) takeForm(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	o, err := orderOf(r, "form")
	if err != nil {
		s.fail(w, r, unclear, err)
		return
	}
	token := r.PostFormValue("token")
	o.ID = numberFor(token)
	err = s.forms.Redeem(r.Context(), customerOf(r), token, func(ctx context.Context) error { return s.place(ctx, o) })
	switch {
	case err == nil:
		s.showReceipt(w, http.StatusOK, receipt{Order: o})
	case errors.Is(err, httpdedup.ErrTokenUsed):
		s.takenBefore(w, r, o.ID)
	case errors.Is(err, httpdedup.ErrTokenForeign):
		s.fail(w, r, foreign, err)
	case errors.Is(err, httpdedup.ErrTokenUnknown):
		s.fail(w, r, expired, err)
	case errors.Is(err, dedup.ErrInProgress):
		s.fail(w, r, underWay, err)
	default:
		s.fail(w, r, outOfReach, err)
	}
}

// takenBefore shows the order that came with the token, whatever the form says this time.
func (s *Shop) takenBefore(w http.ResponseWriter, r *http.Request, id string) {
	o, err := s.tables.order(r.Context(), s.parts.DB, id)
	if err != nil {
		s.fail(w, r, outOfReach, err)
		return
	}
	s.showReceipt(w, http.StatusConflict, receipt{o, true})
}

func (s *Shop) showReceipt(w http.ResponseWriter, status int, page receipt) {
	w.Header().Set("Cache-Control", "no-store")
	s.show(w, status, "receipt", page)
}

const maxForm = 16 << 10
