package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// spy sees every statement on its way to the driver, BEGIN, COMMIT and ROLLBACK included.
type spy struct {
	mu   sync.Mutex
	seen []string
	hook func(n int, text string) // before the nth statement, from 1; may be nil

	// fault is the answer to prepared statements, where it is none: set before they run.
	fault func(text string, args []driver.NamedValue) error
}

func (s *spy) refuse(text string, args []driver.NamedValue) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(text, args)
}

func (s *spy) on(text string) {
	s.mu.Lock()
	s.seen = append(s.seen, text)
	n, hook := len(s.seen), s.hook
	s.mu.Unlock()
	if hook != nil {
		hook(n, text)
	}
}

// watch forgets what was seen and sets the hook.
func (s *spy) watch(hook func(n int, text string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.hook = nil, hook
}

// statements are those seen since watch, each by its first word.
func (s *spy) statements() (words []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.seen {
		word, _, _ := strings.Cut(strings.TrimSpace(text), " ")
		words = append(words, strings.ToUpper(word))
	}
	return words
}

// spied is b through a spy, by the given DSN.
func (b *base) spied(tb testing.TB, dsn string) (*base, *spy) {
	tb.Helper()
	plain, err := sql.Open(map[string]string{"postgresql": "pgx", "mysql": "mysql", "sqlite": "sqlite"}[string(b.dialect)], dsn)
	require.NoError(tb, err)
	s := &spy{}
	db := sql.OpenDB(&connector{plain.Driver(), dsn, s})
	require.NoError(tb, plain.Close())
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = db.Close() })
	return &base{DB: db, dialect: b.dialect, dsn: dsn, table: b.table}, s
}

type connector struct {
	driver driver.Driver
	dsn    string
	spy    *spy
}

func (c *connector) Driver() driver.Driver { return c.driver }

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if d, ok := c.driver.(driver.DriverContext); ok {
		inner, err := d.OpenConnector(c.dsn)
		if err != nil {
			return nil, err
		}
		conn, err := inner.Connect(ctx)
		return &spyConn{conn, c.spy}, err
	}
	conn, err := c.driver.Open(c.dsn)
	return &spyConn{conn, c.spy}, err
}

type spyConn struct {
	driver.Conn
	spy *spy
}

// A driver that would rather prepare says ErrSkip; the statement is then seen where it runs.
func (c *spyConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	if len(args) > 0 && c.prepares() {
		return nil, driver.ErrSkip
	}
	c.spy.on(q)
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
}

func (c *spyConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	if len(args) > 0 && c.prepares() {
		return nil, driver.ErrSkip
	}
	c.spy.on(q)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

func (c *spyConn) prepares() bool { return strings.Contains(fmt.Sprintf("%T", c.Conn), "mysql") }

func (c *spyConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	st, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
	if err != nil {
		return nil, err
	}
	return &spyStmt{st, q, c.spy}, nil
}

func (c *spyConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	c.spy.on("BEGIN")
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return &spyTx{tx, c.spy}, nil
}

func (c *spyConn) ResetSession(ctx context.Context) error {
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *spyConn) IsValid() bool {
	v, ok := c.Conn.(driver.Validator)
	return !ok || v.IsValid()
}

func (c *spyConn) Ping(ctx context.Context) error {
	if p, ok := c.Conn.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

func (c *spyConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type spyStmt struct {
	driver.Stmt
	text string
	spy  *spy
}

func (s *spyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.spy.on(s.text)
	if err := s.spy.refuse(s.text, args); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
}

func (s *spyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.spy.on(s.text)
	if err := s.spy.refuse(s.text, args); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

type spyTx struct {
	driver.Tx
	spy *spy
}

func (t *spyTx) Commit() error {
	t.spy.on("COMMIT")
	return t.Tx.Commit()
}

func (t *spyTx) Rollback() error {
	t.spy.on("ROLLBACK")
	return t.Tx.Rollback()
}
