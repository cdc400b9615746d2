// Command gin guards a route of a gin engine. An engine is an http.Handler, so the middleware stands in front of the
// one that has the routes to guard, and authentication in front of that.
package main

import (
	"io"
	"log"
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"

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
	engine := gin.New()
	engine.POST("/payments", s.pay)
	return authenticated(idempotent(engine)), nil
}

func (s *shop) pay(c *gin.Context) {
	s.runs.Add(1)
	switch amount, err := io.ReadAll(c.Request.Body); {
	case err != nil || string(amount) == "down":
		c.String(http.StatusServiceUnavailable, "try again") // not remembered
	case string(amount) == "bad":
		c.String(http.StatusTeapot, "no such amount") // remembered
	default:
		c.Status(http.StatusCreated)
	}
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
