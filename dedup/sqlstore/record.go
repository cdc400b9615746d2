package sqlstore

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/idemq/idemq/dedup"
)

// maxSpan keeps every time, in microseconds since 1970, far from the end of 64 bits.
const maxSpan = 100 * 365 * 24 * time.Hour

// Limits of the text columns, in bytes.
const (
	maxHolder = 255
	maxReason = 1024
)

// record is a row. Times are microseconds since 1970 by the database's clock.
type record struct {
	state                      dedup.State
	owner                      dedup.Owner
	epoch                      int64
	attempts, crashes, redrive int64 // attempts: those that failed
	alone                      bool
	fingerprint                dedup.Fingerprint // zero: none
	holder, lastError          string
	result                     []byte
	claimed, lease, expires    int64 // lease 0: nobody holds it
	revision                   int64 // grows with every write; 0: there is no row
}

// owned: the states in which somebody may hold the record.
func (r *record) owned() bool { return r.state == dedup.InProgress || r.state == dedup.Condemned }

func (r *record) held() bool { return r.owned() && r.lease != 0 }

// there reports that the record exists and its retention is not over.
func (r *record) there(now int64) bool { return r.revision != 0 && now < r.expires }

// claim applies q at now. It answers whether the record changes, and whether q's owner is then,
// or was before, the one whose word counts.
func (r *record) claim(q *dedup.ClaimRequest, now int64) (changed, mine bool) {
	if !r.there(now) {
		r.begin(q, now)
		return true, true
	}
	if r.owner == q.Owner { // asked before: the reply was lost
		if !r.held() {
			return false, true
		}
		r.beat(q, now)
		return true, true
	}
	higher := int64(q.Redrive) > r.redrive
	switch {
	case r.held() && now < r.lease, r.state == dedup.Done, r.state == dedup.Failed && !higher:
		return false, false
	}
	if r.state == dedup.InProgress && (r.crashes == 0 || r.alone) {
		r.crashes++
	}
	if higher {
		r.redrive, r.attempts, r.crashes = int64(q.Redrive), 0, 0
	}
	if higher || r.state != dedup.Condemned {
		r.state = dedup.InProgress
	}
	r.own(q, now)
	return true, true
}

// begin makes the record of a new life. The revision stays, for the comparison when it is written, and
// the epoch goes on from the old one.
func (r *record) begin(q *dedup.ClaimRequest, now int64) {
	*r = record{state: dedup.InProgress, redrive: int64(q.Redrive), epoch: r.epoch, revision: r.revision}
	r.own(q, now)
}

func (r *record) own(q *dedup.ClaimRequest, now int64) {
	if q.Fingerprint != (dedup.Fingerprint{}) {
		r.fingerprint = q.Fingerprint
	}
	r.epoch = max(r.epoch+1, now/1000)
	r.owner, r.holder, r.claimed, r.alone = q.Owner, q.Holder, now, false
	r.beat(q, now)
}

func (r *record) beat(q *dedup.ClaimRequest, now int64) {
	r.lease = now + micros(q.Lease)
	r.expires = now + micros(max(q.Lease, q.Retention))
}

// mismatch: the same key, and both name a content, and not the same one.
func (r *record) mismatch(q *dedup.ClaimRequest, now int64) bool {
	none := dedup.Fingerprint{}
	return r.there(now) && r.fingerprint != none && q.Fingerprint != none && r.fingerprint != q.Fingerprint
}

// verdict tells an asker what stands in the record; mine: it is the one whose word that is.
func (r *record) verdict(now int64, mine bool) dedup.Verdict {
	v := dedup.Verdict{
		State: r.state, Epoch: uint64(r.epoch), Attempt: int(r.attempts) + 1, Crashes: int(r.crashes),
		Redrive: int(r.redrive), LastError: r.lastError,
	}
	switch {
	case r.owned() && !mine:
		v.State, v.Left = dedup.InProgress, span(r.lease-now)
	case r.state == dedup.InProgress:
		v.State = dedup.Acquired
	case r.state == dedup.Condemned && !r.held():
		v.State = dedup.Released // by this very owner
	case r.state == dedup.Done:
		v.Left = span(r.expires - now)
		if len(r.result) > 0 {
			v.Result = r.result
		}
	case r.state == dedup.Failed:
		v.Left = span(r.expires - now)
	}
	return v
}

// lostTo reports that the record which h speaks of is not there: nothing is, or something older
// that is not done.
func (r *record) lostTo(h *dedup.Held, now int64) bool {
	return !r.there(now) || r.epoch < int64(h.Epoch) && r.state != dedup.Done
}

// remake is the record as the claim in h left it. It keeps the revision it is to replace.
func (r *record) remake(h *dedup.Held, now int64) {
	*r = record{
		state: dedup.InProgress, owner: h.Owner, epoch: int64(h.Epoch), revision: r.revision, attempts: int64(max(h.Attempt-1, 0)),
		crashes: int64(h.Crashes), redrive: int64(h.Redrive), fingerprint: h.Fingerprint, holder: h.Holder, lastError: h.LastError, claimed: now,
	}
	if h.Condemned {
		r.state = dedup.Condemned
	}
	r.beat(&h.ClaimRequest, now)
}

