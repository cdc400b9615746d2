package outbox

import (
	"errors"
	"fmt"

	"github.com/idemq/idemq/internal/sqldialect"
)

var (
	// ErrConflict is Write's answer to a message whose ID another one has, with other content. Roll the transaction back.
	ErrConflict = errors.New("another message has this ID")
	// ErrNoTransaction is Write's answer to what is no transaction.
	ErrNoTransaction = errors.New("not a transaction")
	// ErrRunning is the answer of a Relay's second Run while the first one runs.
	ErrRunning = errors.New("outbox: this relay runs already")
)

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks a Publisher's answer for a message as final: it will never be taken as it is, for
// its size or its headers, say. The relay parks the message at once. nil stays nil. What somebody
// may put right, a missing topic or right, is not final.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

// IsPermanent reports whether err, or what it wraps, was marked by [Permanent].
func IsPermanent(err error) bool {
	var p permanentError
	return errors.As(err, &p)
}

type unavailableError struct{ error }

func (e unavailableError) Unwrap() error { return e.error }

// Unavailable marks a Publisher's answer for a message as no word on the message itself: where it goes nothing is taken
// at present, since a server is away or busy, or has too few replicas, while others answer. It costs the message no
// attempt, so mark nothing so that the message may have caused. nil stays nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return unavailableError{err}
}

// IsUnavailable reports whether err, or what it wraps, was marked by [Unavailable].
func IsUnavailable(err error) bool {
	var u unavailableError
	return errors.As(err, &u)
}

// explain says what the caller can do about err, where anything can be said.
func (o *Outbox) explain(err error) error {
	switch sqldialect.Classify(o.dialect, err) {
	case sqldialect.NoTable:
		return fmt.Errorf("table %s, or one beside it, is missing or of another version: call Migrate at start: %w", o.table, err)
	case sqldialect.ReadOnly:
		return fmt.Errorf("the database takes no writes; connect to the primary, without read-only transactions: %w", err)
	case sqldialect.TooBig:
		return fmt.Errorf("a value does not fit table %s, or the statement the server's limit: %w", o.table, err)
	}
	return err
}
