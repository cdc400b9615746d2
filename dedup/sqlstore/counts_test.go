package sqlstore_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

// TestStatementsOfEachCall holds the costs that the package's documentation tells.
func TestStatementsOfEachCall(t *testing.T) {
	const n = 100
	want := map[sqlstore.Dialect]map[string]string{
		sqlstore.PostgreSQL: {
			"claim of new keys": "WITH", "claim of done keys": "WITH", "claim in progress": "WITH", "takeover": "WITH WITH",
			"extend": "WITH", "finish": "WITH", "finish repeated": "WITH WITH", "finish of lost records": "WITH WITH INSERT", "in tx": "BEGIN UPDATE COMMIT",
		},
		sqlstore.MySQL: {
			"claim of new keys": "SELECT INSERT", "claim of done keys": "SELECT", "claim in progress": "SELECT", "takeover": "SELECT SELECT UPDATE",
			"extend": "SELECT UPDATE", "finish": "UPDATE", "finish repeated": "UPDATE SELECT", "finish of lost records": "UPDATE SELECT INSERT", "in tx": "BEGIN SAVEPOINT RELEASE UPDATE COMMIT",
		},
		sqlstore.SQLite: {
			"claim of new keys": "SELECT INSERT", "claim of done keys": "SELECT", "claim in progress": "SELECT", "takeover": "SELECT UPDATE",
			"extend": "UPDATE", "finish": "UPDATE", "finish repeated": "UPDATE SELECT", "finish of lost records": "UPDATE SELECT INSERT", "in tx": "BEGIN UPDATE RELEASE UPDATE COMMIT",
		},
	}
	eachBase(t, func(t *testing.T, b *base) {
		b, spy := b.spied(t, b.dsn)
		s := b.store(t)
		again := func(held []dedup.Held) {
			in := make([]dedup.ClaimRequest, len(held))
			for i := range held {
				in[i] = ask(held[i].Key)
			}
			claimAll(t, s, in...)
		}
		for name, c := range map[string]struct {
			state dedup.State // of the keys before
			call  func(held []dedup.Held)
		}{
			"claim of new keys":  {0, func([]dedup.Held) { acquireAll(t, s, asks(n)...) }},
			"claim of done keys": {dedup.Done, again},
			"claim in progress":  {dedup.InProgress, again},
			"takeover":           {dedup.Retryable, again},
			"extend":             {dedup.InProgress, func(held []dedup.Held) { extendAll(t, s, held) }},
			"finish":             {dedup.InProgress, func(held []dedup.Held) { finishAll(t, s, held, dedup.Done) }},
			"finish repeated":    {dedup.Done, func(held []dedup.Held) { finishAll(t, s, held, dedup.Done) }},
			"finish of lost records": {0, func([]dedup.Held) {
				held := make([]dedup.Held, n)
				for i := range held {
					held[i] = dedup.Held{ClaimRequest: ask(newKey()), Epoch: uint64(time.Now().UnixMilli()), Attempt: 1}
				}
				for _, err := range finishAll(t, s, held, dedup.Done) {
					require.ErrorIs(t, err, dedup.ErrRecordLost)
				}
			}},
			"in tx": {dedup.InProgress, func(held []dedup.Held) {
				require.NoError(t, s.InTx(t.Context(), done(held[0]), func(*sql.Tx) error { return nil }))
			}},
		} {
			var held []dedup.Held
			if c.state != 0 {
				held = acquireAll(t, s, asks(n)...)
			}
			if c.state != 0 && c.state != dedup.InProgress {
				finishAll(t, s, held, c.state)
			}
			spy.watch(nil)
			c.call(held)
			require.Equal(t, want[b.dialect][name], strings.Join(spy.statements(), " "), name)
		}
	})
}

// Above READ COMMITTED one statement more keeps the claim.
func TestStatementsOfASerializableTransaction(t *testing.T) {
	b := openPostgreSQL(t)
	b, spy := b.spied(t, b.dsn)
	s := b.bare(t, &sqlstore.Options{Tx: &sql.TxOptions{Isolation: sql.LevelSerializable}})
	require.NoError(t, s.Migrate(t.Context()))
	h := acquireAll(t, s, ask(newKey()))[0]
	spy.watch(nil)
	require.NoError(t, s.InTx(t.Context(), done(h), func(*sql.Tx) error {
		extendAll(t, s, []dedup.Held{h})
		return nil
	}))
	require.Equal(t, "BEGIN SELECT WITH UPDATE COMMIT", strings.Join(spy.statements(), " "), "and one for the beat, which finds the row locked")
}

// The server frees the lock of a session that it ends, and knows nothing of the work that goes on.
func TestBeatsGoOnWhereTheLockIsGone(t *testing.T) {
	b := openPostgreSQL(t)
	s := b.bare(t, &sqlstore.Options{Tx: &sql.TxOptions{Isolation: sql.LevelSerializable}})
	require.NoError(t, s.Migrate(t.Context()))
	h := acquireAll(t, s, ask(newKey()))[0]
	require.Error(t, s.InTx(t.Context(), done(h), func(tx *sql.Tx) error {
		var pid int
		require.NoError(t, tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
		_, err := b.Exec("SELECT pg_terminate_backend($1)", pid)
		require.NoError(t, err)
		h.Lease = time.Hour
		require.Eventually(t, func() bool {
			extendAll(t, s, []dedup.Held{h})
			v := claimAll(t, s, ask(h.Key))[0]
			require.Equal(t, dedup.InProgress, v.State)
			return v.Left > time.Hour/2
		}, time.Minute, 10*time.Millisecond)
		return nil
	}))
}
