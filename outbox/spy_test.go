package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// spy counts the statements on their way to the driver, BEGIN and COMMIT not included, and may be in their way.
type spy struct {
	atomic.Int64
	before func(ctx context.Context, query string) error // an error in place of the statement
	after  func(query string) error                      // an error in place of its answer
}

// counted is plain's pool anew with a spy in it.
func counted(tb testing.TB, plain *sql.DB, dsn string) (*sql.DB, *spy) {
	tb.Helper()
	s := new(spy)
	db := sql.OpenDB(&spyConnector{plain.Driver(), dsn, s})
	require.NoError(tb, plain.Close())
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = db.Close() })
	return db, s
}

// around is what becomes of one statement. A connection that would rather prepare it says ErrSkip, and it is met again there.
func (s *spy) around(ctx context.Context, query string, f func() error) error {
	if s.before != nil {
		if err := s.before(ctx, query); err != nil {
			return err
		}
	}
	err := f()
	if err == driver.ErrSkip {
		return err
	}
	s.Add(1)
	if err == nil && s.after != nil {
		err = s.after(query)
	}
	return err
}

type spyConnector struct {
	driver driver.Driver
	dsn    string
	spy    *spy
}

func (c *spyConnector) Driver() driver.Driver { return c.driver }

func (c *spyConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &spyConn{conn, c.spy}, nil
}

type spyConn struct {
	driver.Conn
	spy *spy
}

func (c *spyConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = c.spy.around(ctx, q, func() (err error) {
		rows, err = c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
		return err
	})
	return rows, err
}

func (c *spyConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (res driver.Result, err error) {
	err = c.spy.around(ctx, q, func() (err error) {
		res, err = c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
		return err
	})
	return res, err
}

func (c *spyConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	st, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
	if err != nil {
		return nil, err
	}
	return &spyStmt{st, c.spy, q}, nil
}

func (c *spyConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
}

func (c *spyConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type spyStmt struct {
	driver.Stmt
	spy   *spy
	query string
}

func (s *spyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.spy.around(ctx, s.query, func() (err error) {
		rows, err = s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
		return err
	})
	return rows, err
}

func (s *spyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (res driver.Result, err error) {
	err = s.spy.around(ctx, s.query, func() (err error) {
		res, err = s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
		return err
	})
	return res, err
}
