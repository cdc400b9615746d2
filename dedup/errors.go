package dedup

import (
	"errors"
	"fmt"
	"time"
)

// Branch on these with errors.Is. Refusals come inside a [*RefusedError].
var (
	ErrInProgress = errors.New("dedup: in progress elsewhere")
	ErrFailed     = errors.New("dedup: failed for good")
	ErrMismatch   = errors.New("dedup: same ID, other content")
	ErrSuperseded = errors.New("dedup: superseded by another owner")
	ErrLeaseLost  = errors.New("dedup: lease lost") // cause of a cancelled work context
	ErrNotFound   = errors.New("dedup: no record")

	// ErrUnavailable: the store gave no answer, so it is not known whether it did what it was asked to. Of a
	// claim this means that nothing ran. Of a verdict, as after Do has run the work (ran tells), it means
	// that the work happened and may be remembered or not.
	ErrUnavailable = errors.New("dedup: store unavailable")

	// ErrUnsafeStore is what a Pinger's error wraps where waiting cannot help: wrong version, an
	// eviction policy that drops records, say. A consumer then does not start.
	ErrUnsafeStore = errors.New("dedup: store cannot be trusted as it is set up")

	// ErrConflict is a transaction that the database gave up and wants to see again, from its begin.
	ErrConflict = errors.New("dedup: transaction conflict")

	// ErrResultTooLarge is the store's answer to a Finish whose result it cannot hold. Nothing was written.
	ErrResultTooLarge = errors.New("dedup: result too large for the store")

	// ErrTxEnded is the error of work that committed or rolled back the transaction which was to hold its verdict.
	ErrTxEnded = errors.New("dedup: work ended its transaction by itself")

	// ErrRecordLost is an item's answer from Store.Extend and Store.Finish: the record was
	// missing, or older than the claim, and has been written as asked. It is a success
	// with a warning: the store loses records (flush, eviction, fail-over). A Guard counts
	// it and hands nil on.
	ErrRecordLost = errors.New("dedup: record was lost and has been written anew")
)

// RefusedError says why work was not run. Unwrap gives ErrInProgress, ErrFailed, ErrMismatch or ErrNotFound.
type RefusedError struct {
	Work    Work
	Verdict Verdict
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("%v: %s %q", e.Unwrap(), e.Work.Scope, e.Work.ID)
	switch {
	case e.Verdict.State == InProgress:
		return fmt.Sprintf("%s, lease ends in %v", s, e.Verdict.Left.Round(time.Millisecond))
	case e.Verdict.LastError != "":
		return s + ": " + e.Verdict.LastError
	}
	return s
}

func (e *RefusedError) Unwrap() error {
	switch e.Verdict.State {
	case InProgress:
		return ErrInProgress
	case Mismatch:
		return ErrMismatch
	case Absent:
		return ErrNotFound
	default: // Failed, and Condemned, which is on its way there
		return ErrFailed
	}
}
