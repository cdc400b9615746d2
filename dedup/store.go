package dedup

import (
	"context"
	"database/sql"
	"time"
)

// Store is the port behind a Guard. Applications construct one and hand it to New.
//
// Every method takes a batch, at most one item per key, and answers out[i] for in[i].
// out is the caller's, of the same length, zeroed. A returned error means that nothing is
// known about any item; an item's own error goes to its place in out. The Store must not
// keep in, out or anything they point to. Methods are called concurrently, must return
// soon after ctx ends and never retry by themselves.
//
// The rules that every Store keeps are the cases of deduptest.TestStore.
type Store interface {
	// Claim asks for keys. Of any number of simultaneous claims of one key exactly one
	// acquires. A claim that finds its own owner token in progress answers Acquired again,
	// in a finished record that record's state, so repeating a call changes nothing.
	Claim(ctx context.Context, in []ClaimRequest, out []Verdict) error
	// Extend starts leases anew. out[i] is nil, ErrRecordLost (the claim was made again as
	// it was) or ErrSuperseded (another owner, or a finished record: nothing changed).
	Extend(ctx context.Context, in []ExtendRequest, out []error) error
	// Finish writes verdicts. out[i] is nil (also when this very verdict of this owner is
	// there already), ErrRecordLost (written all the same) or ErrSuperseded (nothing changed).
	// An owner whose lease is over but whom nobody followed may still finish.
	Finish(ctx context.Context, in []FinishRequest, out []error) error
}

// ClaimRequest asks for Key on behalf of Owner.
type ClaimRequest struct {
	Key              Key
	Owner            Owner
	Fingerprint      Fingerprint // zero: neither stored nor compared
	Lease, Retention time.Duration
	Redrive          int    // a number above the record's may take a Failed record, never a Done one
	MustExist        bool   // answer Absent instead of making a record (one-time tokens)
	Holder           string // kept while the claim is live, for operators
}

// Held is a claim as its owner knows it. It carries all of it, so that a record which the store
// has lost, or which went back to an earlier state, can be made again as it was.
type Held struct {
	ClaimRequest
	Epoch            uint64
	Attempt, Crashes int
	Condemned        bool   // the verdict to dead-letter stands
	LastError        string // why it was condemned, or why the attempt before failed
}

// ExtendRequest starts the owner's lease anew.
type ExtendRequest struct {
	Held
	Alone bool // no other handler runs in this process: a crash from now on is this work's own. Sticky until the next claim.
}

// FinishRequest ends the owner's claim as Done, Retryable, Failed or Released; or, without ending it, as Condemned.
type FinishRequest struct {
	Held
	State  State
	Result []byte // with Done
	Reason string // with Retryable, Condemned and Failed; cut to 512 bytes by the Guard
}

// Verdict answers a claim. The zero Verdict is no answer and is treated as a fault.
type Verdict struct {
	State State // Acquired, Condemned, InProgress, Done, Failed, Mismatch or Absent;
	// Retryable or Released only to an owner token that has finished already
	Epoch     uint64        // Acquired and Condemned: the fencing token, higher with every claim that acquires
	Attempt   int           // 1 + how often the handler has failed; crashes and releases do not count
	Crashes   int           // how often an owner vanished without a word, since the last Done or Retryable
	Redrive   int           // the record's number, never below the asker's when acquired
	Result    []byte        // Done: the stored result
	Left      time.Duration // InProgress: of the lease; Done and Failed: of the retention
	LastError string        // why the attempt before failed
	Err       error         // set instead of State: this item's fault; ErrUnavailable where it may have been done all the same
}

// State is a record's state, a claim's verdict or a finished claim's outcome.
type State uint8

// The states; each says where it occurs.
const (
	Acquired   State = iota + 1 // verdict: the asker now owns the key
	InProgress                  // record, verdict: another owner's lease runs
	Done                        // record, verdict, outcome: it happened
	Retryable                   // record, outcome: failed, may be tried again
	Failed                      // record, verdict, outcome: failed for good
	Released                    // record, outcome: given back unused; nothing counts
	Condemned                   // record, verdict, outcome: owned, but only to be dead-lettered with LastError; sticky
	Absent                      // verdict: no record, and MustExist was asked
	Mismatch                    // verdict: same key, other fingerprint
)

var stateNames = [...]string{"invalid", "acquired", "in progress", "done", "retryable", "failed", "released", "condemned", "absent", "mismatch"}

// String names the state in lower case, as in logs.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		s = 0
	}
	return stateNames[s]
}

// Record is what a store remembers of one key.
type Record struct {
	Key                            Key
	State                          State // InProgress, Done, Retryable, Released, Condemned or Failed
	Epoch                          uint64
	Attempt, Crashes, Redrive      int // Attempt as the next claim would be answered
	Holder                         string
	LastError                      string
	Result                         []byte
	ClaimedAt, LeaseUntil, Expires time.Time // zero where unknown
}

// Admin is the optional port of stores that operators can ask.
type Admin interface {
	// Inspect returns ErrNotFound where nothing is remembered.
	Inspect(ctx context.Context, k Key) (Record, error)
	// Forget deletes the record; nil where there is none, ErrInProgress while a lease runs.
	Forget(ctx context.Context, k Key) error
}

// Pinger is the optional port of stores with something to check at start.
type Pinger interface {
	// Ping returns an error that wraps ErrUnsafeStore where waiting cannot help.
	Ping(ctx context.Context) error
}

// Sizer is the optional port of stores that know what remembering costs.
type Sizer interface {
	RecordBytes() int // of memory for one finished record without a result, about
}

// Sweeper is the optional port of stores without expiry of their own: one bounded batch per call.
type Sweeper interface {
	SweepBatch(ctx context.Context) (deleted int, err error)
}

// TxStore is the optional port of stores that finish a claim inside the transaction of the work itself.
type TxStore interface {
	Store
	// InTx begins a transaction, calls work once, writes f (Done) as the transaction's last statement,
	// comparing owner and epoch, and commits. nil only after the commit. ctx bounds all of it.
	//
	// Every error but one means that nothing of the transaction happened. What work returned comes
	// back as it is; ErrSuperseded and ErrRecordLost (nothing was written anew) mean that the claim is
	// not this owner's any more; ErrConflict, that the database asks for the whole transaction again
	// (a deadlock, a serialization failure), whoever met it, work included; ErrTxEnded, that work committed
	// or rolled back by itself; ErrUnavailable, that the database cannot be reached. Only with that one
	// the commit may have happened, its reply lost: a claim by the same owner tells, and waits for a
	// commit that is still under way.
	InTx(ctx context.Context, f FinishRequest, work func(tx *sql.Tx) error) error
}
