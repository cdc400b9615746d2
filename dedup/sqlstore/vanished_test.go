package sqlstore_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

// swallow is work whose transaction ends before it does, and which passes over that.
func (s *shop) swallow(t testing.TB, id int, statement string) func(tx *sql.Tx) error {
	return func(tx *sql.Tx) error {
		require.NoError(t, s.insert(id)(tx))
		_, _ = tx.Exec(fmt.Sprintf(statement, s.table))
		return nil
	}
}

func TestVerdictDoesNotCommitWithoutItsTransaction(t *testing.T) {
	for dialect, statements := range map[string]map[string]string{
		"sqlite": {"rolled back by a statement": "INSERT OR ROLLBACK INTO %s_orders VALUES (7, 1)", "rollback as text": "ROLLBACK /* %s */"},
		"mysql":  {"rollback as text": "ROLLBACK /* %s */"},
	} {
		t.Run(dialect, func(t *testing.T) {
			s := openShop(t, bases[dialect](t), nil)
			s.exec(t, "INSERT INTO %s_orders (id, n) VALUES (7, 0)")
			for name, statement := range statements {
				h := s.claim(t)
				err := s.store.InTx(t.Context(), done(h), s.swallow(t, 1, statement))
				require.ErrorIs(t, err, dedup.ErrConflict, name)
				require.Equal(t, 1, s.orders(t), name)
				require.Equal(t, dedup.InProgress, claimAll(t, s.store, ask(h.Key))[0].State, name)
				require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)), name)
				require.Equal(t, dedup.Done, claimAll(t, s.store, ask(h.Key))[0].State, name)
				s.exec(t, "DELETE FROM %s_orders WHERE id = 1")
			}
		})
	}
}

// InnoDB's victim is the transaction that has changed less, whoever asks last.
func TestDeadlockThatWorkPassesOverIsAConflict(t *testing.T) {
	b := openMySQL(t)
	s := openShop(t, b, nil)
	const rows = 20
	for id := range rows {
		b.exec(t, "INSERT INTO %s_orders (id, n) VALUES ("+fmt.Sprint(id)+", 0)")
	}
	update := func(tx *sql.Tx, id int) error {
		_, err := tx.Exec(fmt.Sprintf("UPDATE %s_orders SET n = n + 1 WHERE id = %d", s.table, id))
		return err
	}
	h := s.claim(t)
	err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
		require.NoError(t, s.insert(100)(tx))
		require.NoError(t, update(tx, 1))
		other, err := b.Begin()
		require.NoError(t, err)
		for id := 2; id < rows; id++ {
			require.NoError(t, update(other, id))
		}
		over := make(chan error, 1)
		go func() { over <- update(other, 1) }()
		require.ErrorContains(t, update(tx, 2), "1213", "passed over")
		require.NoError(t, <-over)
		require.NoError(t, other.Commit())
		return nil
	})
	require.ErrorIs(t, err, dedup.ErrConflict)
	require.Equal(t, rows, s.orders(t))
	require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(100)))
	require.Equal(t, rows+1, s.orders(t))
}

// Were it tried again for ever, what it commits would be there as often.
func TestWorkWhoseTransactionVanishesEachTimeIsToldThatItEndsIt(t *testing.T) {
	for dialect, statement := range map[string]string{
		"sqlite": "COMMIT /* %s */",
		"mysql":  "CREATE TABLE %[1]s_made (id INTEGER)", // which commits by itself
	} {
		t.Run(dialect, func(t *testing.T) {
			s := openShop(t, bases[dialect](t), nil)
			t.Cleanup(func() { _, _ = s.Exec("DROP TABLE IF EXISTS " + s.table + "_made") })
			h := s.claim(t)
			for id := range 2 {
				require.ErrorIs(t, s.store.InTx(t.Context(), done(h), s.swallow(t, id, statement)), dedup.ErrConflict)
			}
			require.NoError(t, s.store.InTx(t.Context(), done(s.claim(t)), s.insert(2)), "of another claim")
			err := s.store.InTx(t.Context(), done(h), s.swallow(t, 3, statement))
			require.ErrorIs(t, err, dedup.ErrTxEnded)
			require.NotErrorIs(t, err, dedup.ErrConflict)
			require.ErrorIs(t, s.store.InTx(t.Context(), done(h), s.swallow(t, 4, statement)), dedup.ErrConflict, "counted anew")
			require.Equal(t, dedup.InProgress, claimAll(t, s.store, ask(h.Key))[0].State)
		})
	}
}

// PostgreSQL answers nothing more in a transaction in which a statement has failed, and rolls back at COMMIT.
func TestFailedStatementThatWorkPassesOverOnPostgreSQL(t *testing.T) {
	s := openShop(t, openPostgreSQL(t), nil)
	h := s.claim(t)
	err := s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
		require.NoError(t, s.insert(1)(tx))
		require.ErrorContains(t, s.insert(1)(tx), "23505", "passed over")
		return nil
	})
	require.ErrorContains(t, err, "25P02")
	require.Zero(t, s.orders(t))
	require.Equal(t, dedup.InProgress, claimAll(t, s.store, ask(h.Key))[0].State)
	require.NoError(t, s.store.InTx(t.Context(), done(h), s.insert(1)))
}

// The transaction is over when InTx comes to roll it back, which is no lost connection.
func TestErrorThatRolledBackComesAsItIs(t *testing.T) {
	s := openShop(t, openSQLite(t), nil)
	s.exec(t, "INSERT INTO %s_orders (id, n) VALUES (7, 0)")
	var own error
	err := s.store.InTx(t.Context(), done(s.claim(t)), func(tx *sql.Tx) error {
		_, own = tx.Exec(fmt.Sprintf("INSERT OR ROLLBACK INTO %s_orders VALUES (7, 1)", s.table))
		return own
	})
	require.Error(t, own)
	require.Equal(t, own, err)
}
