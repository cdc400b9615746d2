package bench

import (
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

// BenchmarkInTx drains a queue into a PostgreSQL table, a row and a transaction for each message,
// 16 at once: bare, with the usual inbox (INSERT … ON CONFLICT DO NOTHING in the same transaction),
// and with consumer.NewInTx on one level and on two.
func BenchmarkInTx(b *testing.B) {
	for b.Loop() {
		for _, l := range append(loads[:1:1], load{"half duplicates", func(n int) int { return n / 2 }}) {
			inTx(b, newEnv(b), l, 20_000, 5)
		}
	}
}

const workersInTx = 16

// book is a business table.
type book struct {
	*sql.DB
	table string
}

func newBook(tb testing.TB) *book {
	db, err := sql.Open("pgx", testenv.PostgreSQL(tb))
	require.NoError(tb, err)
	db.SetMaxOpenConns(2 * workersInTx)
	db.SetMaxIdleConns(2 * workersInTx)
	b := &book{db, "book_" + newName()}
	for _, s := range []string{
		"CREATE TABLE " + b.quoted("") + " (id text, body bytea)",
		"CREATE TABLE " + b.quoted("_inbox") + " (id text PRIMARY KEY)",
	} {
		_, err := db.Exec(s)
		require.NoError(tb, err)
	}
	tb.Cleanup(func() {
		for _, suffix := range []string{"", "_inbox"} {
			_, err := db.Exec("DROP TABLE " + b.quoted(suffix))
			require.NoError(tb, err)
		}
		require.NoError(tb, db.Close())
	})
	return b
}

func (b *book) quoted(suffix string) string { return `"` + b.table + suffix + `"` }

func (b *book) enter(ctx context.Context, tx *sql.Tx, id string, body []byte) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO "+b.quoted("")+" VALUES ($1, $2)", id, body)
	return err
}

// usual is what most services do: the row, and with inbox an insert that tells whether it is the first.
func (b *book) usual(ctx context.Context, id string, body []byte, inbox bool) error {
	tx, err := b.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if inbox {
		r, err := tx.ExecContext(ctx, "INSERT INTO "+b.quoted("_inbox")+" VALUES ($1) ON CONFLICT DO NOTHING", id)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return err
		}
	}
	if err := b.enter(ctx, tx, id, body); err != nil {
		return err
	}
	return tx.Commit()
}

// each reads a topic with workers around handle, and acknowledges in any order.
func (b broker) each(tb testing.TB, topic string, o observer, handle func(ctx context.Context, m *consumer.Message) error) func() {
	s := b.source(tb, topic)
	return until(func(ctx context.Context) {
		work, workers := make(chan consumer.Delivery), sync.WaitGroup{}
		for range workersInTx {
			workers.Go(func() {
				for d := range work {
					over(tb, ctx, handle(context.WithoutCancel(ctx), d.Message))
					over(tb, ctx, d.Ack(ctx))
					o.settled()
				}
			})
		}
		defer workers.Wait()
		defer close(work)
		for {
			ds, err := s.Receive(ctx, 512)
			if err != nil {
				over(tb, ctx, err)
				return
			}
			for i := range ds {
				work <- ds[i]
			}
		}
	}, func() { require.NoError(tb, s.Close(context.Background())) })
}

// consumeInTx is consumer.NewInTx on s.
func (b broker) consumeInTx(tb testing.TB, topic string, o observer, books *book, s dedup.Store) func() {
	guard, err := dedup.New(newName(), s, &dedup.Options{Logger: slog.New(slog.DiscardHandler), Observe: func(ev dedup.Event) {
		if ev.Name == "settle" && ev.Cause != "give_back" {
			o.settled()
		}
	}})
	require.NoError(tb, err)
	c, err := consumer.NewInTx(b.source(tb, topic), guard, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		return books.enter(ctx, tx, m.ID, m.Body)
	}, &consumer.Options{Policy: consumer.Policy{Concurrency: workersInTx}})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(tb, <-ended)
	}
}

func inTx(tb testing.TB, e env, l load, n, rounds int) {
	b, books := e.of("rabbitmq"), newBook(tb) // which has no order, so that all workers have work
	table, err := sqlstore.New(books.DB, sqlstore.PostgreSQL, nil)
	require.NoError(tb, err)
	require.NoError(tb, table.Migrate(tb.Context()))
	subjects := []subject{
		{"transaction alone", func(tb testing.TB, topic string, o observer) func() {
			return b.each(tb, topic, o, func(ctx context.Context, m *consumer.Message) error {
				return books.usual(ctx, m.Headers["message-id"], m.Body, false)
			})
		}},
		{"usual inbox", func(tb testing.TB, topic string, o observer) func() {
			return b.each(tb, topic, o, func(ctx context.Context, m *consumer.Message) error {
				return books.usual(ctx, m.Headers["message-id"], m.Body, true)
			})
		}},
		{"idemq, NewInTx", func(tb testing.TB, topic string, o observer) func() { return b.consumeInTx(tb, topic, o, books, table) }},
		{"idemq, NewInTx on two levels", func(tb testing.TB, topic string, o observer) func() {
			return b.consumeInTx(tb, topic, o, books, tierstore.New(table, redisstore.New(e.rdb, nil)))
		}},
	}
	results := make([]result, len(subjects))
	for range rounds {
		for i, s := range subjects {
			topic, drop := b.fill(tb, n, l.distinct(n)) // IDs are new in each round, for the inbox's sake
			results[i].add(once(tb, e, b, s, topic, n, l))
			drop()
		}
	}
	for i, s := range subjects {
		tb.Logf("%s into postgres, %-16s %-30s %v", b.name, l.name, s.name, &results[i])
	}
}

func TestTransactionsAreMeasured(t *testing.T) { inTx(t, newEnv(t), loads[0], 200, 1) }
