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
