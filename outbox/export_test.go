package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

// SetClock replaces the clock of the process.
func (o *Outbox) SetClock(now func() time.Time) { o.clock = now }

// Statements are the texts of reading and writing back.
func (o *Outbox) Statements() (read, mark, fail, requeue, sweep string) {
	return o.text.strict, o.text.mark, o.text.fail, o.text.requeue, o.text.sweep
}

// Explain returns the server's plan of each statement that a relay repeats, for so many rows at once, and of Stats.
func (o *Outbox) Explain(ctx context.Context, batch int) (plans map[string][]string, err error) {
	lanes, seqs, failures := sqldialect.NewRows(o.dialect, laneShape, batch), sqldialect.NewRows(o.dialect, seqShape, batch), sqldialect.NewRows(o.dialect, failShape, batch)
	for n := range int64(batch) {
		lanes.Int(n)
		seqs.Int(n)
		failures.Int(n)
		failures.Int(statePending)
		failures.Int(1)
		failures.Text("why")
	}
	names := sqldialect.NewRows(o.dialect, topicShape, 1)
	names.Text("missing")
	topics := append(lanes.Args(), names.Args()[0], int64(-1), int64(batch))
	token := make([]byte, 16)
	plans = make(map[string][]string)
	for name, s := range map[string]struct {
		text string
		args []any
	}{
		"read":        {o.text.read, lanes.Args(int64(-1), int64(batch))},
		"read strict": {o.text.strict, lanes.Args(int64(-1), int64(batch))},
		"read open":   {o.text.readOpen, topics},
		"strict open": {o.text.strictOpen, topics},
		"mark":        {o.text.mark, o.withClock(seqs.Args(token))},
		"fail":        {o.text.fail, failures.Args(token)},
		"count":       {o.text.count, o.withClock(nil)},
		"sweep":       {o.text.sweep, o.withClock([]any{int64(1)})},
	} {
		verb := "EXPLAIN "
		if o.dialect == SQLite {
			verb = "EXPLAIN QUERY PLAN "
		}
		if plans[name], err = linesOf(o.db.QueryContext(ctx, verb+s.text, s.args...)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return plans, nil
}

func linesOf(rows *sql.Rows, err error) (lines []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		line := ""
		for i, v := range values {
			line += columns[i] + "=" + v.String + " "
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}
