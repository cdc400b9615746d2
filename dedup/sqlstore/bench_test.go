package sqlstore_test

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

func BenchmarkStore(b *testing.B) {
	for _, name := range []string{"postgresql", "mysql", "sqlite"} {
		b.Run(name, func(b *testing.B) { deduptest.BenchmarkStore(b, bases[name](b).config(b)) })
	}
}

// BenchmarkBesideInbox has the usual inbox, one INSERT for each message that looks away where one is
// there, and this store in one run. ns/op is per message; the inbox only marks it as seen, idemq
// claims and finishes it.
func BenchmarkBesideInbox(b *testing.B) {
	for _, name := range []string{"postgresql", "mysql", "sqlite"} {
		b.Run(name, func(b *testing.B) {
			db := bases[name](b)
			b.Run("insert one by one", func(b *testing.B) { db.inbox(b) })
			for _, size := range []int{1, 16, 128} {
				l := newLoad(b, db.store(b), size)
				b.Run(fmt.Sprintf("idemq claim by %d", size), func(b *testing.B) { l.run(b, l.claim) })
				b.Run(fmt.Sprintf("idemq claim and finish by %d", size), func(b *testing.B) {
					l.run(b, func(b *testing.B) {
						l.claim(b)
						l.finish(b)
					})
				})
				b.Run(fmt.Sprintf("idemq duplicate by %d", size), func(b *testing.B) {
					l.claim(b)
					l.finish(b)
					l.run(b, l.again)
				})
			}
		})
	}
}

func (b *base) inbox(tb *testing.B) {
	text := map[sqlstore.Dialect]string{
		sqlstore.PostgreSQL: "INSERT INTO %s_inbox (scope, id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
		sqlstore.MySQL:      "INSERT INTO %s_inbox (scope, id) VALUES (?, ?) ON DUPLICATE KEY UPDATE id = id",
		sqlstore.SQLite:     "INSERT INTO %s_inbox (scope, id) VALUES (?, ?) ON CONFLICT DO NOTHING",
	}[b.dialect]
	b.exec(tb, "CREATE TABLE IF NOT EXISTS %s_inbox (scope VARCHAR(64) NOT NULL, id VARCHAR(64) NOT NULL, PRIMARY KEY (scope, id))")
	tb.Cleanup(func() { _, _ = b.Exec("DROP TABLE IF EXISTS " + b.table + "_inbox") })
	insert, err := b.PrepareContext(tb.Context(), fmt.Sprintf(text, b.table))
	require.NoError(tb, err)
	defer insert.Close()
	for tb.Loop() {
		k := newKey()
		_, err := insert.ExecContext(tb.Context(), "kafka/billing", fmt.Sprintf("%x", k[:16]))
		require.NoError(tb, err)
	}
}

// load is one batch, over and over.
type load struct {
	store *sqlstore.Store
	in    []dedup.ClaimRequest
	out   []dedup.Verdict
	fin   []dedup.FinishRequest
	errs  []error
}

func newLoad(b *testing.B, s *sqlstore.Store, size int) *load {
	b.Helper()
	return &load{s, make([]dedup.ClaimRequest, size), make([]dedup.Verdict, size), make([]dedup.FinishRequest, size), make([]error, size)}
}

func (l *load) run(b *testing.B, batch func(b *testing.B)) {
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(l.in) {
		batch(b)
	}
}

func (l *load) claim(b *testing.B) {
	for i := range l.in {
		l.in[i] = dedup.ClaimRequest{Key: newKey(), Owner: newOwner(), Lease: 30 * time.Second, Retention: time.Hour, Holder: "host/12345"}
	}
	l.again(b)
}

func (l *load) again(b *testing.B) {
	clear(l.out)
	require.NoError(b, l.store.Claim(b.Context(), l.in, l.out))
}

func (l *load) finish(b *testing.B) {
	for i := range l.in {
		l.fin[i] = dedup.FinishRequest{Held: heldOf(l.in[i], l.out[i]), State: dedup.Done}
	}
	require.NoError(b, l.store.Finish(b.Context(), l.fin, l.errs))
	for _, err := range l.errs {
		require.NoError(b, err)
	}
}

