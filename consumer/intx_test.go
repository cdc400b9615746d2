package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/dedup/sqlstore"
)

// accounts is a business table in SQLite, and the store in the same database, whose transactions
// can be made to fail.
type accounts struct {
	*sqlstore.Store
	db     *sql.DB
	before func() error // in place of the transaction
	after  func() error // in place of its answer
}

func newAccounts(t *testing.T) *accounts {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, err := sqlstore.New(db, sqlstore.SQLite, nil)
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	_, err = db.Exec("CREATE TABLE entries (id text)")
	require.NoError(t, err)
	return &accounts{Store: s, db: db}
}

func (a *accounts) InTx(ctx context.Context, f dedup.FinishRequest, work func(*sql.Tx) error) error {
	if a.before != nil {
		if err := a.before(); err != nil {
			return err
		}
	}
	if err := a.Store.InTx(ctx, f, work); err != nil {
		return err
	}
	if a.after != nil {
		return a.after()
	}
	return nil
}

func enter(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO entries VALUES (?)", m.ID)
	return err
}

// entries are the effects there are, by message.
func (a *accounts) entries(t *testing.T) map[string]int {
	t.Helper()
	rows, err := a.db.Query("SELECT id, count(*) FROM entries GROUP BY id")
	require.NoError(t, err)
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var id string
		var n int
		require.NoError(t, rows.Scan(&id, &n))
		all[id] = n
	}
	require.NoError(t, rows.Err())
	return all
}

// quickly retries soon, for tests in real time.
var quickly = consumer.Policy{Backoff: []time.Duration{time.Millisecond}}

func newInTx(t *testing.T, b consumer.Source, a *accounts, h consumer.TxHandler, o *consumer.Options) *consumer.Consumer {
	t.Helper()
	if o == nil {
		o = &consumer.Options{Policy: quickly}
	}
	c, err := consumer.NewInTx(b, newGuard(t, a), h, o)
	require.NoError(t, err)
	return c
}

func (a *accounts) inspect(t *testing.T, id string) dedup.Record {
	t.Helper()
	return inspect(t, newGuard(t, a), id)
}

func TestEachMessageHasItsEffectOnceInTransactions(t *testing.T) {
	a := newAccounts(t)
	b := kafkaLike()
	all := messages(100, "")
	for i, m := range all {
		m.Key = fmt.Sprint("lane", i%5)
		b.Publish(m)
		if i%5 == 0 {
			b.Publish(m)
		}
	}
	var runs atomic.Int64
	stats := b.Drain(t, newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		runs.Add(1)
		if err := enter(ctx, tx, m); err != nil {
			return err
		}
		if m.Attempt == 1 && m.ID[len(m.ID)-1] == '7' {
			return errBoom // after its effect, which is undone
		}
		return nil
	}, nil))
	require.EqualValues(t, 100, stats.Done)
	require.EqualValues(t, 20, stats.Duplicates)
	require.EqualValues(t, 110, runs.Load())
	entries := a.entries(t)
	require.Len(t, entries, 100)
	for id, n := range entries {
		require.Equal(t, 1, n, id)
	}
}

func TestFailuresInTransactionsCountAndEndAsDeadLetters(t *testing.T) {
	for name, fail := range map[string]func(){
		"error": func() {},
		"panic": func() { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccounts(t)
			b := kafkaLike()
			b.Publish(message("bad", "lane"), message("good", "lane"))
			var runs atomic.Int64
			stats := b.Drain(t, newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
				require.NoError(t, enter(ctx, tx, m))
				if m.ID == "good" {
					return nil
				}
				runs.Add(1)
				fail()
				return errBoom
			}, nil))
			require.EqualValues(t, 5, runs.Load())
			require.EqualValues(t, 1, stats.DeadLettered)
			require.Equal(t, map[string]int{"good": 1}, a.entries(t))
			require.Equal(t, dedup.Failed, a.inspect(t, "bad").State)
			require.Contains(t, a.inspect(t, "bad").LastError, "boom")
		})
	}
}

