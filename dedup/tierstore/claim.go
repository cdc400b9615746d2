package tierstore

import (
	"context"
	"fmt"

	"github.com/idemq/idemq/dedup"
)

// Claim implements dedup.Store. The front is asked first, the decider, in one batch, for what that
// leaves. A fault of the front is none of this call. A fault of the decider is the error of the call, or,
// where the front has answered some items, of each of the others.
func (s *Store) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	if s.unfit != nil {
		return s.unfit
	}
	tokens := make([]Token, len(in))
	left := s.lookup(ctx, in, out, tokens)
	s.counts.asked.Add(uint64(len(left)))
	switch {
	case len(left) == 0 && len(in) > 0:
		return nil
	case len(left) == len(in):
		if err := s.decider.Claim(ctx, in, out); err != nil {
			return err
		}
	default:
		s.claimSome(ctx, in, out, left)
	}
	s.learn(ctx, in, out, tokens, left)
	return nil
}

// lookup asks the front and returns which items it left, with their tokens.
func (s *Store) lookup(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []Token) (left []int) {
	left = make([]int, 0, len(in))
	answered := s.ask(ctx, len(in), func(ctx context.Context) error { return s.front.Lookup(ctx, in, out, tokens) })
	for i := range in {
		switch {
		case !answered:
			out[i], tokens[i] = dedup.Verdict{}, Token{}
		case out[i].Err == nil && (out[i].State == dedup.Done || out[i].State == dedup.Mismatch):
			continue
		case out[i].Err != nil || out[i].State != 0: // what a front cannot answer; least of all may it grant anything
			s.counts.faults.Add(1)
			out[i], tokens[i] = dedup.Verdict{}, Token{}
		}
		left = append(left, i)
	}
	s.counts.answered.Add(uint64(len(in) - len(left)))
	return left
}

// claimSome asks the decider for some items of a batch.
func (s *Store) claimSome(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, which []int) {
	some, answers := make([]dedup.ClaimRequest, len(which)), make([]dedup.Verdict, len(which))
	for at, i := range which {
		some[at] = in[i]
	}
	if err := s.decider.Claim(ctx, some, answers); err != nil {
		err = fmt.Errorf("tierstore: claim of %d: %w: %w", len(which), dedup.ErrUnavailable, err)
		for at := range answers {
			answers[at] = dedup.Verdict{Err: err}
		}
	}
	for at, i := range which {
		out[i] = answers[at]
	}
}

// learn keeps the tokens of what was acquired for when it is done, and has the front remember what
// the decider knows to be done.
func (s *Store) learn(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []Token, which []int) {
	var done []dedup.FinishRequest
	var of []Token
	var acquired []int
	for _, i := range which {
		v := &out[i]
		switch {
		case tokens[i] == (Token{}), v.Err != nil:
		case v.State == dedup.Acquired:
			acquired = append(acquired, i)
		case v.State == dedup.Done:
			done, of = append(done, answered(&in[i], v)), append(of, tokens[i])
		}
	}
	s.held.put(in, out, tokens, acquired)
	s.remember(ctx, done, of)
}

// answered is a verdict of somebody else as what the front is to remember. It has no owner: the
// asker's fingerprint is the record's only if the record has one.
func answered(q *dedup.ClaimRequest, v *dedup.Verdict) dedup.FinishRequest {
	return dedup.FinishRequest{State: dedup.Done, Result: v.Result, Held: dedup.Held{
		ClaimRequest: dedup.ClaimRequest{Key: q.Key, Fingerprint: q.Fingerprint, Retention: v.Left, Redrive: v.Redrive},
		Epoch:        v.Epoch, Attempt: v.Attempt,
	}}
}
