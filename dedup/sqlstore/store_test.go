package sqlstore_test

import (
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
)

func (b *base) config(tb testing.TB) deduptest.Config {
	b.store(tb)
	return deduptest.Config{
		Open: func(tb testing.TB) dedup.Store { return b.bare(tb, nil) },
		Corrupt: func(tb testing.TB, k dedup.Key) {
			query := "UPDATE %s SET state = 99 WHERE k = $1"
			if b.dialect == "mysql" {
				query = "UPDATE %s SET state = 99 WHERE k = ?"
			}
			b.exec(tb, query, k[:])
		},
	}
}

func TestStore(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		t.Parallel()
		deduptest.TestStore(t, b.config(t))
	})
}

func TestModel(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		t.Parallel()
		c := b.config(t)
		c.Lease = 20 * time.Millisecond // each run waits for several
		deduptest.CheckModel(t, c)
	})
}
