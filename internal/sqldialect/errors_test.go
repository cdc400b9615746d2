package sqldialect_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

type sqliteError int

func (e sqliteError) Error() string {
	return map[sqliteError]string{1: "SQL logic error: no such table: orders (1)"}[e]
}
func (e sqliteError) Code() int { return int(e) }

func mysqlError(n uint16) error { return &mysql.MySQLError{Number: n, Message: "message"} }

func pgError(state string) error { return &pgconn.PgError{Code: state} }

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		dialect sqldialect.Dialect
		err     error
		want    sqldialect.Class
	}{
		{sqldialect.PostgreSQL, pgError("40001"), sqldialect.Conflict},
		{sqldialect.PostgreSQL, pgError("40P01"), sqldialect.Conflict},
		{sqldialect.PostgreSQL, pgError("55P03"), sqldialect.LockWait},
		{sqldialect.PostgreSQL, pgError("57P01"), sqldialect.Unreachable},
		{sqldialect.PostgreSQL, pgError("08006"), sqldialect.Unreachable},
		{sqldialect.PostgreSQL, pgError("42P01"), sqldialect.NoTable},
		{sqldialect.PostgreSQL, pgError("25006"), sqldialect.ReadOnly},
		{sqldialect.PostgreSQL, pgError("22001"), sqldialect.TooBig},
		{sqldialect.PostgreSQL, pgError("23505"), sqldialect.Duplicate},
		{sqldialect.PostgreSQL, pgError("22012"), sqldialect.Other},
		{sqldialect.MySQL, mysqlError(1213), sqldialect.Conflict},
		{sqldialect.MySQL, &mysql.MySQLError{Number: 1020, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}}, sqldialect.Conflict},
		{sqldialect.MySQL, mysqlError(1205), sqldialect.LockWait},
		{sqldialect.MySQL, mysqlError(1053), sqldialect.Unreachable},
		{sqldialect.MySQL, mysqlError(1146), sqldialect.NoTable},
		{sqldialect.MySQL, mysqlError(1406), sqldialect.TooBig},
		{sqldialect.MySQL, mysqlError(1062), sqldialect.Duplicate},
		{sqldialect.MySQL, mysqlError(1290), sqldialect.ReadOnly},
		{sqldialect.MySQL, mysqlError(1064), sqldialect.Other},
		{sqldialect.MySQL, errors.New("the text said: Error 1213 (40001): no"), sqldialect.Other},
		{sqldialect.MySQL, errors.New("Error 12 and more"), sqldialect.Other},
		{sqldialect.MySQL, errors.New("Error 99999: more than two bytes"), sqldialect.Other},
		{sqldialect.SQLite, sqliteError(5), sqldialect.LockWait},
		{sqldialect.SQLite, sqliteError(517), sqldialect.Conflict},
		{sqldialect.SQLite, sqliteError(1), sqldialect.NoTable},
		{sqldialect.SQLite, sqliteError(8), sqldialect.ReadOnly},
		{sqldialect.SQLite, sqliteError(2067), sqldialect.Duplicate},
		{sqldialect.PostgreSQL, driver.ErrBadConn, sqldialect.Unreachable},
		{sqldialect.MySQL, io.ErrUnexpectedEOF, sqldialect.Unreachable},
		{sqldialect.MySQL, &net.OpError{Op: "dial", Err: errors.New("refused")}, sqldialect.Unreachable},
		{sqldialect.PostgreSQL, nil, sqldialect.Other},
	} {
		require.Equal(t, c.want, sqldialect.Classify(c.dialect, c.err), "%s: %v", c.dialect, c.err)
		if c.err != nil {
			wrapped := errors.Join(errors.New("first"), fmt.Errorf("claim: %w", c.err))
			require.Equal(t, c.want, sqldialect.Classify(c.dialect, wrapped), "%s: %v, wrapped", c.dialect, c.err)
		}
	}
}

func TestAnsweredMeansThatNothingIsUnderWay(t *testing.T) {
	require.True(t, sqldialect.Answered(sqldialect.PostgreSQL, pgError("23503")))
	require.True(t, sqldialect.Answered(sqldialect.MySQL, mysqlError(1213)))
	require.False(t, sqldialect.Answered(sqldialect.PostgreSQL, pgError("57P01")), "a server told to stop may have committed")
	require.False(t, sqldialect.Answered(sqldialect.MySQL, mysql.ErrInvalidConn))
	require.False(t, sqldialect.Answered(sqldialect.PostgreSQL, io.EOF))
}
