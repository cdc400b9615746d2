package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// MySQL and SQLite end a transaction by themselves at some errors of one statement: MySQL at a deadlock, SQLite
// at an interrupted write, a full disk or a conflict under OR ROLLBACK; MySQL also commits it before some statements.
// The session is in autocommit then. Work that passes over such an error, or
// does not know, would have its verdict committed alone, without its effect: a lost message. So the transaction
// begins with a savepoint that is gone with it, and to release it is the last thing before the verdict. PostgreSQL refuses
// every statement after a failed one by itself.
const (
	setMark     = "SAVEPOINT idemq"
	releaseMark = "RELEASE SAVEPOINT idemq"
)

// vanishedError is the server's word that the savepoint is not there.
type vanishedError struct{ cause error }

func (e *vanishedError) Error() string { return e.cause.Error() }
func (e *vanishedError) Unwrap() error { return e.cause }

// leave makes sure that tx is still the transaction that it was at its begin.
func (s *Store) leave(ctx context.Context, tx *sql.Tx) error {
	if s.text.leave == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, s.text.leave)
	if err != nil && ctx.Err() == nil && sqldialect.NoSavepoint(s.dialect, err) {
		return &vanishedError{err}
	}
	return err
}

// Neither server tells whether a transaction that is gone was rolled back or committed. After the first, which
// chance brings, it is to be tried again; after the second, which work itself did and will do each time, that
// would repeat its effect. So it is taken for rolled back, until one claim's has vanished so often in a row.
const maxVanished = 3

// vanished counts how often in a row the transaction of an owner vanished.
type vanished struct {
	mu     sync.Mutex
	owners map[dedup.Owner]int
}

// maxOwners bounds what is remembered of owners that did not come back.
const maxOwners = 1024

func (v *vanished) add(o dedup.Owner) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.owners == nil || len(v.owners) == maxOwners {
		v.owners = make(map[dedup.Owner]int)
	}
	v.owners[o]++
	return v.owners[o]
}

func (v *vanished) forget(o dedup.Owner) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.owners, o)
}

// afterVanishing says what the caller is to do. What work wrote after its transaction had gone is committed, each
// statement by itself, and cannot be taken back.
func (s *Store) afterVanishing(o dedup.Owner, gone error) error {
	if s.vanished.add(o) < maxVanished {
		return fmt.Errorf("sqlstore: in tx: %w: the database had ended the transaction before its verdict, at an error that work passed over: %w", dedup.ErrConflict, gone)
	}
	s.vanished.forget(o)
	return fmt.Errorf("sqlstore: in tx: %w: the transaction is gone before its verdict each time; return the errors of all statements, and send no COMMIT, no ROLLBACK and nothing that commits by itself, such as CREATE TABLE: %w", dedup.ErrTxEnded, gone)
}
