// Command echo guards a route of an echo server.
package main

import (
	"io"
	"log"
	"net/http"
	"sync/atomic"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

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
	e := echo.New()
	e.Use(middleware.BasicAuth(func(name, _ string, _ echo.Context) (bool, error) { return name != "", nil })) // authentication comes first
	e.POST("/payments", s.pay, echo.WrapMiddleware(idempotent), errorsInside)
	return e, nil
}

// errorsInside writes the answer to an error that a handler returns. Without it echo would write it outside, when the
// middleware has already remembered and sent an empty 200.
func errorsInside(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

func (s *shop) pay(c echo.Context) error {
	s.runs.Add(1)
	switch amount, err := io.ReadAll(c.Request().Body); {
	case err != nil || string(amount) == "down":
		return echo.NewHTTPError(http.StatusServiceUnavailable, "try again") // not remembered
	case string(amount) == "bad":
		return echo.NewHTTPError(http.StatusTeapot, "no such amount") // remembered
	default:
		return c.NoContent(http.StatusCreated)
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
