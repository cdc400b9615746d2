package bench

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

const (
	outboxRows = 50_000
	outboxBody = 256
	window     = 512 // of messages whose confirms are awaited at once: RelayOptions.Batch's default
)

func outboxMessage(topic string, i int) outbox.Message {
	return outbox.Message{Topic: topic, Key: fmt.Sprint("customer-", i), Body: make([]byte, outboxBody)}
}

// BenchmarkOutboxDrain publishes committed rows through relays, and as many messages through the
// publisher alone with the same window, in turn.
func BenchmarkOutboxDrain(b *testing.B) {
	const rounds = 3
	for b.Loop() {
		for _, target := range newEnv(b).brokers {
			topic, drop := target.create(b)
			p := target.publish(b)
			var raw []float64
			drained := make([][]float64, 3)
			for range rounds {
				raw = append(raw, outboxRows/publishAlone(b, p, topic).Seconds())
				for i := range drained {
					drained[i] = append(drained[i], outboxRows/drain(b, p, topic, 1<<i).Seconds())
				}
			}
			alone := median(raw)
			b.Logf("%-24s publisher alone %8.0f msg/s", target.name, alone)
			for i := range drained {
				b.Logf("%-24s %d relays       %8.0f msg/s, %3.0f %%", target.name, 1<<i, median(drained[i]), 100*median(drained[i])/alone)
			}
			require.NoError(b, p.Close())
			drop()
		}
	}
}

func publishAlone(tb testing.TB, p outbox.Publisher, topic string) time.Duration {
	began := time.Now()
	for at := 0; at < outboxRows; at += window {
		ms := make([]outbox.Message, min(window, outboxRows-at))
		for i := range ms {
			ms[i] = outboxMessage(topic, at+i)
			ms[i].ID = fmt.Sprint("id-", at+i)
		}
		errs := make([]error, len(ms))
		require.NoError(tb, p.Publish(context.Background(), ms, errs))
		for _, err := range errs {
			require.NoError(tb, err)
		}
	}
	return time.Since(began)
}

func newOutbox(tb testing.TB) (*sql.DB, *outbox.Outbox) {
	db, err := sql.Open("pgx", testenv.PostgreSQL(tb))
	require.NoError(tb, err)
	db.SetMaxIdleConns(16)
	table := fmt.Sprint("bench_", time.Now().UnixNano())
	o, err := outbox.New(db, outbox.PostgreSQL, &outbox.Options{Table: table})
	require.NoError(tb, err)
	require.NoError(tb, o.Migrate(context.Background()))
	tb.Cleanup(func() {
		for _, t := range []string{table, table + "_shards", table + "_relays"} {
			_, _ = db.Exec("DROP TABLE IF EXISTS " + t)
		}
		_, _ = db.Exec("DELETE FROM idemq_schema WHERE name = '" + table + "'")
		_ = db.Close()
	})
	return db, o
}

// drain is how long relays need for rows that are committed, from when the first has its shards.
func drain(tb testing.TB, p outbox.Publisher, topic string, relays int) time.Duration {
	db, o := newOutbox(tb)
	for at := 0; at < outboxRows; at += 1000 {
		ms := make([]outbox.Message, 1000)
		for i := range ms {
			ms[i] = outboxMessage(topic, at+i)
		}
		require.NoError(tb, o.InTx(context.Background(), nil, func(ctx context.Context, tx *sql.Tx) error { return o.Write(ctx, tx, ms...) }))
	}
	_, err := db.Exec("VACUUM ANALYZE " + o.Table())
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, relays)
	began := time.Now()
	for range relays {
		r, err := outbox.NewRelay(o, p, &outbox.RelayOptions{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(tb, err)
		go func() { done <- r.Run(ctx) }()
	}
	for left := true; left; {
		<-time.After(5 * time.Millisecond)
		require.NoError(tb, db.QueryRow("SELECT EXISTS (SELECT 1 FROM "+o.Table()+" WHERE state = 0)").Scan(&left))
	}
	took := time.Since(began)
	cancel()
	for range relays {
		require.NoError(tb, <-done)
	}
	return took
}

// BenchmarkOutboxWrite is a business transaction of one insert, with and without a message.
func BenchmarkOutboxWrite(b *testing.B) {
	db, o := newOutbox(b)
	rows := o.Table() + "_rows"
	_, err := db.Exec("CREATE TABLE " + rows + " (id bigserial PRIMARY KEY, body bytea)")
	require.NoError(b, err)
	b.Cleanup(func() { _, _ = db.Exec("DROP TABLE " + rows) })
	const n = 2000
	run := func(messages int) float64 {
		began := time.Now()
		for i := range n {
			require.NoError(b, o.InTx(context.Background(), nil, func(ctx context.Context, tx *sql.Tx) error {
				if _, err := tx.ExecContext(ctx, "INSERT INTO "+rows+" (body) VALUES ($1)", make([]byte, outboxBody)); err != nil {
					return err
				}
				ms := make([]outbox.Message, messages)
				for j := range ms {
					ms[j] = outboxMessage("t", i)
				}
				return o.Write(ctx, tx, ms...)
			}))
		}
		return time.Since(began).Seconds() / n * 1e6
	}
	for b.Loop() {
		var without, one, ten []float64
		for range 3 {
			without, one, ten = append(without, run(0)), append(one, run(1)), append(ten, run(10))
		}
		b.Logf("transaction of one insert %5.0f µs, with one message %5.0f µs, with ten %5.0f µs", median(without), median(one), median(ten))
	}
}
