// Package check has what the examples are tested by: the requests of a web shop, and the database and messages of one.
package check

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Payments requires that a payment sent twice is made once, that its answer and the refusal of a bad one are given
// again, and that one which failed on the way is made when it is sent again.
func Payments(t *testing.T, shop http.Handler, runs func() int) {
	t.Helper()
	for _, c := range []struct {
		name, key, body string
		status          int
		replayed        bool
		runs            int
	}{
		{"a new payment", "k1", "12", 201, false, 1},
		{"the same again", "k1", "12", 201, true, 1},
		{"another under its key", "k1", "13", 422, false, 1},
		{"no key", "", "12", 400, false, 1},
		{"one that the handler refuses", "k2", "bad", 418, false, 2},
		{"the same again", "k2", "bad", 418, true, 2},
		{"one that fails", "k3", "down", 503, false, 3},
		{"the same again", "k3", "down", 503, false, 4},
	} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(c.body))
		r.SetBasicAuth("ann", "")
		if c.key != "" {
			r.Header.Set("Idempotency-Key", c.key)
		}
		w := httptest.NewRecorder()
		shop.ServeHTTP(w, r)
		replayed := w.Header().Get("Idempotent-Replayed") == "true"
		if w.Code != c.status || replayed != c.replayed || runs() != c.runs {
			t.Errorf("%s: status %d, replayed %v, handler runs %d; wanted %+v\n%s", c.name, w.Code, replayed, runs(), c, w.Body)
		}
	}
}
