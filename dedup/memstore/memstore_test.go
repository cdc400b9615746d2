package memstore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

// virtual returns a Config of one Store whose clock stands still but for Advance.
func virtual() deduptest.Config {
	var passed atomic.Int64
	begun := time.Now()
	s := memstore.New()
	s.SetNow(func() time.Time { return begun.Add(time.Duration(passed.Load())) })
	return deduptest.Config{
		Open:    func(testing.TB) dedup.Store { return s },
		Advance: func(_ testing.TB, d time.Duration) { passed.Add(int64(d)) },
	}
}

func TestStore(t *testing.T) {
	deduptest.TestStore(t, virtual())
}
