package sqlstore_test

import (
	"testing"

	"github.com/idemq/idemq/dedup/deduptest"
)

func BenchmarkStore(b *testing.B) {
	for name, open := range bases {
		b.Run(name, func(b *testing.B) { deduptest.BenchmarkStore(b, open(b).config(b)) })
	}
}
