package rocketmq_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/internal/testenv"
)

// quickChecks are a broker's settings by which it asks soon, and often: so soon that it may ask about a message
// that it has just been told to commit, and then makes it visible a second time. It takes note of what it was told
// each transactionOpBatchInterval only, by default 3 s; until then it would ask again and again.
var quickChecks = []string{"transactionOpBatchInterval=50", "transactionTimeOut=400", "transactionCheckInterval=400", "transactionCheckMax=1000"}

// TestCheckBacks needs a broker that asks often, and is killed at the end.
func TestCheckBacks(t *testing.T) {
	t.Parallel()
	server := testenv.StartRocketMQ(t, quickChecks...)
	t.Run("while it is well", func(t *testing.T) { checkBacks(t, server) })
	t.Run("broker is killed in the middle", func(t *testing.T) { brokerIsKilledInTheMiddle(t, server) })
}

func checkBacks(t *testing.T, server *testenv.RocketMQServer) {
	for name, f := range map[string]func(t *testing.T, w world, s *shop){
		"predecessor died before its local transaction":         predecessorDiedBefore,
		"predecessor died after the commit":                     predecessorDiedAfter,
		"half message was sent twice":                           halfMessageWasSentTwice,
		"slow transaction is waited for":                        slowTransactionIsWaitedFor,
		"transaction that begins after its tombstone":           transactionBeginsAfterItsTombstone,
		"tombstone between two tries":                           tombstoneBetweenTwoTries,
		"panic rolls back and goes on":                          panicRollsBack,
		"work that commits by itself":                           workCommitsByItself,
		"work that rolls back by itself":                        workRollsBackByItself,
		"transaction that the server throws away":               serverThrowsTheTransactionAway,
		"another database of the same group gives no answer":    anotherDatabaseGivesNoAnswer,
		"producers of two groups in one process are both asked": twoGroupsInOneProcess,
		"context that ends in the middle":                       contextEndsInTheMiddle,
		"limit that ends in the middle":                         limitEndsInTheMiddle,
		"process that stood still commits nothing":              processThatStoodStill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachShop(t, func(t *testing.T, s *shop) {
				t.Parallel()
				f(t, ownWorld(t, server, 1), s)
			})
		})
	}
	for name, f := range map[string]func(*testing.T, *testenv.RocketMQServer){
		"answer to COMMIT is lost":              commitIsNotAnswered,
		"database is down when the broker asks": databaseIsDownAtTheCheck,
		"several processes of one group":        severalProcessesOfOneGroup,
		"copy that comes twice is dropped":      copyThatComesTwiceIsDropped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, server)
		})
	}
}

// buried waits until n tombstones are there, and checks that none of ids ever became visible.
func buried(t *testing.T, w world, s *shop, n int, ids ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return s.marks(t, 3) == n }, eventually, step, "no tombstone")
	unsold(t, w, s, ids...)
}

// unsold checks that none of ids is there, and none of their messages among those before one that is sent now.
func unsold(t *testing.T, w world, s *shop, ids ...string) {
	t.Helper()
	p := w.newSeller(t, s)
	require.NoError(t, p.Send(t.Context(), w.message("mark of the end"), s.order("mark of the end")))
	seen := visible(t, w.sourceOf(t, w.group+"-unsold", []string{w.topic}), "mark of the end")
	for _, id := range ids {
		require.NotContains(t, seen, id)
		require.False(t, s.has(t, id))
	}
}

func predecessorDiedBefore(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	_, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	require.NoError(t, p.end())
	w.newSeller(t, s)
	buried(t, w, s, 1, "a")
}

func predecessorDiedAfter(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	h, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	done, err := h.Try(t.Context(), s.order("a"))
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, p.end())
	w.newSeller(t, s)
	visible(t, w.source(t), "a")
	require.Eventually(t, func() bool { return s.marks(t, 2) == 1 }, eventually, step, "the answer is a confirmation, too")
}

// A client library with one handler per client ID would ask the first group only.
func twoGroupsInOneProcess(t *testing.T, w world, s *shop) {
	other := w
	other.group += "-other"
	elsewhere := openShop(t, s.dialect)
	p, q := w.newSeller(t, s), other.newSeller(t, elsewhere)
	for x, at := range map[*seller]*shop{p: s, q: elsewhere} {
		h, err := x.Prepare(t.Context(), w.message(at.rows))
		require.NoError(t, err)
		done, err := h.Try(t.Context(), at.order(at.rows))
		require.NoError(t, err)
		require.True(t, done)
	}
	visible(t, w.source(t), s.rows, elsewhere.rows)
	require.Zero(t, s.marks(t, 3)+elsewhere.marks(t, 3))
}

