package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

// A row that a transaction has locked holds up neither beats nor claims of others.
func TestLockedRecordHoldsUpNobody(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := b.store(t)
		held := acquireAll(t, s, asks(5)...)
		tx, err := b.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec(fmt.Sprintf("UPDATE %s SET alone = 1 WHERE k = %s", b.table, arg(b)), held[2].Key[:])
		require.NoError(t, err)
		begun := time.Now()
		for i, err := range extendAll(t, s, held) {
			if i == 2 {
				require.ErrorContains(t, err, "locked")
			} else {
				require.NoError(t, err)
			}
		}
		require.Less(t, time.Since(begun), 10*time.Second, "less than any wait for a lock")

		require.NoError(t, tx.Rollback())
		finishAll(t, s, held, dedup.Retryable)
		tx, err = b.Begin()
		require.NoError(t, err)
		_, err = tx.Exec(fmt.Sprintf("UPDATE %s SET alone = 1 WHERE k = %s", b.table, arg(b)), held[2].Key[:])
		require.NoError(t, err)
		in := make([]dedup.ClaimRequest, len(held))
		for i := range held {
			in[i] = ask(held[i].Key)
		}
		for i, v := range claimAll(t, s, in...) {
			if i == 2 {
				require.Equal(t, dedup.InProgress, v.State)
			} else {
				require.Equal(t, dedup.Acquired, v.State)
			}
		}
		require.NoError(t, tx.Rollback())
		require.Equal(t, dedup.Acquired, claimAll(t, s, in[2])[0].State)
	})
}

func arg(b *base) string {
	if b.dialect == sqlstore.MySQL {
		return "?"
	}
	return "$1"
}

// All connections but one are in transactions of InTx, for longer than any wait for one of them
// may take: beats go out on the one kept for them.
func TestBeatsGoOutWhileThePoolIsExhausted(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		b.SetMaxOpenConns(4)
		const works = 8
		held := acquireAll(t, s.store, asks(works)...)
		inside, leave, over := make(chan struct{}, works), make(chan struct{}), make(chan error, works)
		for i := range held {
			go func() {
				over <- s.store.InTx(t.Context(), done(held[i]), func(tx *sql.Tx) error {
					inside <- struct{}{}
					<-leave
					return s.insert(i)(tx)
				})
			}()
		}
		for range 3 {
			<-inside
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		in, errs := make([]dedup.ExtendRequest, works), make([]error, works)
		for i := range in {
			in[i].Held = held[i]
		}
		require.NoError(t, s.store.Extend(ctx, in, errs))
		for _, err := range errs {
			require.NoError(t, err)
		}
		close(leave)
		for range held {
			require.NoError(t, <-over)
		}
		require.Equal(t, works, s.orders(t))
		require.Zero(t, b.Stats().InUse, "nothing is kept once no transaction runs")
	})
}

// The place of a connection for beats that broke is not for the next transaction, which waits for one.
func TestBeatsGoOnAfterTheirConnectionBroke(t *testing.T) {
	near := openPostgreSQL(t)
	b := openDB(t, near.dialect, "pgx", near.dsn+"&application_name="+near.table)
	b.table = near.table
	b.SetMaxOpenConns(4)
	s := openShop(t, b, nil)
	const works = 4
	held := acquireAll(t, s.store, asks(works)...)
	inside, leave, over := make(chan struct{}, works), make(chan struct{}), make(chan error, works)
	for i := range held {
		go func() {
			over <- s.store.InTx(t.Context(), done(held[i]), func(tx *sql.Tx) error {
				inside <- struct{}{}
				<-leave
				return s.insert(i)(tx)
			})
		}()
	}
	for range works - 1 {
		<-inside
	}
	beat := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		in := make([]dedup.ExtendRequest, works)
		for i := range in {
			in[i].Held = held[i]
		}
		return s.store.Extend(ctx, in, make([]error, works))
	}
	require.NoError(t, beat())
	for range 3 {
		var ended int
		require.NoError(t, near.QueryRow("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle'", near.table).Scan(&ended))
		require.Equal(t, 1, ended, "the connection for beats; the others are in transactions")
		require.Error(t, beat())
		require.NoError(t, beat())
	}
	close(leave)
	for range held {
		require.NoError(t, <-over)
	}
	require.Zero(t, b.Stats().InUse)
}

