package outbox_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// TestWriteBacksFindTheirRowsByThemselves: MariaDB would rather read all pending rows of a small table, those that others
// are writing included, and wait for them.
func TestWriteBacksFindTheirRowsByThemselves(t *testing.T) {
	b := newBase(t, outbox.MySQL)
	_, mark, fail, requeue, _ := b.Statements()
	for _, text := range []string{mark, fail, requeue} {
		args := []any{"[[1],[2]]"}
		if strings.Count(text, "?") > 1 {
			args = append(args, []byte("token"))
		}
		rows, err := b.db.QueryContext(t.Context(), "EXPLAIN "+text, args...)
		require.NoError(t, err)
		defer rows.Close()
		columns, err := rows.Columns()
		require.NoError(t, err)
		how := ""
		for rows.Next() {
			values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			require.NoError(t, rows.Scan(into...))
			if values[2].String == "t" {
				how = values[3].String
			}
		}
		require.NoError(t, rows.Err())
		require.Equal(t, "eq_ref", how, text)
	}
}

// TestEveryPlanUsesAnIndexWithManyRows: as after a sudden outage, half of them pending, half parked and no statistics; and in
// the long run, nearly all of them sent.
func TestEveryPlanUsesAnIndexWithManyRows(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		n := many(20_000)
		if b.dialect == outbox.SQLite {
			n = min(n, 2000) // its plans do not depend on it, and it is slow to fill under the race detector
		}
		b.fill(t, n, "")
		b.exec(t, "UPDATE "+b.table+" SET state = 2 WHERE seq % 2 = 0")
		plans := b.plans(t, n)
		if b.dialect == outbox.PostgreSQL {
			delete(plans, "count") // of half the table, and PostgreSQL guesses that it is little
		}
		b.useIndexes(t, plans)
		b.exec(t, "UPDATE "+b.table+" SET state = 1, sent_at = seq WHERE seq % 1000 > 0")
		b.exec(t, map[outbox.Dialect]string{outbox.MySQL: "ANALYZE TABLE " + b.table, outbox.PostgreSQL: "ANALYZE " + b.table, outbox.SQLite: "ANALYZE"}[b.dialect])
		b.useIndexes(t, b.plans(t, n))
	})
}

func (b *base) exec(t *testing.T, text string) {
	t.Helper()
	_, err := b.db.ExecContext(t.Context(), text)
	require.NoError(t, err)
}

// plans are those of a table with n rows. A small one PostgreSQL rather reads once than its index so often.
func (b *base) plans(t *testing.T, n int) map[string][]string {
	batch := 512
	if n < 1_000_000 {
		batch = 16
	}
	plans, err := b.Explain(t.Context(), batch)
	require.NoError(t, err)
	require.Len(t, plans, 8)
	if b.dialect == outbox.PostgreSQL && n < 1_000_000 {
		delete(plans, "sweep") // of a thousand rows
	}
	return plans
}

func (b *base) useIndexes(t *testing.T, plans map[string][]string) {
	t.Helper()
	for name, plan := range plans {
		require.NotEmpty(t, plan, name)
		for _, line := range plan {
			require.False(t, b.readsAll(line), "%s reads the table from end to end:\n%s", name, strings.Join(plan, "\n"))
		}
	}
}

// readsAll reports a line of a plan that goes through all of the table.
func (b *base) readsAll(line string) bool {
	switch b.dialect {
	case outbox.PostgreSQL:
		return strings.Contains(line, "Seq Scan on "+b.table+" ")
	case outbox.MySQL:
		ours := false
		for _, alias := range []string{"t", "p", "h", b.table} {
			ours = ours || strings.Contains(line, "table="+alias+" ")
		}
		return ours && (strings.Contains(line, "type=ALL ") || strings.Contains(line, "key= "))
	default:
		return (strings.Contains(line, "SCAN t ") || strings.Contains(line, "SCAN h ") || strings.Contains(line, "SCAN "+b.table+" ")) && !strings.Contains(line, "USING")
	}
}