// The answer to the first was lost, so a second one was sent. Each has a marker of its own.
func halfMessageWasSentTwice(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	first, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	second, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	require.NotEqual(t, first.Key(), second.Key())
	require.NoError(t, second.CarryOut(t.Context(), s.order("a")))
	require.Eventually(t, func() bool { return s.marks(t, 3) == 1 }, eventually, step, "the first is rolled back")
	source := w.source(t)
	for d := range deliveries(t, source) {
		require.Equal(t, second.Key(), raw(d).GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex))
		break
	}
	buried(t, w, s, 1)
	for d := range deliveries(t, source) {
		if string(d.Body) != "a" {
			break
		}
		require.Equal(t, second.Key(), raw(d).GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex))
	}
}

// The broker asks several times while the transaction runs. Its marker is there, locked.
func slowTransactionIsWaitedFor(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	require.NoError(t, p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
		require.Eventually(t, func() bool { return p.log.has("could not be answered") }, eventually, step, "nobody asked")
		return s.order("a")(ctx, tx)
	}))
	visible(t, w.source(t), "a")
	require.Zero(t, s.marks(t, 3))
}

// The process waits for a connection so long that another one answers for it.
func transactionBeginsAfterItsTombstone(t *testing.T, w world, s *shop) {
	w.newSeller(t, s)
	narrow := *s
	narrow.DB = s.open(t, s.address)
	narrow.SetMaxOpenConns(1)
	p := w.newSeller(t, &narrow)
	require.NoError(t, p.Send(t.Context(), w.message("first"), s.order("first")), "the process is ready")
	taken, err := narrow.Conn(t.Context())
	require.NoError(t, err)
	ran := false
	answer := make(chan error, 1)
	go func() {
		answer <- p.Send(t.Context(), w.message("a"), func(context.Context, *sql.Tx) error { ran = true; return nil })
	}()
	require.Eventually(t, func() bool { return s.marks(t, 3) == 1 }, eventually, step, "no tombstone")
	require.NoError(t, taken.Close())
	require.ErrorIs(t, <-answer, rocketmq.ErrRolledBack)
	require.False(t, ran)
	require.NoError(t, p.Send(t.Context(), w.message("a"), s.order("a")), "it may be tried again")
	visible(t, w.source(t), "first", "a")
}

// A try that met a conflict has let go of its marker, and the next one comes too late.
func tombstoneBetweenTwoTries(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	h, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	_, err = h.Try(t.Context(), failing(s.order("a")))
	require.ErrorIs(t, err, errOrder)
	require.Eventually(t, func() bool { return s.marks(t, 3) == 1 }, eventually, step, "no tombstone")
	require.ErrorIs(t, h.CarryOut(t.Context(), s.order("a")), rocketmq.ErrRolledBack)
	buried(t, w, s, 1, "a")
}

func panicRollsBack(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	require.PanicsWithValue(t, "boom", func() {
		_ = p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, s.order("a")(ctx, tx))
			panic("boom")
		})
	})
	buried(t, w, s, 1, "a")
	require.NoError(t, p.end(), "nothing is left under way")
}

// What fn has committed is committed, marker and all.
func workCommitsByItself(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	err := p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("a")(ctx, tx))
		return tx.Commit()
	})
	require.ErrorIs(t, err, dedup.ErrTxEnded)
	require.ErrorContains(t, err, "it is committed, and the message will be delivered")
	err = p.Send(t.Context(), w.message("b"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("b")(ctx, tx))
		require.NoError(t, tx.Commit())
		return errOrder
	})
	require.ErrorIs(t, err, dedup.ErrTxEnded)
	require.ErrorIs(t, err, errOrder)
	visible(t, w.source(t), "a", "b")
}

func workRollsBackByItself(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	err := p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("a")(ctx, tx))
		return tx.Rollback()
	})
	require.ErrorIs(t, err, dedup.ErrTxEnded)
	err = p.Send(t.Context(), w.message("b"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("b")(ctx, tx))
		_, err := tx.ExecContext(ctx, "ROLLBACK")
		return err
	})
	require.ErrorIs(t, err, dedup.ErrTxEnded, "behind the driver's back")
	buried(t, w, s, 2, "a", "b")
}