// extend applies q, which is known not to speak of a lost record. ok: it held the record.
func (r *record) extend(q *dedup.ExtendRequest, now int64) (ok bool) {
	if r.owner != q.Owner || !r.held() {
		return false
	}
	r.alone = r.alone || q.Alone
	r.beat(&q.ClaimRequest, now)
	return true
}

// ending is what a Finish finds.
type ending uint8

const (
	refused ending = iota // another owner's, or ended otherwise
	already               // this very word of this owner stands
	applied               // the record was the owner's, and r is what it becomes
)

// finish applies q, which is known not to speak of a lost record.
func (r *record) finish(q *dedup.FinishRequest, now int64) ending {
	switch {
	case r.owner != q.Owner:
		return refused
	case r.state == q.State, r.state == dedup.Condemned && q.State == dedup.Released && !r.held():
		return already
	case !r.held(), r.state == dedup.Condemned && q.State != dedup.Failed && q.State != dedup.Released:
		return refused
	}
	switch q.State {
	case dedup.Condemned:
		r.state, r.lastError = dedup.Condemned, q.Reason
		r.beat(&q.ClaimRequest, now)
		return applied
	case dedup.Done:
		r.attempts, r.crashes, r.lastError, r.result = 0, 0, "", q.Result
	case dedup.Retryable:
		r.attempts, r.crashes, r.lastError = r.attempts+1, 0, q.Reason
	case dedup.Failed:
		r.lastError = q.Reason
	}
	if r.state != dedup.Condemned || q.State != dedup.Released { // given back, it stays condemned
		r.state = q.State
	}
	r.lease, r.holder = 0, ""
	r.expires = now + micros(q.Retention)
	return applied
}

func (r *record) inspect(k dedup.Key) dedup.Record {
	d := dedup.Record{
		Key: k, State: r.state, Epoch: uint64(r.epoch), Attempt: int(r.attempts) + 1, Crashes: int(r.crashes), Redrive: int(r.redrive),
		Holder: r.holder, LastError: r.lastError, ClaimedAt: time.UnixMicro(r.claimed), Expires: time.UnixMicro(r.expires),
	}
	if r.held() {
		d.LeaseUntil = time.UnixMicro(r.lease)
	}
	if len(r.result) > 0 {
		d.Result = r.result
	}
	return d
}

// micros rounds up: a lease is never shorter than asked for.
func micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

func span(us int64) time.Duration { return time.Duration(max(us, 0)) * time.Microsecond }

func checkClaim(q *dedup.ClaimRequest) error {
	switch {
	case q.Lease < 0 || q.Lease > maxSpan:
		return fmt.Errorf("sqlstore: lease %v is not between 0 and 100 years", q.Lease)
	case q.Retention < 0 || q.Retention > maxSpan:
		return fmt.Errorf("sqlstore: retention %v is not between 0 and 100 years", q.Retention)
	case q.Redrive < 0 || q.Redrive > math.MaxInt32:
		return fmt.Errorf("sqlstore: redrive number %d does not fit its column", q.Redrive)
	}
	return nil
}

func checkHeld(h *dedup.Held) error {
	switch {
	case h.Epoch > math.MaxInt64/2:
		return fmt.Errorf("sqlstore: epoch %d does not fit its column", h.Epoch)
	case h.Attempt < 0 || h.Attempt > math.MaxInt32 || h.Crashes < 0 || h.Crashes > math.MaxInt32:
		return fmt.Errorf("sqlstore: attempt %d or crashes %d does not fit its column", h.Attempt, h.Crashes)
	}
	return checkClaim(&h.ClaimRequest)
}

func (s *Store) checkFinish(q *dedup.FinishRequest) error {
	switch q.State {
	case dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned:
	default:
		return fmt.Errorf("sqlstore: a claim cannot end as %v", q.State)
	}
	if q.State == dedup.Done && len(q.Result) > s.maxResult {
		return fmt.Errorf("sqlstore: %w: it has %d bytes and Options.MaxResult is %d; keep it elsewhere and store where it is, or raise the limit", dedup.ErrResultTooLarge, len(q.Result), s.maxResult)
	}
	return checkHeld(&q.Held)
}

// errGarbage is what a row is that this package cannot have written.
var errGarbage = errors.New("the row holds no record of this store; it was left alone, and Forget removes it")

// check refuses what no write of this package leaves behind.
func (r *record) check() error {
	switch {
	case r.revision <= 0, r.epoch <= 0, r.attempts < 0, r.crashes < 0, r.redrive < 0, r.expires <= 0, r.lease < 0:
		return errGarbage
	case r.state == dedup.InProgress && r.lease != 0, r.state == dedup.Condemned:
		return nil
	case r.state == dedup.Done, r.state == dedup.Retryable, r.state == dedup.Failed, r.state == dedup.Released:
		if r.lease == 0 {
			return nil
		}
	}
	return errGarbage
}
