package dedup

import (
	"errors"
	"fmt"
	"time"
)

// Work names one unit of work. Scope and ID may hold any bytes and be of any length.
type Work struct {
	Scope       string        // who must not repeat it: a consumer group, a route, a job. Required.
	ID          string        // the same on every delivery of the same work. Required.
	Fingerprint Fingerprint   // set: the same ID with another fingerprint is ErrMismatch. Default: not compared.
	Redrive     int           // the number of deliberate re-runs ordered by an operator. Default: 0.
	MustExist   bool          // answer Absent, and make no record, where nothing is remembered: for work announced before, as a one-time token is. Default: false.
	Lease       time.Duration // Default: Options.Lease.
	Retention   time.Duration // Default: Options.Retention.
	Wait        time.Duration // how long the Do methods wait for another owner before ErrInProgress. Default: 0.
}

// check refuses what cannot be meant. o has its defaults filled in.
func (w *Work) check(o *Options) error {
	lease, retention := w.leases(o)
	switch {
	case w.Scope == "":
		return errors.New("dedup: Work.Scope is empty; name who must not repeat the work, such as the consumer group")
	case w.ID == "":
		return fmt.Errorf("dedup: Work.ID is empty in scope %q: all such work would count as one; give each its own ID", w.Scope)
	case w.Redrive < 0:
		return fmt.Errorf("dedup: Work.Redrive %d is negative", w.Redrive)
	case w.Lease < 0 || w.Retention < 0 || w.Wait < 0:
		return fmt.Errorf("dedup: Work.Lease %v, Work.Retention %v or Work.Wait %v is negative", w.Lease, w.Retention, w.Wait)
	case lease < minLease:
		return fmt.Errorf("dedup: Work.Lease %v is below %v: a garbage collection would lose the claim; raise it", lease, minLease)
	case retention < lease:
		return fmt.Errorf("dedup: retention %v is below lease %v: the record of running work could expire; raise Work.Retention", retention, lease)
	}
	return nil
}

func (w *Work) leases(o *Options) (lease, retention time.Duration) {
	lease, retention = w.Lease, w.Retention
	if lease == 0 {
		lease = o.Lease
	}
	if retention == 0 {
		retention = o.Retention
	}
	return lease, retention
}