// The commit happened; the next claim says so, at once and not when a lease has ended.
func TestLostReplyOfACommitIsAskedFor(t *testing.T) {
	a := newAccounts(t)
	lost := true
	a.after = func() error {
		if lost {
			lost = false
			return fmt.Errorf("%w: connection reset", dedup.ErrUnavailable)
		}
		return nil
	}
	b := kafkaLike()
	b.Publish(message("m1", "lane"), message("m2", "lane"))
	stats := b.Drain(t, newInTx(t, b, a, enter, nil))
	require.Equal(t, map[string]int{"m1": 1, "m2": 1}, a.entries(t))
	require.EqualValues(t, 1, stats.Done)
	require.EqualValues(t, 1, stats.Duplicates, "as which it was acknowledged")
}

func TestDatabaseThatGoesAwayCostsNoAttempt(t *testing.T) {
	a := newAccounts(t)
	away := 2
	a.before = func() error {
		if away--; away >= 0 {
			return fmt.Errorf("%w: connection refused", dedup.ErrUnavailable)
		}
		return nil
	}
	b := kafkaLike()
	b.Publish(message("m1", "lane"))
	var attempt, epochs []int
	stats := b.Drain(t, newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		attempt, epochs = append(attempt, m.Attempt), append(epochs, int(m.Epoch))
		return enter(ctx, tx, m)
	}, nil))
	require.EqualValues(t, 1, stats.Done)
	require.Equal(t, []int{1}, attempt)
	require.Equal(t, map[string]int{"m1": 1}, a.entries(t))
	require.Zero(t, a.inspect(t, "m1").Crashes)
}

func TestConflictRunsAnewWithAMessageOfItsOwn(t *testing.T) {
	a := newAccounts(t)
	b := kafkaLike()
	m1 := message("m1", "lane")
	m1.Headers = map[string]string{"a": "b"}
	b.Publish(m1)
	runs := 0
	stats := b.Drain(t, newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		runs++
		require.Equal(t, 1, m.Attempt)
		require.Equal(t, "body of m1", string(m.Body))
		require.Equal(t, "b", m.Headers["a"])
		m.Body[0], m.Headers["a"] = 'B', "changed"
		require.NoError(t, enter(ctx, tx, m))
		if runs < 4 {
			return fmt.Errorf("pay: %w", dedup.ErrConflict)
		}
		return nil
	}, nil))
	require.EqualValues(t, 1, stats.Done)
	require.Equal(t, 4, runs)
	require.Equal(t, map[string]int{"m1": 1}, a.entries(t))
}

// Each further attempt could commit its effect once more.
func TestHandlerThatEndsItsTransactionIsNotRunAgain(t *testing.T) {
	for name, end := range map[string]func(*sql.Tx) error{"commits": (*sql.Tx).Commit, "rolls back": (*sql.Tx).Rollback} {
		t.Run(name, func(t *testing.T) {
			a := newAccounts(t)
			b := kafkaLike()
			b.Publish(message("m1", ""))
			var runs atomic.Int64
			stats := b.Drain(t, newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
				runs.Add(1)
				require.NoError(t, enter(ctx, tx, m))
				return end(tx)
			}, nil))
			require.EqualValues(t, 1, runs.Load())
			require.EqualValues(t, 1, stats.DeadLettered)
			require.Contains(t, b.DeadLetters()[0].DeadCause, "ended its transaction by itself")
		})
	}
}

func TestHandlerOutOfTimeIsRolledBackAndCounted(t *testing.T) {
	a := newAccounts(t)
	b := kafkaLike()
	b.Publish(message("m1", ""))
	stats := b.Drain(t, newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		require.NoError(t, enter(ctx, tx, m))
		if m.Attempt == 1 {
			<-ctx.Done()
		}
		return nil // it does not even say so
	}, &consumer.Options{Policy: consumer.Policy{Backoff: quickly.Backoff, HandlerTimeout: 50 * time.Millisecond}}))
	require.EqualValues(t, 1, stats.Done)
	require.Equal(t, map[string]int{"m1": 1}, a.entries(t))
}

func TestDrainedHandlerIsRolledBackUncounted(t *testing.T) {
	a := newAccounts(t)
	b := kafkaLike()
	b.Publish(message("m1", ""))
	running := make(chan struct{})
	c := newInTx(t, b, a, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		require.NoError(t, enter(ctx, tx, m))
		close(running)
		<-ctx.Done()
		return context.Cause(ctx)
	}, &consumer.Options{DrainTimeout: time.Millisecond})
	stop := start(t, c)
	<-running
	require.NoError(t, stop())
	require.Empty(t, a.entries(t))
	r := a.inspect(t, "m1")
	require.Equal(t, dedup.Released, r.State)
	require.Equal(t, 1, r.Attempt)
	require.EqualValues(t, 1, c.Stats().GivenBack)
}

