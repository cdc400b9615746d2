package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// fill makes n pending rows by the server itself, of keys k0, k1, …, all in the lanes that Write would choose for one key each.
func (b *base) fill(t *testing.T, n int, key string) {
	t.Helper()
	b.write(t, outbox.Message{ID: "first", Topic: "t", Key: key})
	text := map[outbox.Dialect]string{
		outbox.PostgreSQL: "INSERT INTO %[1]s (id, lane, shard, topic, msg_key, content, created_at, state, attempts, last_error) SELECT 'r-' || n, lane + n * 64 * $1, shard, 't', 'k' || n, '', 0, 0, 0, '' FROM %[1]s, generate_series(1, $2::int) AS n WHERE id = 'first'",
		outbox.SQLite:     "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %[2]d) INSERT INTO %[1]s (id, lane, shard, topic, msg_key, content, created_at, state, attempts, last_error) SELECT 'r-' || n, lane / 2 + n * 64 * ?, shard, 't', 'k' || n, '', 0, 0, 0, '' FROM %[1]s, s WHERE id = 'first'",
		outbox.MySQL:      "INSERT INTO %[1]s (id, lane, shard, topic, msg_key, content, created_at, state, attempts, last_error) SELECT CONCAT('r-', s.seq), (lane DIV 2) + CAST(s.seq AS SIGNED) * 64 * ?, shard, 't', CONCAT('k', s.seq), '', 0, 0, 0, '' FROM %[1]s, seq_1_to_%[2]d AS s WHERE id = 'first'",
	}[b.dialect]
	spread := 1
	if key != "" {
		spread = 0
	}
	args := []any{spread, n}
	if b.dialect != outbox.PostgreSQL {
		args = args[:1]
		text = fmt.Sprintf(text, b.table, n)
	} else {
		text = fmt.Sprintf(text, b.table)
	}
	_, err := b.db.ExecContext(t.Context(), text, args...)
	require.NoError(t, err)
}

// many is IDEMQ_SQL_ROWS, or a million with IDEMQ_CHAOS_FULL=1, and part of it otherwise.
func many(part int) int {
	if n, err := strconv.Atoi(os.Getenv("IDEMQ_SQL_ROWS")); err == nil {
		return n
	}
	if os.Getenv("IDEMQ_CHAOS_FULL") == "1" {
		return 1_000_000
	}
	return part
}

// TestManyPendingRowsAreReadAtTheirHead has a relay begin with a table whose statistics say that it is empty, as after a long outage.
func TestManyPendingRowsAreReadAtTheirHead(t *testing.T) {
	for _, d := range []outbox.Dialect{outbox.PostgreSQL, outbox.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			b := newBase(t, d)
			n := many(100_000)
			b.fill(t, 2*n, "")
			_, err := b.db.Exec("UPDATE " + b.table + " SET state = 2 WHERE seq % 2 = 0") // and as many parked ones
			require.NoError(t, err)
			var sent atomic.Int64
			var slowest atomic.Int64
			last := time.Now()
			enough := make(chan struct{})
			stop := run(t, b.Outbox, publisher(func(ms []outbox.Message, _ []error) error {
				if sent.Load() > 0 {
					slowest.Store(max(slowest.Load(), int64(time.Since(last))))
				}
				last = time.Now()
				if before := sent.Load(); before < 10_000 && sent.Add(int64(len(ms))) >= 10_000 {
					close(enough)
				}
				return nil
			}), outbox.RelayOptions{})
			began := time.Now()
			select {
			case <-enough:
			case <-time.After(2 * time.Minute):
				require.Fail(t, "too slow")
			}
			t.Logf("10,000 of %d pending rows and as many parked ones in %v, the longest pause between two batches %v", n, time.Since(began), time.Duration(slowest.Load()))
			stop()
			began = time.Now()
			s, err := b.Stats(t.Context())
			require.NoError(t, err)
			t.Logf("%d counted in %v", s.Pending, time.Since(began))
		})
	}
}

