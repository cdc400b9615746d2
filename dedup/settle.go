package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// settle writes one outcome of c.
func (c *Claim) settle(ctx context.Context, o Outcome) error {
	o.Claim = c
	errs := make([]error, 1)
	settle(ctx, []Outcome{o}, errs)
	return errs[0]
}

// settle writes outs even if ctx has ended, and what the store does not take again and again for one
// lease, or until the claim is lost; errs[i] answers outs[i]. The bound is of its own, since beats may
// go through where no verdict does, as with a result that is too large for the server. What is not
// written then is abandoned: nobody is left to end it, and while it were beaten it would be in progress
// for all others.
func settle(ctx context.Context, outs []Outcome, errs []error) {
	ctx = context.WithoutCancel(ctx)
	rest, answers := outs, errs
	var at []int // of rest: index into errs. nil: all of them, in place
	begun := time.Now()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		outage := outs[0].Claim.g.FinishBatch(ctx, rest, answers)
		var again []Outcome
		var places []int
		for j, o := range rest {
			i := j
			if at != nil {
				i = at[j]
			}
			if errs[i] = answers[j]; outage != nil && errs[i] == nil {
				errs[i] = outage
			}
			switch err := errs[i]; {
			case err == nil || errors.Is(err, ErrSuperseded) || errors.Is(err, ErrResultTooLarge):
			case !o.Claim.Held() || time.Since(begun) >= o.Claim.held.Lease:
				o.Claim.Abandon()
				if !errors.Is(err, ErrUnavailable) {
					errs[i] = fmt.Errorf("%w: %w", ErrUnavailable, err)
				}
			default:
				again, places = append(again, o), append(places, i)
			}
		}
		if len(again) == 0 {
			return
		}
		rest, at, answers = again, places, make([]error, len(again))
		time.Sleep(pause)
	}
}
