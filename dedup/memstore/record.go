package memstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/idemq/idemq/dedup"
)

// record is all that is remembered of one key. Its three methods are the state machine.
type record struct {
	state       dedup.State // InProgress, Done, Retryable, Released, Failed or Condemned; zero: just made
	epoch       uint64
	owner       dedup.Owner // kept after the end, so that a repeated call is recognised
	attempts    int         // failures that handlers reported
	crashes     int
	alone       bool // a crash of this owner counts even if it is not the first
	redrive     int
	fingerprint dedup.Fingerprint
	holder      string
	lastError   string
	result      []byte
	claimedAt   time.Time
	leaseUntil  time.Time // zero: nobody holds it
	expires     time.Time
}

// owned reports a state that can have a living owner.
func (r *record) owned() bool { return r.state == dedup.InProgress || r.state == dedup.Condemned }

func (r *record) claim(q *dedup.ClaimRequest, now time.Time) dedup.Verdict {
	if r.fingerprint != q.Fingerprint && r.fingerprint != (dedup.Fingerprint{}) && q.Fingerprint != (dedup.Fingerprint{}) {
		return dedup.Verdict{State: dedup.Mismatch, Redrive: r.redrive}
	}
	if r.state != 0 && r.owner == q.Owner { // the same call again: its reply was lost
		if r.owned() && !r.leaseUntil.IsZero() {
			r.beat(q, now)
		}
		return r.verdict(now, true)
	}
	higher := q.Redrive > r.redrive
	switch r.state {
	case dedup.InProgress, dedup.Condemned:
		if now.Before(r.leaseUntil) {
			return r.verdict(now, false)
		}
		if r.state == dedup.InProgress && (r.crashes == 0 || r.alone) {
			r.crashes++
		}
	case dedup.Done:
		return r.verdict(now, false)
	case dedup.Failed:
		if !higher {
			return r.verdict(now, false)
		}
	}
	if r.state != dedup.Condemned || higher {
		r.state = dedup.InProgress
	}
	if higher {
		r.redrive, r.attempts, r.crashes = q.Redrive, 0, 0
	}
	if q.Fingerprint != (dedup.Fingerprint{}) {
		r.fingerprint = q.Fingerprint
	}
	r.epoch = max(r.epoch+1, uint64(now.UnixMilli()))
	r.owner, r.holder, r.claimedAt, r.alone = q.Owner, q.Holder, now, false
	r.beat(q, now)
	return r.verdict(now, true)
}

// beat starts the lease anew. Every write carries an expiry, never before the lease's end.
func (r *record) beat(q *dedup.ClaimRequest, now time.Time) {
	r.leaseUntil = now.Add(q.Lease)
	r.expires = now.Add(max(q.Retention, q.Lease))
}

func (r *record) verdict(now time.Time, mine bool) dedup.Verdict {
	v := dedup.Verdict{
		State: r.state, Epoch: r.epoch, Attempt: r.attempts + 1, Crashes: r.crashes,
		Redrive: r.redrive, LastError: r.lastError,
	}
	switch {
	case r.state == dedup.InProgress && mine:
		v.State = dedup.Acquired
	case r.state == dedup.Condemned && mine && r.leaseUntil.IsZero():
		v.State = dedup.Released // this owner gave it back already
	case r.owned() && !mine:
		v.State, v.Left = dedup.InProgress, r.leaseUntil.Sub(now)
	case r.state == dedup.Done:
		v.Result, v.Left = slices.Clone(r.result), r.expires.Sub(now)
	case r.state == dedup.Failed:
		v.Left = r.expires.Sub(now)
	}
	return v
}

func (r *record) extend(q *dedup.ExtendRequest, now time.Time) error {
	// leaseUntil is zero after a release of a condemned record: a late beat must not hold it again.
	if !r.owned() || r.owner != q.Owner || r.leaseUntil.IsZero() {
		return dedup.ErrSuperseded
	}
	r.alone = r.alone || q.Alone
	r.beat(&q.ClaimRequest, now)
	return nil
}

func (r *record) finish(q *dedup.FinishRequest, now time.Time) error {
	held := r.owned() && !r.leaseUntil.IsZero() // zero: a condemned record that was given back
	switch {
	case !isOutcome(q.State):
		return fmt.Errorf("memstore: finish as %v: that state ends no claim", q.State)
	case r.owner != q.Owner:
		return dedup.ErrSuperseded
	case r.state == q.State, r.state == dedup.Condemned && q.State == dedup.Released && !held:
		return nil
	case !held, r.state == dedup.Condemned && q.State != dedup.Failed && q.State != dedup.Released:
		return dedup.ErrSuperseded
	}
	if q.State == dedup.Condemned {
		r.state, r.lastError = dedup.Condemned, q.Reason
		r.beat(&q.ClaimRequest, now)
		return nil
	}
	if r.state != dedup.Condemned || q.State != dedup.Released { // Released leaves it condemned
		r.state = q.State
	}
	switch q.State {
	case dedup.Done:
		r.attempts, r.crashes, r.lastError, r.result = 0, 0, "", slices.Clone(q.Result)
	case dedup.Retryable:
		r.attempts, r.crashes, r.lastError = r.attempts+1, 0, q.Reason
	case dedup.Failed:
		r.lastError = q.Reason
	}
	r.leaseUntil, r.holder = time.Time{}, ""
	r.expires = now.Add(q.Retention)
	return nil
}

func isOutcome(s dedup.State) bool {
	switch s {
	case dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned:
		return true
	}
	return false
}

// remake builds the record as the claim in h left it.
func remake(h *dedup.Held, now time.Time) *record {
	r := &record{
		state: dedup.InProgress, epoch: h.Epoch, owner: h.Owner, attempts: max(h.Attempt-1, 0), crashes: h.Crashes,
		redrive: h.Redrive, fingerprint: h.Fingerprint, holder: h.Holder, lastError: h.LastError, claimedAt: now,
	}
	if h.Condemned {
		r.state = dedup.Condemned
	}
	r.beat(&h.ClaimRequest, now)
	return r
}

func (r *record) inspect(k dedup.Key) dedup.Record {
	return dedup.Record{
		Key: k, State: r.state, Epoch: r.epoch, Attempt: r.attempts + 1, Crashes: r.crashes, Redrive: r.redrive,
		Holder: r.holder, LastError: r.lastError, Result: slices.Clone(r.result),
		ClaimedAt: r.claimedAt, LeaseUntil: r.leaseUntil, Expires: r.expires,
	}
}