// TestRestoredTableGoesOn dumps a table with pending, sent and parked rows and restores it into another one, with
// the numbers that the next rows get.
func TestRestoredTableGoesOn(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		stop := run(t, b.Outbox, publisher(func(ms []outbox.Message, errs []error) error {
			for i := range ms {
				if ms[i].Key == "bad" {
					errs[i] = outbox.Permanent(errors.New("never"))
				}
			}
			return nil
		}), outbox.RelayOptions{})
		b.write(t, outbox.Message{ID: "sent", Topic: "t", Key: "k"}, outbox.Message{ID: "parked", Topic: "t", Key: "bad"})
		require.Eventually(t, func() bool {
			s, err := b.Stats(t.Context())
			return err == nil && s.Pending == 0 && s.Parked == 1
		}, eventually, 5*time.Millisecond)
		stop()
		b.write(t, outbox.Message{ID: "k-0", Topic: "t", Key: "k"}, outbox.Message{ID: "k-1", Topic: "t", Key: "k"})

		restored := newBase(t, b.dialect)
		columns := "seq, id, lane, shard, topic, msg_key, content, created_at, sent_at, state, attempts, last_error, headers, body"
		if b.dialect == outbox.SQLite { // another file
			_, err := restored.db.Exec("ATTACH '" + strings.TrimPrefix(strings.Split(b.dsn, "?")[0], "file:") + "' AS dump")
			require.NoError(t, err)
			restored.db.SetMaxOpenConns(1)
			_, err = restored.db.Exec(fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM dump.%s", restored.table, columns, columns, b.table))
			require.NoError(t, err)
			restored.db.SetMaxOpenConns(16)
		} else {
			_, err := restored.db.Exec(fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", restored.table, columns, columns, b.table))
			require.NoError(t, err)
		}
		if b.dialect == outbox.PostgreSQL { // as pg_dump does
			_, err := restored.db.Exec(fmt.Sprintf("SELECT setval(pg_get_serial_sequence('%[1]s', 'seq'), (SELECT max(seq) FROM %[1]s))", restored.table))
			require.NoError(t, err)
		}
		restored.write(t, outbox.Message{ID: "k-2", Topic: "t", Key: "k"}, outbox.Message{ID: "sent", Topic: "t", Key: "k"})
		var mu sync.Mutex
		var ids []string
		run(t, restored.Outbox, publisher(func(ms []outbox.Message, _ []error) error {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range ms {
				ids = append(ids, m.ID)
			}
			return nil
		}), outbox.RelayOptions{})
		require.NoError(t, restored.Requeue(t.Context(), "parked"))
		restored.awaitSent(t)
		mu.Lock()
		defer mu.Unlock()
		require.ElementsMatch(t, []string{"k-0", "k-1", "k-2", "parked"}, ids)
		var ofKey []string
		for _, id := range ids {
			if id != "parked" {
				ofKey = append(ofKey, id)
			}
		}
		require.Equal(t, []string{"k-0", "k-1", "k-2"}, ofKey)
	})
}

// TestDeadlocksOfWritersEndInAnErrorThatTheyCanRepeat has two handlers write the same IDs in opposite order.
func TestDeadlocksOfWritersEndInAnErrorThatTheyCanRepeat(t *testing.T) {
	for _, d := range []outbox.Dialect{outbox.PostgreSQL, outbox.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			b := newBase(t, d)
			run(t, b.Outbox, takesAll, outbox.RelayOptions{Poll: time.Millisecond})
			const rounds = 30
			var repeated atomic.Int64
			for n := range rounds {
				var wg sync.WaitGroup
				for w := range 2 {
					wg.Go(func() {
						ids := []string{fmt.Sprint("a-", n), fmt.Sprint("b-", n)}
						if w == 1 {
							ids[0], ids[1] = ids[1], ids[0]
						}
						for {
							err := b.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
								for _, id := range ids {
									if err := b.Write(ctx, tx, outbox.Message{ID: id, Topic: "t"}); err != nil {
										return err
									}
								}
								return nil
							})
							if err == nil {
								return
							}
							if errors.Is(err, outbox.ErrConflict) {
								t.Error(err)
								return
							}
							repeated.Add(1)
						}
					})
				}
				wg.Wait()
			}
			b.awaitSent(t)
			var rows int
			require.NoError(t, b.db.QueryRow("SELECT count(*) FROM "+b.table+" WHERE state = 1").Scan(&rows))
			require.Equal(t, 2*rounds, rows)
			t.Logf("%d transactions were repeated", repeated.Load())
		})
	}
}

// TestDatabaseAwayKeepsWhatTheBrokerHas stops the database's answers between publish and write-back: the row is
// marked when it is back, and not published again.
func TestDatabaseAwayKeepsWhatTheBrokerHas(t *testing.T) {
	b := newBase(t, outbox.SQLite)
	var calls atomic.Int64
	var lock *sql.Conn
	locked := make(chan struct{})
	run(t, b.Outbox, publisher(func([]outbox.Message, []error) error {
		if calls.Add(1) == 1 {
			c, err := b.db.Conn(context.Background())
			if err == nil {
				_, err = c.ExecContext(context.Background(), "ALTER TABLE "+b.table+" RENAME TO "+b.table+"_away")
			}
			if err != nil {
				t.Error(err)
			}
			lock = c
			close(locked)
		}
		return nil
	}), outbox.RelayOptions{Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond})
	b.write(t, outbox.Message{Topic: "t"})
	<-locked
	<-time.After(100 * time.Millisecond)
	_, err := lock.ExecContext(t.Context(), "ALTER TABLE "+b.table+"_away RENAME TO "+b.table)
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	b.awaitSent(t)
	require.EqualValues(t, 1, calls.Load())
}

// TestLeasesLiveWhileTransactionsHaveAllConnections: beats have one of their own.
func TestLeasesLiveWhileTransactionsHaveAllConnections(t *testing.T) {
	for _, d := range []outbox.Dialect{outbox.PostgreSQL, outbox.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			b := newBase(t, d)
			small := open(t, b.driver, b.dsn)
			small.SetMaxOpenConns(4)
			t.Cleanup(func() { _ = small.Close() })
			run(t, b.outbox(t, small, nil), takesAll, outbox.RelayOptions{Lease: 300 * time.Millisecond})
			b.write(t, outbox.Message{Topic: "t"})
			b.awaitSent(t)
			for range 3 {
				tx, err := small.BeginTx(t.Context(), nil)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback() }()
			}
			until := func() (us int64) {
				require.NoError(t, b.db.QueryRow("SELECT max(lease_until) FROM "+b.table+"_shards WHERE shard < 64").Scan(&us))
				return us
			}
			first := until()
			require.Eventually(t, func() bool { return until() > first+1_000_000 }, eventually, 10*time.Millisecond)
		})
	}
}
