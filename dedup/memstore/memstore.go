// Package memstore is a dedup.Store in the process's memory: for tests, demos and programs
// that run as a single process.
//
// It keeps every rule of the port; see record.go, which is also the plainest statement of the
// state machine. What it cannot do is outlive the process: after a restart every message is
// new, and two processes do not see each other's claims.
//
// Expired records are dropped as other keys are claimed, so memory follows the number of
// live records, also down. A record costs about 250 bytes plus its result.
package memstore

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Store forgets everything with the process. It is safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	records map[dedup.Key]*record
	peak    int // records that the map has had room for
	now     func() time.Time
}

// New returns an empty Store.
func New() *Store {
	return &Store{records: make(map[dedup.Key]*record), now: time.Now}
}

// Claim implements dedup.Store.
func (s *Store) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for i := range in {
		s.sweepSome(now)
		r := s.live(in[i].Key, now)
		if r == nil {
			if in[i].MustExist {
				out[i] = dedup.Verdict{State: dedup.Absent}
				continue
			}
			r = &record{}
			s.records[in[i].Key] = r
		}
		out[i] = r.claim(&in[i], now)
	}
	return nil
}

// Extend implements dedup.Store.
func (s *Store) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for i := range in {
		r, lost := s.forOwner(&in[i].Held, now)
		out[i] = s.keep(in[i].Key, r, lost, r.extend(&in[i], now))
	}
	return nil
}

// Finish implements dedup.Store.
func (s *Store) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for i := range in {
		r, lost := s.forOwner(&in[i].Held, now)
		out[i] = s.keep(in[i].Key, r, lost, r.finish(&in[i], now))
	}
	return nil
}

// Inspect implements dedup.Admin.
func (s *Store) Inspect(ctx context.Context, k dedup.Key) (dedup.Record, error) {
	if err := ctx.Err(); err != nil {
		return dedup.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.live(k, s.now())
	if r == nil {
		return dedup.Record{}, dedup.ErrNotFound
	}
	return r.inspect(k), nil
}

// Forget implements dedup.Admin.
func (s *Store) Forget(ctx context.Context, k dedup.Key) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if r := s.live(k, now); r != nil && r.owned() && now.Before(r.leaseUntil) {
		return dedup.ErrInProgress
	}
	delete(s.records, k)
	return nil
}

// RecordBytes implements dedup.Sizer.
func (s *Store) RecordBytes() int { return 250 }

// live returns the record of k, or nil when there is none or its retention is over.
func (s *Store) live(k dedup.Key, now time.Time) *record {
	r := s.records[k]
	if r != nil && !now.Before(r.expires) {
		delete(s.records, k)
		return nil
	}
	return r
}

// forOwner returns the record that h speaks of. Where it is missing, or of a lower epoch and
// not done (the store went back in time), lost is true and r is the record as h describes it,
// which is not yet kept.
func (s *Store) forOwner(h *dedup.Held, now time.Time) (r *record, lost bool) {
	r = s.live(h.Key, now)
	if r != nil && (r.epoch >= h.Epoch || r.state == dedup.Done) {
		return r, false
	}
	return remake(h, now), true
}

// keep puts a record that was made again in its place, and says so, unless the call on it was
// refused: a refusal changes nothing.
func (s *Store) keep(k dedup.Key, r *record, lost bool, err error) error {
	if !lost || err != nil {
		return err
	}
	s.records[k] = r
	return dedup.ErrRecordLost
}

// sweepSome looks at two records, in the map's random order, and drops them if expired.
func (s *Store) sweepSome(now time.Time) {
	s.shrink()
	seen := 0
	for k, r := range s.records {
		if !now.Before(r.expires) {
			delete(s.records, k)
		}
		if seen++; seen == 2 {
			return
		}
	}
}

// A map keeps the room that it once had, and looking for two records in one that was emptied takes as long as
// looking through all of it. So it is made anew once it is nearly empty, unless it is small anyway.
const (
	shrinkTo  = 16 // records left of the peak: one in so many
	smallPeak = 1 << 10
)

func (s *Store) shrink() {
	n := len(s.records)
	s.peak = max(s.peak, n)
	if s.peak < smallPeak || n > s.peak/shrinkTo {
		return
	}
	records := make(map[dedup.Key]*record, n)
	maps.Copy(records, s.records)
	s.records, s.peak = records, n
}

var (
	_ dedup.Store = (*Store)(nil)
	_ dedup.Admin = (*Store)(nil)
	_ dedup.Sizer = (*Store)(nil)
)
