package dedup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Do runs fn unless w is done already, and remembers success. ran tells "ran now"
// from "was done before"; both have a nil error and both may be acknowledged.
//
// fn's ctx ends with cause ErrLeaseLost when the claim could not be kept. If fn fails,
// w may be tried again and Do returns fn's error. A panic counts as a failure and goes on.
// What fn returned is written even if ctx has ended meanwhile; where the store does not take
// it for as long as a lease, err wraps ErrUnavailable and w will run again, when its lease has ended.
// Where another owner took over while fn ran, Do asks again and obeys the answer, which may be
// to run fn again. Where ctx ends while Do waits for another owner, err wraps its cause beside ErrInProgress.
// When w is refused, err is a [*RefusedError] that wraps ErrInProgress, ErrFailed, ErrMismatch or,
// with MustExist, ErrNotFound.
func (g *Guard) Do(ctx context.Context, w Work, fn func(ctx context.Context) error) (ran bool, err error) {
	_, ran, err = g.do(ctx, w, func(ctx context.Context, c *Claim) (again bool, err error) {
		return c.run(ctx, func(ctx context.Context) ([]byte, error) { return nil, fn(ctx) })
	})
	return ran, err
}

// DoValue is Guard.Do for work with a result, stored as JSON and handed to every later caller.
// A result that JSON cannot hold, or that is too large for the store (ErrResultTooLarge), is an error, and
// the work counts as done all the same: its effect has happened. Later callers then get an error, as
// those do whose T is not that of the first.
func DoValue[T any](ctx context.Context, g *Guard, w Work, fn func(ctx context.Context) (T, error)) (v T, ran bool, err error) {
	var unfit error
	own := false // the last run's word counts, not that of another owner who superseded it
	stored, ran, err := g.do(ctx, w, func(ctx context.Context, c *Claim) (again bool, err error) {
		again, err = c.run(ctx, func(ctx context.Context) (result []byte, err error) {
			if v, err = fn(ctx); err != nil {
				return nil, err
			}
			result, unfit = json.Marshal(v)
			return result, nil
		})
		own = !again
		return again, err
	})
	if own {
		if err == nil && unfit != nil {
			err = fmt.Errorf("dedup: %s %q is done, but its result cannot be stored: %w", w.Scope, w.ID, unfit)
		}
		return v, ran, err
	}
	var old T // not v: a run that was superseded may have left something there
	switch {
	case err != nil:
		return old, ran, err
	case len(stored) == 0:
		return old, ran, fmt.Errorf("dedup: %s %q is done, but its result could not be stored when it was", w.Scope, w.ID)
	}
	if err := json.Unmarshal(stored, &old); err != nil {
		return old, ran, fmt.Errorf("dedup: stored result of %s %q: %w", w.Scope, w.ID, err)
	}
	return old, ran, nil
}

// do calls run under a claim, anew where run says that its word did not count. It returns the stored
// result where another owner's counts.
func (g *Guard) do(ctx context.Context, w Work, run func(ctx context.Context, c *Claim) (again bool, err error)) (stored []byte, ran bool, err error) {
	for patience := newPatience(w.Wait); ; {
		c, err := g.Claim(ctx, w)
		if err != nil {
			return nil, ran, err
		}
		switch c.State {
		case Acquired:
			if !c.Held() { // the answer took longer than the lease
				if err := c.Release(ctx); err != nil && !errors.Is(err, ErrSuperseded) {
					return nil, ran, err
				}
				continue
			}
			ran = true
			if again, err := run(ctx, c); !again {
				return nil, ran, err
			}
		case Done:
			return c.Result, ran, nil
		case InProgress:
			again, err := patience.wait(ctx, c.Left)
			switch {
			case err != nil:
				return nil, ran, errors.Join(&RefusedError{w, c.Verdict}, err)
			case !again:
				return nil, ran, &RefusedError{w, c.Verdict}
			}
		default:
			if c.State == Condemned {
				err = c.Release(ctx) // its dead letter is not ours to send
			}
			return nil, ran, errors.Join(&RefusedError{w, c.Verdict}, err)
		}
	}
}

// run calls fn under the claim and writes what it said. again: its word does not count, another
// owner's does.
func (c *Claim) run(ctx context.Context, fn func(ctx context.Context) ([]byte, error)) (again bool, err error) {
	work, cancel := c.Context(ctx)
	defer cancel()
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit: a failure, and it goes on
			_ = c.settle(ctx, Outcome{State: Retryable, Cause: errors.New("panic")})
		}
	}()
	result, err := fn(work)
	returned = true
	if err == nil {
		err = c.settle(ctx, Outcome{State: Done, Result: result})
		if errors.Is(err, ErrResultTooLarge) { // the effect has happened: it counts as done, without its result
			err = errors.Join(err, c.settle(ctx, Outcome{State: Done}))
		}
		return errors.Is(err, ErrSuperseded), err
	}
	return false, c.failed(ctx, work, err)
}

// failed writes that the work failed with cause.
func (c *Claim) failed(ctx, work context.Context, cause error) error {
	return notWritten(cause, c.settle(ctx, failure(work, cause)))
}

