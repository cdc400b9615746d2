package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// counted is a pool whose statements are counted on their way to the driver, BEGIN and COMMIT not included.
func counted(tb testing.TB, plain *sql.DB, dsn string) (*sql.DB, *atomic.Int64) {
	tb.Helper()
	n := new(atomic.Int64)
	db := sql.OpenDB(&countingConnector{plain.Driver(), dsn, n})
	require.NoError(tb, plain.Close())
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = db.Close() })
	return db, n
}

type countingConnector struct {
	driver driver.Driver
	dsn    string
	n      *atomic.Int64
}

func (c *countingConnector) Driver() driver.Driver { return c.driver }

func (c *countingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &countingConn{conn, c.n}, nil
}

// countingConn is the driver's connection. One that would rather prepare says ErrSkip, and its statement is counted then.
type countingConn struct {
	driver.Conn
	n *atomic.Int64
}

func (c *countingConn) count(err error) {
	if err != driver.ErrSkip {
		c.n.Add(1)
	}
}

func (c *countingConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
	c.count(err)
	return rows, err
}

func (c *countingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
	c.count(err)
	return res, err
}

func (c *countingConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	st, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
	if err != nil {
		return nil, err
	}
	return &countingStmt{st, c.n}, nil
}

func (c *countingConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
}

func (c *countingConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type countingStmt struct {
	driver.Stmt
	n *atomic.Int64
}

func (s *countingStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.n.Add(1)
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

func (s *countingStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.n.Add(1)
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}
