// Command chi guards a route of a chi router. Its middleware is net/http's, so there is nothing to adapt.
package main

import (
	"io"
	"log"
	"net/http"
	"sync/atomic"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
)

type shop struct{ runs atomic.Int64 }

func (s *shop) routes(guard *dedup.Guard) (http.Handler, error) {
	idempotent, err := httpdedup.Middleware(guard, "payments", caller, nil)
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(middleware.BasicAuth("shop", map[string]string{"ann": "", "bob": ""})) // authentication comes first
	r.With(idempotent).Post("/payments", s.pay)
	return r, nil
}

func (s *shop) pay(w http.ResponseWriter, r *http.Request) {
	s.runs.Add(1)
	switch amount, err := io.ReadAll(r.Body); {
	case err != nil || string(amount) == "down":
		http.Error(w, "try again", http.StatusServiceUnavailable) // not remembered
	case string(amount) == "bad":
		http.Error(w, "no such amount", http.StatusTeapot) // remembered
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

// caller is who was authenticated.
func caller(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

func main() {
	guard, err := dedup.New("shop", memstore.New(), nil) // redisstore or sqlstore, where there is more than one process
	if err != nil {
		log.Fatal(err)
	}
	routes, err := (&shop{}).routes(guard)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", routes))
}
