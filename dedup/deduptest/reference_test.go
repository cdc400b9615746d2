package deduptest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/idemq/idemq/dedup"
)

// reference is a Store made of the model, and a place to break it: its mutant sees, and may
// change, what a call finds and what it leaves.
type reference struct {
	mu      *sync.Mutex
	kept    map[dedup.Key]kept
	now     *time.Time
	garbage map[dedup.Key]bool
	mutant
}

// kept is a life with what a store adds to it.
type kept struct {
	life
	holder           string
	claimed          time.Time
	deadline, expiry time.Time
	reborn           bool // only mutants set and ask it
}

// mutant breaks a reference. Every function may be nil.
type mutant struct {
	racy    func(k kept) bool // read and write are two steps for such a record
	claim   func(found *kept, q *dedup.ClaimRequest, now time.Time)
	claimed func(found kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict)
	extend  func(found *kept, q *dedup.ExtendRequest)
	finish  func(found *kept, q *dedup.FinishRequest)
	spoken  func(found kept, left *kept, h *dedup.Held, err *error) // after extend and finish
	verdict func(found kept, left *kept, q *dedup.FinishRequest, err *error)
	garbled func(found *kept)          // makes something of an undecodable record
	expired func(found kept) (is kept) // is there instead of nothing
	answers func(out []dedup.Verdict)
	words   func(out []error)
}

func newReference(m mutant) *reference {
	now := time.Now()
	return &reference{mu: new(sync.Mutex), kept: map[dedup.Key]kept{}, now: &now, garbage: map[dedup.Key]bool{}, mutant: m}
}

func (s *reference) find(k dedup.Key) (found kept, err error) {
	if s.garbage[k] {
		if s.garbled == nil {
			return kept{}, fmt.Errorf("reference: record is garbage")
		}
		s.garbled(&found)
		return found, nil
	}
	found = s.kept[k]
	if !s.now.Before(found.expiry) {
		if s.expired == nil || found.state == 0 {
			return kept{}, nil
		}
		found = s.expired(found)
	}
	found.live = found.held && s.now.Before(found.deadline)
	return found, nil
}

func (s *reference) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range in {
		q := in[i]
		found, err := s.find(q.Key)
		if err != nil {
			out[i].Err = err
			continue
		}
		if s.racy != nil && s.racy(found) {
			s.mu.Unlock()
			time.Sleep(time.Microsecond)
			runtime.Gosched()
			s.mu.Lock()
		}
		if s.claim != nil {
			s.claim(&found, &q, *s.now)
		}
		out[i] = s.claimOne(found, &q)
	}
	if s.answers != nil {
		s.answers(out)
	}
	return nil
}

func (s *reference) claimOne(found kept, q *dedup.ClaimRequest) dedup.Verdict {
	left := found
	var v dedup.Verdict
	left.life, v = found.life.claim(*q, max(found.epoch+1, uint64(s.now.UnixMilli())))
	switch v.State {
	case dedup.Acquired, dedup.Condemned:
		left.holder = q.Holder
		left.beat(q, *s.now)
		if left.epoch != found.epoch {
			left.claimed = *s.now
		}
	case dedup.InProgress:
		v.Left = left.deadline.Sub(*s.now)
	case dedup.Done, dedup.Failed:
		v.Left = left.expiry.Sub(*s.now)
	}
	if s.claimed != nil {
		s.claimed(found, &left, q, &v)
	}
	if left.state != 0 {
		s.kept[q.Key] = left
	}
	return v
}

func (k *kept) beat(q *dedup.ClaimRequest, now time.Time) {
	k.deadline = now.Add(q.Lease)
	k.expiry = now.Add(max(q.Lease, q.Retention))
}

func (s *reference) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range in {
		q := in[i]
		found, err := s.find(q.Key)
		if err != nil {
			out[i] = err
			continue
		}
		if s.extend != nil {
			s.extend(&found, &q)
		}
		left := found
		if left.life, out[i] = found.life.extend(q); out[i] != dedup.ErrSuperseded {
			left.beat(&q.ClaimRequest, *s.now)
		}
		s.leave(found, left, &q.Held, &out[i])
	}
	if s.words != nil {
		s.words(out)
	}
	return nil
}

func (s *reference) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range in {
		q := in[i]
		found, err := s.find(q.Key)
		if err == nil && (q.State < dedup.Done || q.State > dedup.Condemned) {
			err = fmt.Errorf("reference: finish as %v", q.State)
		}
		if err != nil {
			out[i] = err
			continue
		}
		if s.finish != nil {
			s.finish(&found, &q)
		}
		left := found
		left.life, out[i] = found.life.finish(q)
		switch same := left.life.state == found.life.state && left.held == found.held; {
		case out[i] == dedup.ErrSuperseded, out[i] == nil && same:
		case left.held:
			left.beat(&q.ClaimRequest, *s.now)
		default:
			left.holder, left.deadline, left.expiry = "", time.Time{}, s.now.Add(q.Retention)
		}
		if s.verdict != nil {
			s.verdict(found, &left, &q, &out[i])
		}
		s.leave(found, left, &q.Held, &out[i])
	}
	if s.words != nil {
		s.words(out)
	}
	return nil
}

func (s *reference) leave(found, left kept, h *dedup.Held, err *error) {
	if s.spoken != nil {
		s.spoken(found, &left, h, err)
	}
	if left.state != 0 {
		s.kept[h.Key] = left
	}
}

func (s *reference) Inspect(_ context.Context, k dedup.Key) (dedup.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.find(k)
	if err != nil {
		return dedup.Record{}, err
	}
	if f.state == 0 {
		return dedup.Record{}, dedup.ErrNotFound
	}
	return dedup.Record{
		Key: k, State: f.state, Epoch: f.epoch, Attempt: f.failed + 1, Crashes: f.crash, Redrive: f.number, Holder: f.holder,
		LastError: f.why, Result: []byte(f.result), ClaimedAt: f.claimed, LeaseUntil: f.deadline, Expires: f.expiry,
	}, nil
}

func (s *reference) Forget(_ context.Context, k dedup.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, _ := s.find(k); f.live {
		return dedup.ErrInProgress
	}
	delete(s.kept, k)
	return nil
}

func (s *reference) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.now = s.now.Add(d)
}

func (s *reference) Fork() Forkable {
	f := newReference(s.mutant)
	*f.now = *s.now
	for k, v := range s.kept {
		f.kept[k] = v
	}
	return f
}
