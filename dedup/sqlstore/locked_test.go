package sqlstore_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

// snapshots runs f with each kind of transaction in which a beat would be a conflict.
func snapshots(t *testing.T, f func(t *testing.T, s *shop)) {
	for name, o := range map[string]sql.TxOptions{
		"repeatable read": {Isolation: sql.LevelRepeatableRead}, "serializable": {Isolation: sql.LevelSerializable}, "the server's default": {},
	} {
		t.Run(name, func(t *testing.T) { f(t, openShop(t, openPostgreSQL(t), &sqlstore.Options{Tx: &o})) })
	}
}

func TestLeaseLastsAsLongAsATransactionWithASnapshot(t *testing.T) {
	snapshots(t, func(t *testing.T, s *shop) {
		q := ask(newKey())
		q.Lease = time.Microsecond
		h := acquireAll(t, s.store, q)[0]
		require.NoError(t, s.store.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
			require.NoError(t, s.insert(1)(tx))
			for range 3 {
				require.NoError(t, extendAll(t, s.store, []dedup.Held{h})[0])
			}
			v := claimAll(t, s.store, ask(h.Key))[0]
			require.Equal(t, dedup.InProgress, v.State, "nobody follows, though the lease in the row is over")
			return nil
		}))
		require.Equal(t, 1, s.orders(t))
		require.Equal(t, dedup.Done, claimAll(t, s.store, ask(h.Key))[0].State)
	})
}

func TestLeaseBeginsAnewAfterATransactionWithASnapshot(t *testing.T) {
	snapshots(t, func(t *testing.T, s *shop) {
		h := s.claim(t)
		err := s.store.InTx(t.Context(), done(h), func(*sql.Tx) error { return errWork })
		require.Equal(t, errWork, err)
		before, err := s.store.Inspect(t.Context(), h.Key)
		require.NoError(t, err)
		require.Equal(t, errWork, s.store.InTx(t.Context(), done(h), func(*sql.Tx) error { return errWork }))
		after, err := s.store.Inspect(t.Context(), h.Key)
		require.NoError(t, err)
		require.Greater(t, after.LeaseUntil, before.LeaseUntil)
	})
}

// Work is not called for a claim that is another's already.
func TestTransactionWithASnapshotOfAFormerOwner(t *testing.T) {
	snapshots(t, func(t *testing.T, s *shop) {
		h := s.claim(t)
		require.NoError(t, finishAll(t, s.store, []dedup.Held{h}, dedup.Released)[0])
		err := s.store.InTx(t.Context(), done(h), func(*sql.Tx) error { panic("not to be called") })
		require.ErrorIs(t, err, dedup.ErrSuperseded)
		s.exec(t, "DELETE FROM %s")
		err = s.store.InTx(t.Context(), done(h), func(*sql.Tx) error { panic("not to be called") })
		require.ErrorIs(t, err, dedup.ErrRecordLost)
	})
}

// That it runs alone decides whether its crash counts, so it is not enough that the lock stands for the lease.
func TestLockDoesNotStandForRunningAlone(t *testing.T) {
	snapshots(t, func(t *testing.T, s *shop) {
		alone := func(h dedup.Held) error {
			errs := make([]error, 1)
			require.NoError(t, s.store.Extend(t.Context(), []dedup.ExtendRequest{{Held: h, Alone: true}}, errs))
			return errs[0]
		}
		h := s.claim(t)
		require.NoError(t, s.store.InTx(t.Context(), done(h), func(*sql.Tx) error {
			require.ErrorContains(t, alone(h), "locked")
			return nil
		}))
		h = s.claim(t)
		require.NoError(t, alone(h))
		require.NoError(t, s.store.InTx(t.Context(), done(h), func(*sql.Tx) error { return alone(h) }), "it is in the row already")
	})
}
