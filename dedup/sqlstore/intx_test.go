package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

var errWork = errors.New("work failed")

// shop is a database with a table of business rows beside the dedup table.
type shop struct {
	*base
	store *sqlstore.Store
}

func openShop(t testing.TB, b *base, o *sqlstore.Options) *shop {
	b.exec(t, "CREATE TABLE %s_orders (id INTEGER NOT NULL PRIMARY KEY, n INTEGER NOT NULL)")
	t.Cleanup(func() { _, _ = b.Exec("DROP TABLE IF EXISTS " + b.table + "_orders") })
	s := &shop{b, b.bare(t, o)}
	require.NoError(t, s.store.Migrate(t.Context()))
	return s
}

func (s *shop) insert(id int) func(tx *sql.Tx) error {
	return s.insertUnder(context.Background(), id)
}

func (s *shop) insertUnder(ctx context.Context, id int) func(tx *sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s_orders (id, n) VALUES (%d, 1)", s.table, id))
		return err
	}
}

func (s *shop) orders(t testing.TB) (n int) {
	t.Helper()
	require.NoError(t, s.QueryRowContext(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s_orders", s.table)).Scan(&n))
	return n
}

func (s *shop) claim(t testing.TB) dedup.Held {
	t.Helper()
	return acquireAll(t, s.store, ask(newKey()))[0]
}

func done(h dedup.Held) dedup.FinishRequest {
	return dedup.FinishRequest{Held: h, State: dedup.Done, Result: []byte("result")}
}

func TestVerdictCommitsWithTheWork(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		h := s.claim(t)
		require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)))
		require.Equal(t, 1, s.orders(t))
		v := claimAll(t, s.store, ask(h.Key))[0]
		require.Equal(t, dedup.Done, v.State)
		require.Equal(t, "result", string(v.Result))
		require.Greater(t, v.Left, 59*time.Minute)
		r, err := s.store.Inspect(t.Context(), h.Key)
		require.NoError(t, err)
		require.Empty(t, r.Holder)
		require.True(t, r.LeaseUntil.IsZero())
	})
}

func TestWorkThatFailsRollsBack(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		h := s.claim(t)
		err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
			require.NoError(t, s.insert(1)(tx))
			return errWork
		})
		require.Equal(t, errWork, err, "as it is")
		require.Zero(t, s.orders(t))
		require.NoError(t, finishAll(t, s.store, []dedup.Held{h}, dedup.Retryable)[0], "a failure is counted after the rollback")
		require.Equal(t, 2, claimAll(t, s.store, ask(h.Key))[0].Attempt)
	})
}

func TestWorkOfFormerOwnersIsRolledBack(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		for name, c := range map[string]struct {
			before func(h *dedup.Held)
			want   error
		}{
			"taken over": {func(h *dedup.Held) {
				q := ask(h.Key)
				h.Lease = time.Millisecond
				require.NoError(t, extendAll(t, s.store, []dedup.Held{*h})[0])
				require.Eventually(t, func() bool { return claimAll(t, s.store, q)[0].State == dedup.Acquired }, 10*time.Second, time.Millisecond)
			}, dedup.ErrSuperseded},
			"finished":  {func(h *dedup.Held) { require.NoError(t, finishAll(t, s.store, []dedup.Held{*h}, dedup.Done)[0]) }, dedup.ErrSuperseded},
			"released":  {func(h *dedup.Held) { require.NoError(t, finishAll(t, s.store, []dedup.Held{*h}, dedup.Released)[0]) }, dedup.ErrSuperseded},
			"stranger":  {func(h *dedup.Held) { h.Owner = newOwner() }, dedup.ErrSuperseded},
			"lost":      {func(h *dedup.Held) { b.exec(t, "DELETE FROM %s") }, dedup.ErrRecordLost},
			"gone back": {func(h *dedup.Held) { h.Epoch += 1000 }, dedup.ErrRecordLost},
		} {
			h := s.claim(t)
			c.before(&h)
			err := s.store.InTx(t.Context(), done(h), s.insert(1))
			require.ErrorIs(t, err, c.want, name)
			require.Zero(t, s.orders(t), name)
		}
	})
}

