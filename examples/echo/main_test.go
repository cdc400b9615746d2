package main

import (
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/examples/internal/check"
)

func TestPayments(t *testing.T) {
	guard, err := dedup.New("shop", memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{}
	routes, err := s.routes(guard)
	if err != nil {
		t.Fatal(err)
	}
	check.Payments(t, routes, func() int { return int(s.runs.Load()) })
}
