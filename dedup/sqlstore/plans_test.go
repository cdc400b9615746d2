package sqlstore_test

import (
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

// manyRows is how many rows large tables have here: IDEMQ_SQL_ROWS, or what takes a few seconds.
func manyRows(tb testing.TB) int {
	tb.Helper()
	text := os.Getenv("IDEMQ_SQL_ROWS")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(tb, err)
	return n
}

// fill adds n done records that expire in the given time.
func (b *base) fill(tb testing.TB, n int, left time.Duration) {
	tb.Helper()
	expires := time.Now().Add(left).UnixMicro()
	values := fmt.Sprintf("1, 1, 1, NULL, %d + i, (%d + i) / 60000000 + 1, 0, 0, 0, 3, 0", expires, expires)
	columns := "k, epoch, revision, claimed_at, lease_until, expires_at, sweep_after, attempts, crashes, redrive, state, alone, owner, holder, last_error"
	switch b.dialect {
	case sqlstore.PostgreSQL:
		b.exec(tb, fmt.Sprintf(`INSERT INTO %%s (%s) SELECT sha256(('%d-' || i)::bytea), %s, '\x00112233445566778899aabbccddeeff', '', '' FROM generate_series(1, %d) i`, columns, expires, values, n))
		b.exec(tb, "ANALYZE %s")
	case sqlstore.MySQL:
		values = strings.Replace(strings.ReplaceAll(values, "+ i", "+ seq"), ") / 60000000", ") DIV 60000000", 1)
		b.exec(tb, fmt.Sprintf("INSERT INTO %%s (%s) SELECT UNHEX(SHA2(CONCAT('%d-', seq), 256)), %s, UNHEX('00112233445566778899aabbccddeeff'), '', '' FROM seq_1_to_%d", columns, expires, values, n))
		b.exec(tb, "ANALYZE TABLE %s")
	default:
		b.exec(tb, fmt.Sprintf("INSERT INTO %%s (%s) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT randomblob(32), %s, x'00112233445566778899aabbccddeeff', '', '' FROM n", columns, n, values))
		b.exec(tb, "ANALYZE %s")
	}
}

func TestEveryPlanUsesAnIndex(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		n := manyRows(t)
		if b.dialect == sqlstore.SQLite {
			n = min(n, 2000) // its plans do not depend on it, and it is slow to fill under the race detector
		}
		begun := time.Now()
		b.fill(t, n, time.Hour)
		t.Logf("%d rows in %v", n, time.Since(begun).Round(time.Millisecond))
		for _, size := range []int{1, 128, 1024} {
			for name, p := range s.Statements(acquireAll(t, s, asks(size)...)) {
				plan := b.explain(t, p)
				require.NotEmpty(t, plan)
				for _, line := range plan {
					require.False(t, b.readsAll(line), "%s of %d reads the table from end to end:\n%s", name, size, strings.Join(plan, "\n"))
				}
			}
		}
	})
}

// TestWorkGrowsWithTheBatchAndNoFaster counts the rows that PostgreSQL looks at: a list of parameters
// that it goes through once for each of its items would show here, and in no plan of a small batch.
func TestWorkGrowsWithTheBatchAndNoFaster(t *testing.T) {
	b := bases["postgresql"](t)
	s := b.store(t)
	b.fill(t, manyRows(t), time.Hour)
	work := func(size int) map[string]float64 {
		looked := make(map[string]float64)
		for name, p := range s.Statements(acquireAll(t, s, asks(size)...)) {
			tx, err := b.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			looked[name] = rowsLookedAt(t, tx, p)
			require.NoError(t, tx.Rollback())
		}
		return looked
	}
	one, eight := work(128), work(1024)
	for name := range one {
		require.LessOrEqual(t, eight[name], 12*max(one[name], 128), "%s: %.0f rows for 128 items, %.0f for 1024", name, one[name], eight[name])
	}
}

var planRows = regexp.MustCompile(`actual rows=([\d.]+) loops=(\d+)|Rows Removed by [\w ]+: (\d+)`)

// rowsLookedAt runs the statement and adds up the rows of all parts of its plan, those that were left out among them.
func rowsLookedAt(t *testing.T, tx *sql.Tx, p sqlstore.Prepared) (sum float64) {
	rows, err := tx.QueryContext(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF) "+p.Text, p.Args...)
	require.NoError(t, err, p.Text)
	defer rows.Close()
	loops := 1.0
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		for _, m := range planRows.FindAllStringSubmatch(line, -1) {
			n, _ := strconv.ParseFloat(m[1]+m[3], 64)
			if m[2] != "" {
				loops, _ = strconv.ParseFloat(m[2], 64)
			}
			sum += n * loops
		}
		if loops > 1 && strings.Contains(line, "Cond: ") && strings.Contains(line, "ANY (") {
			sum += loops * loops // the array of all items is sorted anew each time
		}
	}
	require.NoError(t, rows.Err())
	require.NotZero(t, sum, "no figures in the plan")
	return sum
}