// A committed verdict whose owner did not hear of it.
func TestOwnerThatAsksAgainIsTold(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		h := s.claim(t)
		require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)))
		require.Equal(t, dedup.Done, claimAll(t, s.store, h.ClaimRequest)[0].State)
	})
}

func TestWorkThatEndsItsTransactionIsToldSo(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		for name, end := range map[string]func(tx *sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
			h := s.claim(t)
			err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error { return end(tx) })
			require.ErrorIs(t, err, dedup.ErrTxEnded, name)
			require.ErrorContains(t, err, "return nil to commit")
			require.Equal(t, dedup.InProgress, claimAll(t, s.store, ask(h.Key))[0].State, name)
		}
	})
}

func TestPanicInWorkRollsBackAndGoesOn(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		h := s.claim(t)
		require.PanicsWithValue(t, "boom", func() {
			_ = s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
				require.NoError(t, s.insert(1)(tx))
				panic("boom")
			})
		})
		require.Zero(t, s.orders(t))
		require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)), "the connection is as good as before")
	})
}

func TestCancelledContextRollsBack(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		h := s.claim(t)
		ctx, cancel := context.WithCancel(t.Context())
		err := s.store.InTx(ctx, done(h), func(tx *sql.Tx) error {
			require.NoError(t, s.insert(1)(tx))
			cancel()
			return nil
		})
		require.Error(t, err)
		require.NotErrorIs(t, err, dedup.ErrTxEnded)
		require.NotErrorIs(t, err, dedup.ErrUnavailable, "the commit was never sent")
		require.Zero(t, s.orders(t))
		require.NoError(t, finishAll(t, s.store, []dedup.Held{h}, dedup.Released)[0])
	})
}

func TestOnlyDoneEndsInATransaction(t *testing.T) {
	s := openShop(t, openSQLite(t), nil)
	h := s.claim(t)
	for _, state := range []dedup.State{dedup.Retryable, dedup.Condemned, 0} {
		err := s.store.InTx(t.Context(), dedup.FinishRequest{Held: h, State: state}, func(*sql.Tx) error { panic("not to be called") })
		require.ErrorContains(t, err, "as done")
	}
	big := done(h)
	big.Result = make([]byte, 1<<20+1)
	require.ErrorContains(t, s.store.InTx(t.Context(), big, func(*sql.Tx) error { panic("not to be called") }), "MaxResult")
}

// The claim is committed when the transaction begins, so every isolation level sees it, and a rival's write is
// met by the comparison or by the database itself.
func TestEveryIsolationLevel(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		b.exec(t, "CREATE TABLE %s_orders (id INTEGER NOT NULL PRIMARY KEY, n INTEGER NOT NULL)")
		t.Cleanup(func() { _, _ = b.Exec("DROP TABLE IF EXISTS " + b.table + "_orders") })
		for id, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			s := &shop{b, b.bare(t, &sqlstore.Options{Tx: &sql.TxOptions{Isolation: level}})}
			require.NoError(t, s.store.Migrate(t.Context()))
			h := s.claim(t)
			read := func(tx *sql.Tx) error {
				s.ordersIn(t, tx) // the snapshot is taken
				return s.insert(id)(tx)
			}
			require.NoError(t, s.store.InTx(t.Context(), done(h), read), level)
			require.Equal(t, dedup.Done, claimAll(t, s.store, ask(h.Key))[0].State, level)

			h = s.claim(t)
			err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
				s.ordersIn(t, tx)
				require.NoError(t, extendAll(t, s.store, []dedup.Held{h})[0], "a beat after the snapshot")
				return s.insert(100 + id)(tx)
			})
			require.NoError(t, err, level)
			require.Equal(t, 2*(id+1), s.orders(t), level)
		}
	})
}

func TestOptionsOfTransactionsAreCopied(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		o := &sqlstore.Options{Tx: &sql.TxOptions{Isolation: sql.LevelReadCommitted}}
		s := openShop(t, b, o)
		o.Tx.ReadOnly = true
		require.NoError(t, s.store.InTx(t.Context(), done(s.claim(t)), s.insert(1)))
	})
}

