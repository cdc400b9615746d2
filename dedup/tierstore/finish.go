package tierstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Finish implements dedup.Store. Once the decider has written what is done, the front is told, within
// Options.Timeout; what comes of that is not the caller's concern.
func (s *Store) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if s.unfit != nil {
		return s.unfit
	}
	if err := s.decider.Finish(ctx, in, out); err != nil {
		return err // it may be written or not: the tokens stay for when the call is repeated
	}
	var ended []int
	for i := range in {
		if in[i].State != dedup.Condemned && (written(out[i]) || errors.Is(out[i], dedup.ErrSuperseded)) {
			ended = append(ended, i)
		}
	}
	tokens := s.held.take(in, ended)
	var done []dedup.FinishRequest
	var of []Token
	for at, i := range ended {
		if in[i].State == dedup.Done && written(out[i]) && tokens[at] != (Token{}) {
			done, of = append(done, in[i]), append(of, tokens[at])
		}
	}
	s.remember(ctx, done, of)
	return nil
}

// written: the verdict stands.
func written(err error) bool { return err == nil || errors.Is(err, dedup.ErrRecordLost) }

// InTx implements dedup.TxStore. The front is told after the commit, and only of one that was confirmed.
func (s *Store) InTx(ctx context.Context, f dedup.FinishRequest, work func(tx *sql.Tx) error) error {
	if s.unfit != nil {
		return s.unfit
	}
	if err := s.decider.InTx(ctx, f, work); err != nil {
		return err
	}
	in := []dedup.FinishRequest{f}
	if tokens := s.held.take(in, []int{0}); tokens[0] != (Token{}) {
		s.remember(ctx, in, tokens)
	}
	return nil
}

// remember has the front keep what is done, as far as it can be had. A copy that is missing costs
// the decider one more question.
func (s *Store) remember(ctx context.Context, done []dedup.FinishRequest, tokens []Token) {
	n := 0
	for i := range done {
		if len(done[i].Result) <= s.opts.MaxResult {
			done[n], tokens[n] = done[i], tokens[i]
			n++
		}
	}
	if done, tokens = done[:n], tokens[:n]; n == 0 {
		return
	}
	s.ask(ctx, n, func(ctx context.Context) error {
		kept, err := s.front.Remember(ctx, done, tokens)
		s.counts.kept.Add(uint64(kept))
		if err == nil {
			s.counts.refused.Add(uint64(n - kept))
		}
		return err
	})
}

// fairChance is the shortest time after which no answer is a fault of the front: a caller with less has hardly asked.
const fairChance = 10 * time.Millisecond

// ask makes one call of the front for n items, unless the front is being left alone, and reports
// whether it was answered. Half of the caller's time, at least, is left to the decider.
func (s *Store) ask(ctx context.Context, n int, call func(ctx context.Context) error) bool {
	if !s.breaker.allows() {
		s.counts.skipped.Add(uint64(n))
		return false
	}
	limit := s.opts.Timeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := call(bounded)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.Canceled), bounded.Err() != nil && limit < min(fairChance, s.opts.Timeout):
		return false // the caller has gone, or had no time, which tells nothing about the front
	default:
		s.counts.faults.Add(1)
	}
	s.breaker.report(err)
	return err == nil
}
