package memstore_test

import (
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestLongRandomRunsAreAnsweredByTheRules(t *testing.T) {
	deduptest.CheckModel(t, virtual())
}

func BenchmarkStore(b *testing.B) {
	deduptest.BenchmarkStore(b, deduptest.Config{Open: func(testing.TB) dedup.Store { return memstore.New() }})
}
