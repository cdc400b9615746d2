package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/outbox"
)

// TestRowsThatATransactionHasLockedHoldUpNoOthers: a handler that runs again has written their IDs, on PostgreSQL somebody looks at
// them for long, and does not come to an end. One of them was sent, the other was not taken.
func TestRowsThatATransactionHasLockedHoldUpNoOthers(t *testing.T) {
	for _, d := range []outbox.Dialect{outbox.PostgreSQL, outbox.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			b := newBase(t, d)
			locked := []outbox.Message{{ID: "sent", Topic: "t"}, {ID: "bad", Topic: "t", Key: "bad"}}
			b.write(t, locked...)
			entered, gate := make(chan bool, 1), make(chan bool)
			var once atomic.Bool
			var superseded atomic.Int64
			run(t, b.Outbox, publisher(func(ms []outbox.Message, errs []error) error {
				if once.CompareAndSwap(false, true) {
					entered <- true
					<-gate
				}
				for i, m := range ms {
					if m.Key == "bad" {
						errs[i] = outbox.Permanent(errors.New("never"))
					}
				}
				return nil
			}), outbox.RelayOptions{Batch: 16, Lease: 3 * time.Second, Observe: func(e dedup.Event) {
				if e.Cause == "superseded" {
					superseded.Add(int64(e.N))
				}
			}})
			<-entered
			open := sync.OnceFunc(func() { close(gate) })
			defer open()
			ms := make([]outbox.Message, 300)
			for n := range ms {
				ms[n] = outbox.Message{ID: fmt.Sprint(n), Topic: "t", Key: fmt.Sprint("k", n%100)}
			}
			b.write(t, ms...)
			tx, err := b.db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			if d == outbox.MySQL {
				require.NoError(t, b.Write(t.Context(), tx, locked...))
			} else {
				_, err := tx.Exec("SELECT id FROM " + b.table + " WHERE id IN ('sent', 'bad') FOR UPDATE")
				require.NoError(t, err)
			}
			open()
			b.awaitStats(t, 2, 0)
			require.NoError(t, tx.Commit())
			b.awaitStats(t, 0, 1)
			require.Zero(t, superseded.Load())
		})
	}
}

// TestStatementsOfARelayLeaveNoSettingBehind: a pool's connections are the program's, too.
func TestStatementsOfARelayLeaveNoSettingBehind(t *testing.T) {
	b := newBase(t, outbox.MySQL)
	small := open(t, b.driver, b.dsn)
	small.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = small.Close() })
	settings := func() (wait int, level string) {
		require.NoError(t, small.QueryRow("SELECT @@innodb_lock_wait_timeout, @@tx_isolation").Scan(&wait, &level))
		return wait, level
	}
	wait, level := settings()
	swept := make(chan struct{}, 1000)
	o := b.outbox(t, small, nil)
	require.NoError(t, o.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error { return o.Write(ctx, tx, outbox.Message{Topic: "t"}) }))
	stop := run(t, o, takesAll, outbox.RelayOptions{Retention: time.Microsecond, Sweep: time.Millisecond, Observe: func(e dedup.Event) {
		if e.Cause == "swept" {
			swept <- struct{}{}
		}
	}})
	<-swept
	stop()
	after, now := settings()
	require.Equal(t, wait, after)
	require.Equal(t, level, now)
}
