package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

func TestRelaysOnOneSmallPoolLeaveItConnections(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	small := open(t, b.driver, b.dsn)
	small.SetMaxOpenConns(4)
	t.Cleanup(func() { _ = small.Close() })
	o := b.outbox(t, small, nil)
	for range 4 {
		run(t, o, takesAll, outbox.RelayOptions{})
	}
	require.Eventually(t, func() bool { return b.relays(t) == 4 }, time.Minute, 10*time.Millisecond)
	b.write(t, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"})
	b.awaitSent(t)
	require.NoError(t, small.PingContext(t.Context()))
}

// relays is how many have said that they live.
func (b *base) relays(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, b.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.table+"_relays").Scan(&n))
	return n
}

// After a switch-over by which no connection breaks, those to the server of before answer that it must not write.
func TestRelayLeavesAServerThatIsNoPrimaryAnyMore(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	server := &switched{spyConnector: spyConnector{b.db.Driver(), b.dsn, new(spy)}}
	db := sql.OpenDB(server)
	db.SetMaxOpenConns(8)
	t.Cleanup(func() { _ = db.Close() })
	run(t, b.outbox(t, db, nil), takesAll, outbox.RelayOptions{Lease: 2 * time.Second})
	b.write(t, outbox.Message{Topic: "t"})
	b.awaitSent(t)
	server.primary.Add(1)
	db.SetMaxIdleConns(0) // the pool has found out
	before := b.leasedUntil(t)
	require.Eventually(t, func() bool { return b.leasedUntil(t) > before }, eventually, 10*time.Millisecond, "the leases are not kept any more")
	b.write(t, outbox.Message{Topic: "t"})
	b.awaitSent(t)
}

func (b *base) leasedUntil(t *testing.T) (us int64) {
	t.Helper()
	require.NoError(t, b.db.QueryRowContext(t.Context(), "SELECT MAX(lease_until) FROM "+b.table+"_shards").Scan(&us))
	return us
}

// switched gives connections to the primary of the moment.
type switched struct {
	spyConnector
	primary atomic.Int64
}

func (s *switched) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := s.spyConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &switchedConn{c.(*spyConn), s, s.primary.Load()}, nil
}

type switchedConn struct {
	*spyConn
	all    *switched
	server int64
}

func (c *switchedConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	if c.server != c.all.primary.Load() {
		return nil, &pgconn.PgError{Code: "25006", Message: "cannot execute this in a read-only transaction"}
	}
	return c.spyConn.ExecContext(ctx, q, args)
}

func TestMigrateNeedsToKnowTheDatabase(t *testing.T) {
	dsn := testenv.MySQL(t)
	address, rest, ok := strings.Cut(dsn, "/idemq")
	require.True(t, ok)
	db := open(t, "mysql", address+"/"+rest)
	t.Cleanup(func() { _ = db.Close() })
	o, err := outbox.New(db, outbox.MySQL, &outbox.Options{Table: "nosuchschema.t"})
	require.NoError(t, err)
	require.Error(t, o.Migrate(t.Context()), "no right to it")
	o, err = outbox.New(db, outbox.MySQL, nil)
	require.NoError(t, err)
	require.Error(t, o.Migrate(t.Context()))

	name := newTable()
	o, err = outbox.New(db, outbox.MySQL, &outbox.Options{Table: "idemq." + name})
	require.NoError(t, err)
	require.NoError(t, o.Migrate(t.Context()))
	for _, suffix := range []string{"", "_shards", "_relays"} {
		_, err = db.Exec("DROP TABLE idemq." + name + suffix)
		require.NoError(t, err)
	}
	_, err = db.Exec("DELETE FROM idemq.idemq_schema WHERE name = '" + name + "'")
	require.NoError(t, err)
}

func TestMigrateRefusesAServerThatReadsOverChecks(t *testing.T) {
	b := newBase(t, outbox.MySQL)
	sep := "?"
	if strings.Contains(b.dsn, "?") {
		sep = "&"
	}
	db := open(t, b.driver, b.dsn+sep+"check_constraint_checks=0")
	t.Cleanup(func() { _ = db.Close() })
	require.ErrorContains(t, b.outbox(t, db, nil).Migrate(t.Context()), "outbox: migrate: check_constraint_checks is off")
}

func TestTransactionThatCanOnlyEndIsNotCalledNone(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	c, err := b.db.Conn(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.ExecContext(t.Context(), "BEGIN")
	require.NoError(t, err)
	_, err = c.ExecContext(t.Context(), "SELECT 1/0")
	require.Error(t, err)
	err = b.Write(t.Context(), c, outbox.Message{Topic: "t"})
	require.ErrorContains(t, err, "25P02")
	require.NotErrorIs(t, err, outbox.ErrNoTransaction)
	_, err = c.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
}

func TestTransactionThatFEndsIsAnErrorAndTheRelaysAreWoken(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		run(t, b.Outbox, takesAll, outbox.RelayOptions{Poll: time.Hour})
		err := b.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, b.Write(ctx, tx, outbox.Message{Topic: "t"}))
			return tx.Commit()
		})
		require.ErrorIs(t, err, dedup.ErrTxEnded)
		b.awaitSent(t)
	})
}

// Before its commit nothing tells that the server took the transaction back; text does here what a deadlock does.
func TestTransactionThatTheServerTookBackIsNoSuccess(t *testing.T) {
	for _, d := range []outbox.Dialect{outbox.MySQL, outbox.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			b := newBase(t, d)
			err := b.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, b.Write(ctx, tx, outbox.Message{ID: "a", Topic: "t"}))
				_, err := tx.ExecContext(ctx, "ROLLBACK")
				return err
			})
			require.ErrorIs(t, err, dedup.ErrTxEnded)
			s, err := b.Stats(t.Context())
			require.NoError(t, err)
			require.Zero(t, s.Pending)
			b.write(t, outbox.Message{ID: "b", Topic: "t"}) // on the same connection, maybe
			s, err = b.Stats(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, s.Pending)
		})
	}
}

func TestChannelThatPostgreSQLWouldNotTakeIsRefused(t *testing.T) {
	db := open(t, "pgx", "")
	t.Cleanup(func() { _ = db.Close() })
	_, err := outbox.New(db, outbox.PostgreSQL, &outbox.Options{Notify: true, Table: strings.Repeat("s", 32) + "." + strings.Repeat("t", 31)})
	require.ErrorContains(t, err, "64 bytes")
	require.ErrorContains(t, err, "shorten Options.Table")
}
