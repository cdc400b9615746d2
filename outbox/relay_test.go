package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

func TestFullBatchesCostATenthOfAStatementAMessageAtMost(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		n := 10_000
		if b.dialect == outbox.SQLite { // which is slow under the race detector
			n = 3000
		}
		for at := 0; at < n; at += 1000 {
			ms := make([]outbox.Message, 1000)
			for i := range ms {
				ms[i] = outbox.Message{Topic: "t", Key: fmt.Sprint(at + i)}
			}
			b.write(t, ms...)
		}
		db, statements := counted(t, open(t, b.driver, b.dsn), b.dsn)
		stop := run(t, b.outbox(t, db, nil), takesAll, outbox.RelayOptions{Poll: time.Minute})
		b.awaitSent(t)
		stop()
		require.LessOrEqual(t, statements.Load(), int64(n/10))
		t.Logf("%d statements for %d messages: %.4f a message", statements.Load(), n, float64(statements.Load())/float64(n))
	})
}

func TestIdleRelayAsksTwelveTimesASecondAtMost(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, b *base) {
		db, statements := counted(t, open(t, b.driver, b.dsn), b.dsn)
		run(t, b.outbox(t, db, nil), takesAll, outbox.RelayOptions{})
		b.write(t, outbox.Message{Topic: "t"})
		b.awaitSent(t)
		before, began := statements.Load(), time.Now()
		<-time.After(3 * time.Second)
		rate := float64(statements.Load()-before) / time.Since(began).Seconds()
		require.LessOrEqual(t, rate, 12.0)
		require.Positive(t, rate, "it does poll")
		t.Logf("%.1f statements/s", rate)
	})
}

// TestRowThatCannotBeReadIsParkedAlone: somebody has changed it, or another program wrote it.
func TestRowThatCannotBeReadIsParkedAlone(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		for n := range 10 {
			b.write(t, outbox.Message{ID: fmt.Sprint(n), Topic: "t", Key: fmt.Sprint(n % 5), Headers: map[string]string{"a": "b"}})
		}
		b.exec(t, "UPDATE "+b.table+" SET headers = 'x' WHERE id = '2'")
		got := &arrived{}
		run(t, b.Outbox, got, outbox.RelayOptions{})
		b.awaitStats(t, 1, 1) // 7 waits for 2
		require.ElementsMatch(t, []string{"0", "1", "3", "4", "5", "6", "8", "9"}, got.all())
		var reason string
		require.NoError(t, b.db.QueryRow("SELECT last_error FROM "+b.table+" WHERE id = '2' AND state = 2").Scan(&reason))
		require.Contains(t, reason, `ID "2": its headers cannot be read: `)
		b.exec(t, "UPDATE "+b.table+" SET headers = NULL WHERE id = '2'")
		require.NoError(t, b.Requeue(t.Context(), "2"))
		b.awaitSent(t)
	})
}

// TestDroppedTableEndsRunAtOnce: that its version is noted still does not make it one that is out of reach.
func TestDroppedTableEndsRunAtOnce(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		b.exec(t, "DROP TABLE "+b.table+"_shards")
		r, err := outbox.NewRelay(b.Outbox, takesAll, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), eventually)
		defer cancel()
		require.ErrorContains(t, r.Run(ctx), "table "+b.table+", or one beside it, is missing")
	})
}

func TestSecondRunIsRefused(t *testing.T) {
	b := newBase(t, outbox.SQLite)
	sent := make(chan struct{}, 1)
	r, err := outbox.NewRelay(b.Outbox, publisher(func([]outbox.Message, []error) error { sent <- struct{}{}; return nil }), nil)
	require.NoError(t, err)
	b.write(t, outbox.Message{Topic: "t"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	<-sent
	require.ErrorIs(t, r.Run(ctx), outbox.ErrRunning)
	cancel()
	require.NoError(t, <-done)
}

func TestOptionsThatCannotBeAreRefusedByName(t *testing.T) {
	b := newBase(t, outbox.SQLite)
	for want, ro := range map[string]outbox.RelayOptions{
		"RelayOptions.Batch -1":                         {Batch: -1},
		"RelayOptions.Batch 10001":                      {Batch: 10_001},
		"RelayOptions.Poll -1ns":                        {Poll: -1},
		"RelayOptions.Lease 1ms is too short":           {Lease: time.Millisecond},
		"RelayOptions.MaxAttempts -3":                   {MaxAttempts: -3},
		"RelayOptions.MaxBackoff 1s is shorter than Ba": {Backoff: 2 * time.Second, MaxBackoff: time.Second},
		"only PostgreSQL has NOTIFY":                    {Listen: func(context.Context, string, func()) error { return nil }},
	} {
		_, err := outbox.NewRelay(b.Outbox, takesAll, &ro)
		require.ErrorContains(t, err, want)
	}
	_, err := outbox.NewRelay(nil, takesAll, nil)
	require.ErrorContains(t, err, "one is nil")
	for want, o := range map[string]outbox.Options{
		"Options.Table: table":       {Table: "a b"},
		"only PostgreSQL has NOTIFY": {Notify: true},
	} {
		_, err := outbox.New(b.db, outbox.SQLite, &o)
		require.ErrorContains(t, err, want)
	}
	_, err = outbox.New(nil, outbox.SQLite, nil)
	require.ErrorContains(t, err, "db is nil")
	_, err = outbox.New(b.db, "oracle", nil)
	require.ErrorContains(t, err, "oracle")
}

// TestNotificationWakesAnotherProcess has relay and writer know nothing of each other but the database.
func TestNotificationWakesAnotherProcess(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	var told, listening, losses atomic.Int64
	sent := make(chan struct{}, 100)
	run(t, b.outbox(t, b.db, nil), publisher(func(ms []outbox.Message, _ []error) error {
		for range ms {
			sent <- struct{}{}
		}
		return nil
	}), outbox.RelayOptions{Poll: time.Hour, Backoff: time.Millisecond, Listen: func(ctx context.Context, channel string, notified func()) error {
		c, err := pgx.Connect(ctx, b.dsn)
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		if _, err := c.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return err
		}
		listening.Add(1)
		for {
			if _, err := c.WaitForNotification(ctx); err != nil {
				return err
			}
			told.Add(1)
			notified()
			if told.Load() == 1 {
				losses.Add(1)
				return context.DeadlineExceeded // the connection breaks, and is made again
			}
		}
	}})
	writer := b.outbox(t, b.db, &outbox.Options{Notify: true})
	for n := range 3 {
		require.Eventually(t, func() bool { return listening.Load() == 1+losses.Load() }, eventually, time.Millisecond)
		<-time.After(15 * time.Millisecond) // past the moment in which a second notification would be left out
		require.NoError(t, writer.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			return writer.Write(ctx, tx, outbox.Message{Topic: "t", Key: "k", Body: fmt.Append(nil, n)})
		}))
		select {
		case <-sent:
		case <-time.After(eventually):
			require.Fail(t, "nobody was woken")
		}
	}
	before := told.Load()
	for range 200 {
		require.NoError(t, writer.InTx(t.Context(), nil, func(context.Context, *sql.Tx) error { return nil }))
	}
	require.Less(t, told.Load()-before, int64(200), "notifications are debounced")
	require.EqualValues(t, 1, losses.Load())
}