// BenchmarkInTx has a business transaction of one insert bare, and with the verdict in it. The claim,
// which a consumer makes for a whole batch, is left out.
func BenchmarkInTx(b *testing.B) {
	for _, name := range []string{"postgresql", "mysql", "sqlite"} {
		b.Run(name, func(b *testing.B) {
			s := openShop(b, bases[name](b), nil)
			id := 0
			b.Run("bare", func(b *testing.B) {
				for b.Loop() {
					id++
					tx, err := s.BeginTx(b.Context(), map[bool]*sql.TxOptions{true: {Isolation: sql.LevelReadCommitted}}[name != "sqlite"])
					require.NoError(b, err)
					require.NoError(b, s.insertUnder(b.Context(), id)(tx))
					require.NoError(b, tx.Commit())
				}
			})
			b.Run("with the verdict", func(b *testing.B) {
				var held []dedup.Held
				for b.Loop() {
					if len(held) == 0 {
						b.StopTimer()
						held = acquireAll(b, s.store, asks(1000)...)
						b.StartTimer()
					}
					id++
					h := held[0]
					held = held[1:]
					require.NoError(b, s.store.InTx(b.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, s.insertUnder(b.Context(), id)))
				}
			})
		})
	}
}

// BenchmarkAmongMany claims and finishes by 16 in a table of 10,000 records and in one of IDEMQ_SQL_ROWS,
// in turn, and reports how many times as long the larger one takes.
func BenchmarkAmongMany(b *testing.B) {
	for _, name := range []string{"postgresql", "mysql"} {
		b.Run(name, func(b *testing.B) {
			var loads [2]*load
			for i, n := range []int{10_000, manyRows(b)} {
				db := bases[name](b)
				loads[i] = newLoad(b, db.store(b), 16)
				db.fill(b, n, time.Hour)
			}
			var took [2]time.Duration
			for n := 0; b.Loop(); n++ {
				l, begun := loads[n%2], time.Now()
				l.claim(b)
				l.finish(b)
				took[n%2] += time.Since(begun)
			}
			b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "times-as-long")
		})
	}
}

// BenchmarkSweepUnderLoad deletes expired rows (IDEMQ_SQL_ROWS of them) while claims of 16 go on, and
// reports the 99th percentile of those before and meanwhile.
func BenchmarkSweepUnderLoad(b *testing.B) {
	for _, name := range []string{"postgresql", "mysql"} {
		b.Run(name, func(b *testing.B) {
			db := bases[name](b)
			s := db.store(b)
			for b.Loop() {
				b.StopTimer()
				db.fill(b, manyRows(b), -time.Hour)
				quiet := percentile(b, s, func(n int) bool { return n < 2000 })
				swept := make(chan int, 1)
				b.StartTimer()
				go func() { swept <- sweepAll(b, s) }()
				n := 0
				loaded := percentile(b, s, func(int) bool {
					select {
					case n = <-swept:
						return false
					default:
						return true
					}
				})
				require.Equal(b, manyRows(b), n)
				b.ReportMetric(float64(quiet.Microseconds())/1000, "p99-quiet-ms")
				b.ReportMetric(float64(loaded.Microseconds())/1000, "p99-sweeping-ms")
				b.ReportMetric(float64(loaded)/float64(quiet), "times-as-long")
			}
		})
	}
}

func sweepAll(b *testing.B, s *sqlstore.Store) (all int) {
	for {
		n, err := s.SweepBatch(b.Context())
		if err != nil {
			b.Error(err)
			return all
		}
		if all += n; n == 0 {
			return all
		}
	}
}

// percentile claims while more says so, and returns the 99th percentile of the calls' durations.
func percentile(b *testing.B, s *sqlstore.Store, more func(n int) bool) time.Duration {
	var took []time.Duration
	for n := 0; more(n); n++ {
		begun := time.Now()
		acquireAll(b, s, asks(16)...)
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