// Who waits to be let in waits no longer than its context.
func TestTransactionThatIsNotLetInEndsWithItsContext(t *testing.T) {
	b := openPostgreSQL(t)
	b.SetMaxOpenConns(3)
	s := openShop(t, b, nil)
	held := acquireAll(t, s.store, asks(3)...)
	first := func(*sql.Tx) error {
		return s.store.InTx(t.Context(), done(held[1]), func(*sql.Tx) error {
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- s.store.InTx(ctx, done(held[2]), func(*sql.Tx) error { panic("not to be called") }) }()
			cancel()
			require.ErrorIs(t, <-over, context.Canceled)
			return nil
		})
	}
	require.NoError(t, s.store.InTx(t.Context(), done(held[0]), first))
	require.NoError(t, s.store.InTx(t.Context(), done(held[2]), s.insert(1)))
	require.Zero(t, b.Stats().InUse)
}

// One connection is enough for everything but beats during a transaction.
func TestOneConnectionIsEnough(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		b.SetMaxOpenConns(1)
		s := openShop(t, b, nil)
		h := s.claim(t)
		require.NoError(t, extendAll(t, s.store, []dedup.Held{h})[0])
		require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)))
		h.Owner = newOwner()
		require.ErrorIs(t, s.store.InTx(t.Context(), done(h), s.insert(2)), dedup.ErrSuperseded)
		_, err := s.store.SweepBatch(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.store.Ping(t.Context()))
	})
}

// A stranger's transaction locks the second row, then wants the first, which the batch has by then.
func TestDeadlockedBatchIsTriedAgain(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		for i := range 50 {
			b.exec(t, fmt.Sprintf("INSERT INTO %%s_orders (id, n) VALUES (%d, 0)", i))
		}
		held := acquireAll(t, s.store, asks(2)...)
		if string(held[0].Key[:]) > string(held[1].Key[:]) {
			held[0], held[1] = held[1], held[0]
		}
		tx, err := b.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		touch := func(k dedup.Key) error {
			_, err := tx.Exec(fmt.Sprintf("UPDATE %s SET alone = 1 WHERE k = %s", b.table, arg(b)), k[:])
			return err
		}
		_, err = tx.Exec(fmt.Sprintf("UPDATE %s_orders SET n = 1", b.table)) // it has done more, so the other is the victim
		require.NoError(t, err)
		require.NoError(t, touch(held[1].Key))
		answers := make(chan []error, 1)
		go func() { answers <- finishAll(t, s.store, held, dedup.Done) }()
		waits := map[sqlstore.Dialect]string{
			sqlstore.PostgreSQL: "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%" + b.table + "%'",
			sqlstore.MySQL:      "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE%" + b.table + "%' AND time_ms > 50",
		}[b.dialect]
		require.Eventually(t, func() bool {
			var n int
			require.NoError(t, b.QueryRow(waits).Scan(&n))
			return n > 0
		}, 10*time.Second, 10*time.Millisecond)
		require.NoError(t, touch(held[0].Key), "the batch was the victim")
		require.NoError(t, tx.Commit())
		for _, err := range <-answers {
			require.NoError(t, err)
		}
	})
}

// A lock that cannot be had in time is the fault of its own item.
func TestLockWaitTimeoutSpoilsItsOwnItemOnly(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := b.store(t)
		held := acquireAll(t, s, asks(3)...)
		tx, err := b.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec(fmt.Sprintf("UPDATE %s SET alone = 1 WHERE k = %s", b.table, arg(b)), held[1].Key[:])
		require.NoError(t, err)
		setting := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "&lock_timeout=100", sqlstore.MySQL: "?innodb_lock_wait_timeout=1"}[b.dialect]
		impatient, _ := b.spied(t, b.dsn+setting)
		errs := finishAll(t, impatient.bare(t, nil), held, dedup.Done)
		require.NoError(t, errs[0])
		require.Error(t, errs[1])
		require.NotErrorIs(t, errs[1], dedup.ErrSuperseded)
		require.NoError(t, errs[2])
		require.NoError(t, tx.Rollback())
		require.NoError(t, finishAll(t, s, held[1:2], dedup.Done)[0])
	})
}

func TestCallsEndWithTheirContext(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := b.store(t)
		h := acquireAll(t, s, ask(newKey()))[0]
		tx, err := b.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec(fmt.Sprintf("UPDATE %s SET alone = 1 WHERE k = %s", b.table, arg(b)), h.Key[:])
		require.NoError(t, err)
		err = briefly(t, func(ctx context.Context) error {
			return s.Finish(ctx, ended([]dedup.Held{h}, dedup.Done), make([]error, 1))
		})
		require.Error(t, err)
	})
}
