package outbox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// TestWriteBackOfABatchDoesNotReadTheTable: of a table of this size the server, which knows it well, would rather read all than look for
// so many rows by an index.
func TestWriteBackOfABatchDoesNotReadTheTable(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	_, err := b.db.Exec("INSERT INTO " + b.table + " (id, lane, shard, topic, content, created_at, state, attempts, last_error, body) " +
		"SELECT n::text, n, n % 64, 't', '', 0, 0, 0, '', decode(repeat('00', 256), 'hex') FROM generate_series(1, 10000) AS n")
	require.NoError(t, err)
	_, err = b.db.Exec("ANALYZE " + b.table)
	require.NoError(t, err)
	array := func(value string) string { return "{" + strings.TrimSuffix(strings.Repeat(value+",", 512), ",") + "}" }
	numbers := make([]any, 512)
	for i := range numbers {
		numbers[i] = i + 1
	}
	seqs := fmt.Sprintf(array("%d"), numbers...)
	_, mark, fail, requeue, _ := b.Statements()
	for text, args := range map[string][]any{
		mark:    {seqs, 1, []byte("token")},
		fail:    {seqs, array("0"), array("1"), array("why"), 1, []byte("token")},
		requeue: {seqs, 1},
	} {
		rows, err := b.db.QueryContext(t.Context(), "EXPLAIN "+text, args...)
		require.NoError(t, err)
		defer rows.Close()
		plan := ""
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			plan += line + "\n"
		}
		require.NoError(t, rows.Err())
		require.Contains(t, plan, "Update on "+b.table)
		require.NotContains(t, plan, "Seq Scan on "+b.table+" ", plan)
	}
}

// TestPlanOfWriteIsKept: to make it takes the server as long as to insert a row.
func TestPlanOfWriteIsKept(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	conn, err := b.db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	for n := range 10 {
		tx, err := conn.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, b.Write(t.Context(), tx, outbox.Message{Topic: "t", Body: []byte(fmt.Sprint(n))}))
		require.NoError(t, tx.Commit())
	}
	var kept int
	require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO%' || $1 || '%'", b.table).Scan(&kept))
	require.Equal(t, 5, kept, "the server makes five plans anew before it keeps one")
}