func (s *shop) ordersIn(t testing.TB, tx *sql.Tx) (n int) {
	t.Helper()
	require.NoError(t, tx.QueryRow(fmt.Sprintf("SELECT count(*) FROM %s_orders", s.table)).Scan(&n))
	return n
}

// Two transactions that update two rows in opposite orders (SQLite has one writer at a time): one is the database's victim.
func TestDeadlockInWorkIsAConflict(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := openShop(t, b, nil)
		b.exec(t, "INSERT INTO %s_orders (id, n) VALUES (1, 0), (2, 0)")
		met := make(chan struct{})
		errs := make(chan error, 2)
		first := make(chan struct{}, 2)
		run := func(a, z int) {
			h := acquireAll(t, s.store, ask(newKey()))[0]
			errs <- s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
				if _, err := tx.Exec(fmt.Sprintf("UPDATE %s_orders SET n = n + 1 WHERE id = %d", s.table, a)); err != nil {
					return err
				}
				first <- struct{}{}
				<-met
				_, err := tx.Exec(fmt.Sprintf("UPDATE %s_orders SET n = n + 1 WHERE id = %d", s.table, z))
				return err
			})
		}
		go run(1, 2)
		go run(2, 1)
		<-first
		<-first
		close(met)
		one, two := <-errs, <-errs
		if one == nil {
			one, two = two, one
		}
		require.ErrorIs(t, one, dedup.ErrConflict)
		require.NoError(t, two)
	})
}

// What fails at the commit, when a deferred constraint is looked at, has not happened.
func TestCommitThatTheServerRefusesIsDefinite(t *testing.T) {
	b := openPostgreSQL(t)
	s := openShop(t, b, nil)
	b.exec(t, "ALTER TABLE %s_orders ADD COLUMN parent INTEGER REFERENCES %[1]s_orders (id) DEFERRABLE INITIALLY DEFERRED")
	h := s.claim(t)
	err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
		_, err := tx.Exec(fmt.Sprintf("INSERT INTO %s_orders (id, n, parent) VALUES (1, 1, 7)", s.table))
		return err
	})
	require.ErrorContains(t, err, "23503")
	require.NotErrorIs(t, err, dedup.ErrUnavailable)
	require.Zero(t, s.orders(t))
	require.Equal(t, dedup.Acquired, claimAll(t, s.store, h.ClaimRequest)[0].State)
}

// The usual order of a handler, read and then write, which SQLite refuses in a transaction that
// began without the lock to write.
func TestReadThenWriteOnSQLiteWithASecondWriter(t *testing.T) {
	s := openShop(t, openSQLite(t), nil)
	s.exec(t, "INSERT INTO %s_orders (id, n) VALUES (1, 0)")
	const writers, rounds = 4, 10
	errs := make(chan error, writers)
	for range writers {
		go func() {
			for range rounds {
				h := acquireAll(t, s.store, ask(newKey()))[0]
				err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
					var n int
					if err := tx.QueryRow(fmt.Sprintf("SELECT n FROM %s_orders WHERE id = 1", s.table)).Scan(&n); err != nil {
						return err
					}
					_, err := tx.Exec(fmt.Sprintf("UPDATE %s_orders SET n = %d WHERE id = 1", s.table, n+1))
					return err
				})
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers {
		require.NoError(t, <-errs)
	}
	var n int
	require.NoError(t, s.QueryRow(fmt.Sprintf("SELECT n FROM %s_orders WHERE id = 1", s.table)).Scan(&n))
	require.Equal(t, writers*rounds, n)
}

// SQLite has no statement that waits. A driver closes a connection on which a context ends, which must not look as if the database had gone.
func TestStatementThatOutlivesItsContextIsTheWorksOwnFailure(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		sleep := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "SELECT pg_sleep(20)", sqlstore.MySQL: "SELECT SLEEP(20)"}[b.dialect]
		s := openShop(t, b, nil)
		for range 10 {
			h := s.claim(t)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			err := s.store.InTx(ctx, done(h), func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, sleep)
				return err
			})
			cancel()
			require.Error(t, err)
			require.NotErrorIs(t, err, dedup.ErrUnavailable)
		}
	})
}
