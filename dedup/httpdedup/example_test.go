package httpdedup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func routes(guard *dedup.Guard) (http.Handler, error) {
	idempotent, err := httpdedup.Middleware(guard, "payments", caller, nil)
	if err != nil {
		return nil, err
	}
	forms, err := httpdedup.NewTokens(guard, "checkout", nil)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", authenticated(idempotent(http.HandlerFunc(pay))))
	mux.Handle("GET /checkout", authenticated(form(forms)))
	mux.Handle("POST /checkout", authenticated(checkout(forms)))
	return mux, nil
}

func pay(w http.ResponseWriter, r *http.Request) {
	amount, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // not remembered: the next try runs
		return
	}
	// ... charge the card, then:
	httpdedup.EffectDone(r.Context()) // from here on even a 500 is remembered
	w.Header().Set("Location", "/payments/1")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "paid %s\n", amount)
}

func form(forms *httpdedup.Tokens) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, err := forms.Issue(r.Context(), caller(r))
		if err != nil {
			http.Error(w, "try later", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, token) // in a hidden field of the form
	}
}

func checkout(forms *httpdedup.Tokens) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := forms.Redeem(r.Context(), caller(r), r.FormValue("token"), func(ctx context.Context) error {
			return nil // place the order; after an error the token is still good
		})
		switch {
		case err == nil:
			fmt.Fprintln(w, "thank you")
		case errors.Is(err, httpdedup.ErrTokenUsed), errors.Is(err, dedup.ErrInProgress):
			http.Error(w, "you have sent this form already", http.StatusConflict)
		case errors.Is(err, httpdedup.ErrTokenUnknown), errors.Is(err, httpdedup.ErrTokenForeign):
			http.Error(w, "this form has expired, please reload", http.StatusForbidden)
		default:
			http.Error(w, "try later", http.StatusServiceUnavailable)
		}
	}
}

// caller names who is logged in.
func caller(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if caller(r) == "" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func Example() {
	guard, err := dedup.New("shop", memstore.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	shop, err := routes(guard)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("12.50"))
		r.SetBasicAuth("ann", "")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		shop.ServeHTTP(w, r)
		fmt.Printf("%d %q replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 "paid 12.50\n" replayed: ""
	// 201 "paid 12.50\n" replayed: "true"
}

// The key of a request may be elsewhere: here it is the order's number with the number of the try that
// the client means, and only the amount must not differ.
func Example_businessNumber() {
	options := &httpdedup.Options{
		Key: func(r *http.Request, _ []byte) string {
			if r.PathValue("order") == "" || r.Header.Get("Request-Number") == "" {
				return ""
			}
			return r.PathValue("order") + "/" + r.Header.Get("Request-Number")
		},
		Fingerprint: func(r *http.Request, _ []byte) dedup.Fingerprint {
			return dedup.FingerprintOf([]byte(r.FormValue("amount")))
		},
	}
	guard, err := dedup.New("shop", memstore.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	idempotent, err := httpdedup.Middleware(guard, "refunds", caller, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{order}/refund", idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "refunded %s of order %s", r.FormValue("amount"), r.PathValue("order"))
	})))
	for _, body := range []string{"amount=5", "amount=5&attempt=2", "amount=6"} {
		r := httptest.NewRequest(http.MethodPost, "/orders/7/refund", strings.NewReader(body))
		r.SetBasicAuth("ann", "")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Request-Number", "1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// 200 false
	// 200 true
	// 422 false
}
