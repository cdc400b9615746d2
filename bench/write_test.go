package bench

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// BenchmarkWrite is a business transaction of one insert, with and without messages.
func BenchmarkWrite(b *testing.B) {
	for b.Loop() {
		writes(b, full)
	}
}

// writer adds messages to a transaction.
type writer struct {
	name  string
	write func(ctx context.Context, tx *sql.Tx, i int) error
}

func writes(tb testing.TB, s sizes) {
	table, other := newOutbox(tb), newWatermillTable(tb)
	rows := table.Table() + "_rows"
	_, err := table.admin.Exec("CREATE TABLE " + rows + " (id bigserial PRIMARY KEY, body bytea)")
	require.NoError(tb, err)
	defer func() {
		_, err := table.admin.Exec("DROP TABLE " + rows)
		require.NoError(tb, err)
	}()
	messages := func(n int) func(context.Context, *sql.Tx, int) error {
		return func(ctx context.Context, tx *sql.Tx, i int) error {
			ms := make([]outbox.Message, n)
			for j := range ms {
				ms[j] = newMessage("t", i)
			}
			return table.Write(ctx, tx, ms...)
		}
	}
	all := []writer{
		{"alone", func(context.Context, *sql.Tx, int) error { return nil }},
		{"**with Write of one message**", messages(1)},
		{"**with Write of ten**", messages(10)},
		{"with watermill's publishers, one message", func(_ context.Context, tx *sql.Tx, i int) error { return other.write(tx, "t", newWatermillMessage(i)) }},
		{"the same of ten", func(_ context.Context, tx *sql.Tx, i int) error {
			ms := make([]*message.Message, 10)
			for j := range ms {
				ms[j] = newWatermillMessage(i)
			}
			return other.write(tx, "t", ms...)
		}},
	}
	took, statements := make([][]float64, len(all)), make([]float64, len(all))
	for j := range s.rounds * s.transactions {
		for i, w := range all {
			asked, begun := table.pool.n.Load(), time.Now()
			require.NoError(tb, transaction(context.Background(), table.pool, rows, func(ctx context.Context, tx *sql.Tx) error { return w.write(ctx, tx, j) }))
			took[i] = append(took[i], float64(time.Since(begun).Nanoseconds()))
			statements[i] = float64(table.pool.n.Load() - asked)
		}
	}
	t := newTable("a transaction of one insert", "ns", "more, ns", "statements, BEGIN and COMMIT included")
	for i, w := range all {
		t.add(w.name, count(median(took[i])), count(median(took[i])-median(took[0])), count(statements[i]))
	}
	t.print(fmt.Sprintf("Cost of Write, %d B, medians of %s transactions, one of each kind in turn:", bodySize, count(float64(s.rounds*s.transactions))))
}

// transaction is a business transaction, and whatever more is to be in it.
func transaction(ctx context.Context, p *pool, rows string, more func(context.Context, *sql.Tx) error) error {
	tx, err := p.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO "+rows+" (body) VALUES ($1)", make([]byte, bodySize)); err != nil {
		return err
	}
	if err := more(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}