// Outside it, one that swallows an error would also swallow that the commit failed.
func TestMiddlewareRunsInsideTheTransaction(t *testing.T) {
	a := newAccounts(t)
	b := kafkaLike()
	b.Publish(message("m1", ""))
	swallow := func(next consumer.Handler) consumer.Handler {
		return func(ctx context.Context, m *consumer.Message) error {
			_ = next(ctx, m)
			return nil
		}
	}
	committed := 0
	a.before = func() error {
		if committed++; committed == 1 {
			return fmt.Errorf("%w: no connection", dedup.ErrUnavailable)
		}
		return nil
	}
	stats := b.Drain(t, newInTx(t, b, a, enter, &consumer.Options{Middleware: []func(consumer.Handler) consumer.Handler{swallow}}))
	require.EqualValues(t, 1, stats.Done)
	require.Equal(t, map[string]int{"m1": 1}, a.entries(t))
}

func TestConsumerInTxRefusesWhatHasNoVerdictToCommit(t *testing.T) {
	a := newAccounts(t)
	open, err := dedup.New("app", a, &dedup.Options{FailOpen: true, Logger: quiet})
	require.NoError(t, err)
	for _, c := range []struct {
		guard *dedup.Guard
		h     consumer.TxHandler
		o     *consumer.Options
		want  string
	}{
		{newGuard(t, a), nil, nil, "handler is nil"},
		{newGuard(t, memstore.New()), enter, nil, "needs a store that joins transactions (sqlstore, tierstore); the Guard has *memstore.Store"},
		{open, enter, nil, "contradicts Options.FailOpen: an unprotected run has no verdict to commit"},
		{newGuard(t, a), enter, &consumer.Options{AllowNoID: true}, "contradicts Options.AllowNoID"},
	} {
		_, err := consumer.NewInTx(consumertest.NewBroker(), c.guard, c.h, c.o)
		require.ErrorContains(t, err, c.want)
	}
}

// A suspect, too, is claimed anew after the database went away, and its turn ends.
func TestSuspectWhoseCommitIsUnknownLetsOthersGoOn(t *testing.T) {
	a := newAccounts(t)
	g, err := dedup.New("app", a, &dedup.Options{Logger: quiet, Lease: time.Second})
	require.NoError(t, err)
	w := work(message("m1", ""))
	w.Lease = time.Second
	c, err := g.Claim(t.Context(), w)
	require.NoError(t, err)
	c.Abandon()
	var lost atomic.Bool
	a.after = func() error {
		if a.entries(t)["m1"] == 1 && !lost.Swap(true) { // no other runs beside it
			return fmt.Errorf("%w: connection reset", dedup.ErrUnavailable)
		}
		return nil
	}
	b := kafkaLike()
	b.Publish(message("m1", ""))
	b.Publish(messages(20, "")[2:]...)
	stats := b.Drain(t, newInTx(t, b, a, enter, nil))
	require.EqualValues(t, 18, stats.Done)
	require.EqualValues(t, 1, stats.Duplicates)
	require.Len(t, a.entries(t), 19)
}

// away is a database that answers, but in which every transaction is cut off.
type away struct {
	*memstore.Store
	runs int
}

func (a *away) InTx(_ context.Context, _ dedup.FinishRequest, work func(*sql.Tx) error) error {
	a.runs++
	return fmt.Errorf("%w: bad connection", dedup.ErrUnavailable)
}

// Rows that were left open, or a statement that takes the server's process down: the message does it.
func TestMessageWhoseTransactionsAreAlwaysCutOffIsFoundInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &away{Store: memstore.New()}
		b := kafkaLike()
		b.Publish(message("m1", "lane"))
		c, err := consumer.NewInTx(b, newGuard(t, a), enter, &consumer.Options{Policy: consumer.Policy{MaxAttempts: 2}})
		require.NoError(t, err)
		stats := b.Drain(t, c)
		require.EqualValues(t, 1, stats.DeadLettered)
		require.Equal(t, 20, a.runs)
		require.Contains(t, b.DeadLetters()[0].DeadCause, "10 transactions in a row were cut off")
		r := inspect(t, newGuard(t, a), "m1")
		require.Zero(t, r.Crashes)
	})
}