func (b *base) explain(tb testing.TB, p sqlstore.Prepared) (lines []string) {
	tb.Helper()
	rows, err := b.Query(map[sqlstore.Dialect]string{"sqlite": "EXPLAIN QUERY PLAN "}[b.dialect]+map[sqlstore.Dialect]string{"postgresql": "EXPLAIN ", "mysql": "EXPLAIN "}[b.dialect]+p.Text, p.Args...)
	require.NoError(tb, err, p.Text)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(tb, err)
	for rows.Next() {
		fields, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range fields {
			into[i] = &fields[i]
		}
		require.NoError(tb, rows.Scan(into...))
		line := ""
		for i, f := range fields {
			line += columns[i] + "=" + f.String + " "
		}
		lines = append(lines, line)
	}
	require.NoError(tb, rows.Err())
	return lines
}

// readsAll reports a line of a plan that goes through all of the table.
func (b *base) readsAll(line string) bool {
	switch b.dialect {
	case sqlstore.PostgreSQL:
		return strings.Contains(line, "Seq Scan on "+b.table)
	case sqlstore.MySQL:
		ours := strings.Contains(line, "table=t ") || strings.Contains(line, "table="+b.table+" ")
		return ours && (strings.Contains(line, "type=ALL") || strings.Contains(line, "type=index ") || strings.Contains(line, "key= "))
	default:
		return strings.Contains(line, "SCAN t") && !strings.Contains(line, "VIRTUAL")
	}
}

func TestSweepIsBoundedAndSparesTheLiving(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		b.fill(t, 600, -time.Hour)
		b.fill(t, 10, time.Hour)
		held := acquireAll(t, s, asks(10)...)
		finishAll(t, s, held[5:], dedup.Done)
		// A lease beyond the retention: no write of the store makes that, and the sweeper spares it all the same.
		b.exec(t, fmt.Sprintf("UPDATE %%s SET expires_at = 1, sweep_after = 1 WHERE k = %s", arg(b)), held[0].Key[:])
		for _, want := range []int{250, 250, 100, 0} {
			n, err := s.SweepBatch(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		var left int
		require.NoError(t, b.QueryRow("SELECT count(*) FROM "+b.table).Scan(&left))
		require.Equal(t, 20, left)
	})
}

func TestOneProcessSweepsAtATime(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := b.store(t)
		b.fill(t, 350, -time.Hour)
		far, spy := b.spied(t, b.dsn)
		sweeping, goOn, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		if b.dialect == sqlstore.MySQL {
			spy.watch(func(_ int, text string) {
				if text == "COMMIT" { // deleted, and the lock held
					close(sweeping)
					<-goOn
				}
			})
			go func() {
				_, err := far.bare(t, nil).SweepBatch(t.Context())
				over <- err
			}()
		} else { // the same statement in a transaction that does not end
			tx, err := b.Begin()
			require.NoError(t, err)
			_, err = tx.Exec(s.Statements(acquireAll(t, s, asks(1)...))["sweep"].Text)
			require.NoError(t, err)
			close(sweeping)
			go func() {
				<-goOn
				over <- tx.Commit()
			}()
		}
		<-sweeping
		n, err := s.SweepBatch(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		acquireAll(t, s, asks(100)...) // claims go on meanwhile
		close(goOn)
		require.NoError(t, <-over)
		n, err = s.SweepBatch(t.Context())
		require.NoError(t, err)
		require.Equal(t, 100, n)
	})
}

// The servers' clocks decide: this process's is not even asked.
func TestClockOfTheProcessIsNotAsked(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		s.store.SetClock(func() time.Time { panic("the clock of the process") })
		h := s.claim(t)
		require.InDelta(t, time.Now().UnixMilli(), int64(h.Epoch), 60_000, "the epoch is the server's clock")
		require.NoError(t, extendAll(t, s.store, []dedup.Held{h})[0])
		require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)))
		require.InDelta(t, time.Hour, claimAll(t, s.store, ask(h.Key))[0].Left, float64(time.Minute))
		_, err := s.store.SweepBatch(t.Context())
		require.NoError(t, err)
	})
}

// A session's time zone moves no lease.
func TestTimeZoneOfTheSessionDoesNotMatter(t *testing.T) {
	setting := map[string]string{"postgresql": "&timezone=Asia/Tokyo", "mysql": "?time_zone=%27%2B09%3A00%27&loc=Asia%2FTokyo&parseTime=true"}
	eachServer(t, func(t *testing.T, b *base) {
		s := b.store(t)
		tokyo, _ := b.spied(t, b.dsn+setting[string(b.dialect)])
		far := tokyo.bare(t, nil)
		q := ask(newKey())
		acquireAll(t, far, q)
		v := claimAll(t, s, ask(q.Key))[0]
		require.Equal(t, dedup.InProgress, v.State)
		require.InDelta(t, time.Minute, v.Left, float64(10*time.Second))
		v = claimAll(t, far, ask(q.Key))[0]
		require.InDelta(t, time.Minute, v.Left, float64(10*time.Second))
	})
}
