// Package sqldialect is the one list of SQL dialects, and what every package with tables of its own
// needs of them: names, batches as parameters, classes of errors, migrations. It imports no driver.
//
// # Drivers
//
// PostgreSQL with github.com/jackc/pgx/v5/stdlib, MySQL and MariaDB with github.com/go-sql-driver/mysql,
// SQLite with modernc.org/sqlite. Parameters are strings, byte slices and int64 only, so that other
// drivers have a chance; what they must also have is an error that [Classify] can read.
package sqldialect

import "fmt"

// Dialect names a family of SQL servers.
type Dialect string

// The dialects.
const (
	PostgreSQL Dialect = "postgresql"
	MySQL      Dialect = "mysql" // MariaDB too
	SQLite     Dialect = "sqlite"
)

// Check refuses what is none of the three.
func (d Dialect) Check() error {
	switch d {
	case PostgreSQL, MySQL, SQLite:
		return nil
	}
	return fmt.Errorf("dialect %q is none of %q, %q and %q", string(d), PostgreSQL, MySQL, SQLite)
}

// Arg is the placeholder of the nth parameter, from 1.
func (d Dialect) Arg(n int) string {
	switch d {
	case PostgreSQL:
		return fmt.Sprintf("$%d", n)
	case SQLite:
		return fmt.Sprintf("?%d", n)
	default:
		return "?"
	}
}