// failure is the word on work that failed with cause; where we made it fail, it is that it was not begun.
func failure(work context.Context, cause error) Outcome {
	if errors.Is(context.Cause(work), ErrLeaseLost) {
		return Outcome{State: Released}
	}
	return Outcome{State: Retryable, Cause: cause}
}

// notWritten joins to the cause of a failure why the store does not know of it, if that matters.
func notWritten(cause, lost error) error {
	if lost == nil || errors.Is(lost, ErrSuperseded) {
		return cause
	}
	return errors.Join(cause, lost)
}

// DoBatch is Do for many in one round trip: fn gets the indexes of the works to run, runs
// them all or none, and errs[i] answers works[i]: nil for done, now or before. fn is not
// called when there is nothing to run. Equal works are run once and answered alike.
// Work.Wait is not looked at: what is in progress elsewhere is refused. A panic counts as a
// failure of all that ran, and goes on. fn's ctx ends with cause ErrLeaseLost when one of the claims is lost.
// A work whose claim was answered too late to be kept is not run: its error is ErrLeaseLost.
func (g *Guard) DoBatch(ctx context.Context, works []Work, fn func(ctx context.Context, run []int) error) (errs []error) {
	errs = make([]error, len(works))
	all, leader := foldWorks(works)
	var firsts []int
	var asked []Work
	for _, at := range all {
		if errs[at] = works[at].check(&g.opts); errs[at] == nil {
			firsts, asked = append(firsts, at), append(asked, works[at])
		}
	}
	claims := make([]*Claim, len(firsts))
	if err := g.ClaimBatch(ctx, asked, claims); err != nil {
		for i, at := range leader {
			if errs[i] = errs[at]; errs[i] == nil {
				errs[i] = err
			}
		}
		return errs
	}
	run, held := make([]int, 0, len(claims)), make([]*Claim, 0, len(claims))
	for i, c := range claims {
		switch {
		case c.Err != nil:
			errs[firsts[i]] = c.Err
		case c.State == Acquired && !c.Held(): // the answer took longer than the lease
			errs[firsts[i]] = errors.Join(ErrLeaseLost, c.Release(ctx))
		case c.State == Acquired:
			run, held = append(run, firsts[i]), append(held, c)
		case c.State != Done:
			errs[firsts[i]] = errors.Join(&RefusedError{c.Work, c.Verdict}, c.Release(ctx))
		}
	}
	if len(run) > 0 {
		for i, err := range runAll(ctx, held, run, fn) {
			errs[run[i]] = err
		}
	}
	for i, at := range leader {
		errs[i] = errs[at]
	}
	return errs
}

// foldWorks returns the index of the first of each set of equal works, and for each work the
// index of its first.
func foldWorks(works []Work) (firsts, leader []int) {
	type same struct {
		scope, id string
		print     Fingerprint
		redrive   int
		existing  bool
	}
	seen := make(map[same]int, len(works))
	leader = make([]int, len(works))
	for i := range works {
		k := same{works[i].Scope, works[i].ID, works[i].Fingerprint, works[i].Redrive, works[i].MustExist}
		at, twice := seen[k]
		if !twice {
			at, seen[k] = i, i
			firsts = append(firsts, i)
		}
		leader[i] = at
	}
	return firsts, leader
}

// runAll calls fn once for all claims and writes one outcome for each.
func runAll(ctx context.Context, claims []*Claim, run []int, fn func(ctx context.Context, run []int) error) (errs []error) {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	lose := func() { cancel(ErrLeaseLost) } // does nothing where ctx has ended work, and through it the claim's
	for _, c := range claims {
		one, done := c.Context(work)
		defer done()
		defer context.AfterFunc(one, lose)()
	}
	say := func(o Outcome) []error {
		outs := make([]Outcome, len(claims))
		for i, c := range claims {
			outs[i], outs[i].Claim = o, c
		}
		errs := make([]error, len(outs))
		settle(ctx, outs, errs)
		return errs
	}
	returned := false
	defer func() {
		if !returned {
			say(Outcome{State: Retryable, Cause: errors.New("panic")})
		}
	}()
	err := fn(work, run)
	returned = true
	if err == nil {
		return say(Outcome{State: Done})
	}
	errs = say(failure(work, err))
	for i, lost := range errs {
		errs[i] = notWritten(err, lost)
	}
	return errs
}

// patience spaces the questions after work in progress elsewhere: 50ms, doubling to 1s, and
// never much beyond the end of its lease.
type patience struct {
	until time.Time
	pause time.Duration
}

func newPatience(wait time.Duration) *patience {
	return &patience{until: time.Now().Add(wait), pause: 50 * time.Millisecond}
}

// wait reports whether to ask again. err is the cause of ctx, where that has ended before patience did.
func (p *patience) wait(ctx context.Context, left time.Duration) (again bool, err error) {
	remaining := time.Until(p.until)
	if remaining <= 0 {
		return false, nil
	}
	t := time.NewTimer(min(p.pause, remaining, max(left, 10*time.Millisecond)))
	defer t.Stop()
	p.pause = min(2*p.pause, time.Second)
	select {
	case <-t.C:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