// fn passes over the error at which the server rolls back. What it writes then the server commits by itself, statement by statement; the
// marker, which came first, has gone with the rest, so the message never becomes visible without its rows.
func serverThrowsTheTransactionAway(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	s.exec(t, "INSERT INTO "+s.rows+" (id) VALUES ('x'), ('y')")
	err := p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("a")(ctx, tx))
		switch s.dialect {
		case sqldialect.MySQL:
			require.Equal(t, sqldialect.Conflict, sqldialect.Classify(s.dialect, loseADeadlock(ctx, t, s, tx)))
		case sqldialect.SQLite:
			_, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO "+s.rows+" (id) VALUES ('x')")
			require.Equal(t, sqldialect.Duplicate, sqldialect.Classify(s.dialect, err))
		default:
			_, err := tx.ExecContext(ctx, "SELECT 1/0")
			require.Error(t, err)
			_ = s.order("late")(ctx, tx)
			return nil
		}
		return s.order("late")(ctx, tx)
	})
	if s.dialect == sqldialect.PostgreSQL { // which lets nothing more in
		require.ErrorContains(t, err, "before commit: ")
		require.Zero(t, s.marks(t, 1)+s.marks(t, 2))
		unsold(t, w, s, "a", "late")
		return
	}
	require.ErrorIs(t, err, dedup.ErrTxEnded)
	require.ErrorContains(t, err, "its marker is gone")
	require.True(t, s.has(t, "late"), "nobody can take it back")
	require.Zero(t, s.marks(t, 1)+s.marks(t, 2))
	buried(t, w, s, 1, "a")
}

// loseADeadlock has tx, which has written little, and another transaction, which has written much, wait for each other: the server
// ends the one that has written less.
func loseADeadlock(ctx context.Context, t *testing.T, s *shop, tx *sql.Tx) error {
	other, err := s.BeginTx(ctx, nil)
	require.NoError(t, err)
	for i := range 50 {
		_, err = other.ExecContext(ctx, "INSERT INTO "+s.rows+" (id) VALUES ('other "+strconv.Itoa(i)+"')")
		require.NoError(t, err)
	}
	lock := func(tx *sql.Tx, id string) error {
		_, err := tx.ExecContext(ctx, "SELECT id FROM "+s.rows+" WHERE id = '"+id+"' FOR UPDATE")
		return err
	}
	require.NoError(t, lock(other, "y"))
	require.NoError(t, lock(tx, "x"))
	won := make(chan error, 1)
	go func() { won <- errors.Join(lock(other, "x"), other.Rollback()) }()
	err = lock(tx, "y")
	require.NoError(t, <-won)
	return err
}

// Its table has no marker of the transaction, which does not mean that there is none.
func anotherDatabaseGivesNoAnswer(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	h, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	done, err := h.Try(t.Context(), s.order("a"))
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, p.end())
	other := openShop(t, s.dialect)
	stranger := w.newSeller(t, other)
	require.Eventually(t, func() bool { return stranger.log.has("another table of markers") }, eventually, step, "nobody asked")
	require.Zero(t, other.marks(t, 3))
	require.NoError(t, stranger.end())
	w.newSeller(t, s)
	visible(t, w.source(t), "a")
}

func contextEndsInTheMiddle(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	err := p.Send(ctx, w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("a")(ctx, tx))
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	unsold(t, w, s, "a")
}

func limitEndsInTheMiddle(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s, func(o *rocketmq.TransactionOptions) { o.Limit = 500 * time.Millisecond })
	err := p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, s.order("a")(ctx, tx))
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "longer than TransactionOptions.Limit, 500ms")
	unsold(t, w, s, "a")
}

// Its tombstone may be gone when it goes on, and its context does not yet know.
func processThatStoodStill(t *testing.T, w world, s *shop) {
	p := w.newSeller(t, s)
	for _, wall := range []bool{true, false} {
		h, err := p.Prepare(t.Context(), w.message("a"))
		require.NoError(t, err)
		h.Age(time.Hour, wall)
		done, err := h.Try(t.Context(), s.order("a"))
		require.ErrorContains(t, err, "longer than TransactionOptions.Limit")
		require.False(t, done)
	}
	buried(t, w, s, 2, "a")
}
