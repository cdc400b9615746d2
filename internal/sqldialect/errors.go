package sqldialect

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
)

// Class says what an error of a statement means for whoever sent it.
type Class uint8

// The classes.
const (
	Other       Class = iota
	Conflict          // a deadlock or a serialization failure: rolled back, wanted again from the beginning
	LockWait          // a lock was not to be had in time; the statement did nothing
	Unreachable       // no server, or none any more: what was under way may have happened
	Duplicate         // a unique key is there already
	NoTable           // a table, a column or a schema is missing
	ReadOnly          // a replica, or a transaction that must not write
	TooBig            // a value does not fit its column, or the statement the server's limit
	Check             // a CHECK constraint refuses the row
	Aborted           // an earlier statement of the transaction failed, and it takes nothing but its end
)

// Classify reads err by what its driver shows of the server's answer:
//
//   - PostgreSQL: a method SQLState() string, as pgx's and lib/pq's errors have.
//   - SQLite: a method Code() int with the extended result code, as modernc's errors have.
//   - MySQL: go-sql-driver's error has its number in a field only, which nobody can read who does not
//     import the driver. Its text, which begins "Error 1213 (40001): " or "Error 1213: ", is parsed
//     as far as the number; an error with a method Number() uint16 is asked instead.
func Classify(d Dialect, err error) Class {
	if err == nil {
		return Other
	}
	switch d {
	case PostgreSQL:
		if s, ok := sqlState(err); ok {
			return postgresClass(s)
		}
	case MySQL:
		if n, ok := mysqlNumber(err); ok {
			return mysqlClass(n)
		}
	case SQLite:
		if n, ok := sqliteCode(err); ok {
			return sqliteClass(n, err)
		}
	}
	var network net.Error
	switch {
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &network):
		return Unreachable
	}
	return Other
}

// Answered reports that the server itself refused the statement and lives on: nothing is left
// under way.
func Answered(d Dialect, err error) bool {
	answered := false
	switch d {
	case PostgreSQL:
		_, answered = sqlState(err)
	case MySQL:
		_, answered = mysqlNumber(err)
	case SQLite:
		_, answered = sqliteCode(err)
	}
	return answered && Classify(d, err) != Unreachable
}

// NoSavepoint reports that a savepoint which a statement named is not there.
func NoSavepoint(d Dialect, err error) bool {
	switch d {
	case MySQL:
		n, ok := mysqlNumber(err)
		return ok && n == 1305
	case SQLite:
		_, ok := sqliteCode(err)
		return ok && strings.Contains(err.Error(), "no such savepoint: ")
	}
	return false
}

func sqlState(err error) (string, bool) {
	var e interface{ SQLState() string }
	if errors.As(err, &e) && len(e.SQLState()) == 5 {
		return e.SQLState(), true
	}
	return "", false
}

func postgresClass(state string) Class {
	switch state {
	case "40001", "40P01":
		return Conflict
	case "55P03":
		return LockWait
	case "57P01", "57P02", "57P03", "57P05", "53300": // shut down, crashed, starting, idle too long, too many connections
		return Unreachable
	case "23505":
		return Duplicate
	case "23514":
		return Check
	case "42P01", "42703", "3F000":
		return NoTable
	case "25006":
		return ReadOnly
	case "25P02":
		return Aborted
	case "22001", "22003", "54000":
		return TooBig
	}
	if strings.HasPrefix(state, "08") {
		return Unreachable
	}
	return Other
}

func mysqlNumber(err error) (uint16, bool) {
	var e interface{ Number() uint16 }
	if errors.As(err, &e) {
		return e.Number(), true
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range all.Unwrap() {
				if n, ok := mysqlNumber(one); ok {
					return n, true
				}
			}
			return 0, false
		}
		if n, ok := errorNumber(err.Error()); ok {
			return n, true
		}
	}
	return 0, false
}

// errorNumber reads "Error 1213 (40001): …" and "Error 1213: …".
func errorNumber(text string) (uint16, bool) {
	text, ok := strings.CutPrefix(text, "Error ")
	if !ok {
		return 0, false
	}
	digits := 0
	for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
		digits++
	}
	n, err := strconv.ParseUint(text[:digits], 10, 16)
	if err != nil {
		return 0, false
	}
	rest := text[digits:]
	state := len(rest) > 9 && rest[:2] == " (" && rest[7:9] == "):"
	return uint16(n), state || strings.HasPrefix(rest, ":")
}

func mysqlClass(n uint16) Class {
	switch n {
	case 1213, 1020: // deadlock; the row has changed since the snapshot
		return Conflict
	case 1205, 3572:
		return LockWait
	case 1040, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1203, 1927, 2002, 2003, 2006, 2013, 2055, 3169:
		return Unreachable
	case 1062:
		return Duplicate
	case 3819, 4025: // MySQL's, MariaDB's
		return Check
	case 1049, 1054, 1146:
		return NoTable
	case 1290, 1792, 1836:
		return ReadOnly
	case 1153, 1264, 1406:
		return TooBig
	}
	return Other
}

func sqliteCode(err error) (int, bool) {
	var e interface{ Code() int }
	if errors.As(err, &e) {
		return e.Code(), true
	}
	return 0, false
}

func sqliteClass(code int, err error) Class {
	switch code {
	case 517: // BUSY_SNAPSHOT: it read before another wrote, and now wants to write
		return Conflict
	case 1555, 2067:
		return Duplicate
	case 275:
		return Check
	}
	switch code & 0xff {
	case 1: // the code of all errors in a statement; the text is SQLite's own and has been the same since version 3
		text := err.Error()
		if strings.Contains(text, "no such table: ") || strings.Contains(text, "no such column: ") || strings.Contains(text, "has no column named ") {
			return NoTable
		}
	case 5, 6:
		return LockWait
	case 8:
		return ReadOnly
	case 14:
		return Unreachable
	case 18:
		return TooBig
	}
	return Other
}
