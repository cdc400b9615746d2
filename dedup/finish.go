package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Complete remembers the work as done, with an optional result for later callers.
// ErrSuperseded: another owner has taken over; nothing was changed. ErrUnavailable: it may or may
// not be remembered; the claim is still kept alive, so call again.
func (c *Claim) Complete(ctx context.Context, result []byte) error {
	return c.finish(ctx, Outcome{State: Done, Result: result})
}

// Fail remembers cause and lets the work be tried again at once. The errors are those of Complete.
func (c *Claim) Fail(ctx context.Context, cause error) error {
	return c.finish(ctx, Outcome{State: Retryable, Cause: cause})
}

// Condemn remembers, before a dead letter is sent, that the work is not to be run again; whoever
// takes over finds State Condemned. FailFinal follows once the dead letter is confirmed.
func (c *Claim) Condemn(ctx context.Context, cause error) error {
	return c.finish(ctx, Outcome{State: Condemned, Cause: cause})
}

// FailFinal remembers cause and refuses every further try with ErrFailed.
func (c *Claim) FailFinal(ctx context.Context, cause error) error {
	return c.finish(ctx, Outcome{State: Failed, Cause: cause})
}

// Release gives back a claim whose work was not begun; the attempt does not count.
// After Complete or Fail, on a claim that is not held, and where another owner has taken over,
// it does nothing. A ctx that has ended, as it often has for a deferred Release, does not keep it from
// being written: one call is made all the same. On an error the claim is abandoned to its lease;
// Release may be called again for as long as that runs.
func (c *Claim) Release(ctx context.Context) error {
	if c.State != Acquired && c.State != Condemned || c.ended() {
		return nil
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), callTimeout(c.g.opts.Lease))
		defer cancel()
	}
	err := c.finish(ctx, Outcome{State: Released})
	if err == nil || errors.Is(err, ErrSuperseded) {
		return nil
	}
	c.Abandon() // nobody may be left to say it again, and a claim that is beaten never ends
	return err
}

func (c *Claim) ended() bool {
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.finished != 0
}

func (c *Claim) finish(ctx context.Context, o Outcome) error {
	o.Claim = c
	errs := make([]error, 1)
	if err := c.g.FinishBatch(ctx, []Outcome{o}, errs); err != nil {
		return err
	}
	return errs[0]
}

// Outcome is the word on one claim, for [Guard.FinishBatch].
type Outcome struct {
	Claim  *Claim
	State  State  // Done, Retryable, Condemned, Failed or Released
	Result []byte // with Done
	Cause  error  // with Retryable, Condemned and Failed; the first 512 bytes of its text are kept
}

// FinishBatch is Complete, Fail, Condemn, FailFinal and Release for many, up to 1024 in one round
// trip: errs[i] answers in[i] as those methods would. On a returned error any of them may have been
// remembered and none is forgotten: call again.
func (g *Guard) FinishBatch(ctx context.Context, in []Outcome, errs []error) error {
	if len(errs) != len(in) {
		return fmt.Errorf("dedup: FinishBatch: %d outcomes and room for %d errors; pass slices of equal length", len(in), len(errs))
	}
	req, out := finishRoom(len(in))
	at := make([]int, 0, len(in))
	for i := range in {
		q, ask, err := in[i].begin()
		if errs[i] = err; ask {
			req, at = append(req, q), append(at, i)
		}
	}
	if err := context.Cause(ctx); err != nil && len(req) > 0 {
		return err
	}
	out = out[:len(req)]
	sent := time.Now()
	if err := g.say(ctx, req, out); err != nil {
		return err
	}
	t := tally{name: "finish"}
	var open []int
	var outage error
	for j, i := range at {
		if g.opts.FailOpen && errors.Is(out[j], ErrUnavailable) {
			open, outage = append(open, i), out[j]
			continue
		}
		cause := in[i].end(out[j], sent, &errs[i])
		if g.opts.Observe != nil {
			t.add(in[i].Claim.Work.Scope, cause)
		}
	}
	t.emit(g)
	if len(open) > 0 {
		g.finishOpen(in, open, outage)
	}
	return nil
}

// say submits req. With FailOpen it does so once more for what the store did not answer, which may have
// been one reply, and leaves what is not answered then to the caller.
func (g *Guard) say(ctx context.Context, req []FinishRequest, out []error) error {
	outage, err := g.finishes.submit(ctx, req, out)
	switch {
	case err != nil:
		return err
	case outage != nil && !g.opts.FailOpen:
		return outage
	case !g.opts.FailOpen:
		return nil
	}
	var again []FinishRequest
	var at []int
	for j := range req {
		if errors.Is(out[j], ErrUnavailable) {
			again, at = append(again, req[j]), append(at, j)
		}
	}
	answers := make([]error, len(again))
	if _, err := g.finishes.submit(ctx, again, answers); err != nil {
		return err
	}
	for k, j := range at {
		out[j] = answers[k]
	}
	return nil
}

// finishRoom is what n outcomes need at most, for one in one piece.
func finishRoom(n int) (req []FinishRequest, out []error) {
	if n != 1 {
		return make([]FinishRequest, 0, n), make([]error, n)
	}
	one := new(struct {
		req [1]FinishRequest
		out [1]error
	})
	return one.req[:0], one.out[:]
}

// finishOpen lets work go on whose verdicts the store does not take: FailOpen was chosen. What the
// store still holds of it ends with its lease.
func (g *Guard) finishOpen(in []Outcome, at []int, outage error) {
	g.opts.Logger.Warn("dedup: store is down, going on without a verdict as Options.FailOpen says", "n", len(at), "err", outage)
	t := tally{name: "finish"}
	b := &g.beats
	b.mu.Lock()
	for _, i := range at {
		c := in[i].Claim
		if in[i].State == Condemned {
			c.finishing, c.held.Condemned = false, true
		} else {
			b.drop(c)
			c.finished = in[i].State
		}
		t.add(c.Work.Scope, "unprotected")
	}
	b.mu.Unlock()
	t.emit(g)
}

// begin says what to ask the store, if anything.
func (o *Outcome) begin() (q FinishRequest, ask bool, err error) {
	c := o.Claim
	switch o.State {
	case Done, Retryable, Condemned, Failed, Released:
	default:
		return q, false, fmt.Errorf("dedup: finish as %v: only done, retryable, condemned, failed and released end a claim", o.State)
	}
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.open:
		return q, false, nil
	case c.State != Acquired && c.State != Condemned:
		return q, false, fmt.Errorf("dedup: finish %s %q: the claim was answered %v, so there is nothing to finish", c.Work.Scope, c.Work.ID, c.State)
	case c.finished == o.State:
		return q, false, nil
	case c.undecided: // another claim may go on under its token
		return q, false, fmt.Errorf("%w, or committed: only a new claim of %s %q tells", ErrSuperseded, c.Work.Scope, c.Work.ID)
	case c.finished != 0:
		return q, false, fmt.Errorf("%w: the claim was finished as %v before", ErrSuperseded, c.finished)
	}
	c.finishing = true
	q = FinishRequest{Held: c.held, State: o.State}
	if o.State == Done {
		q.Result = o.Result
	} else if o.Cause != nil {
		q.Reason = reason(o.Cause)
	}
	return q, true, nil
}

// end takes in the store's answer and returns the event's cause.
func (o *Outcome) end(answer error, sent time.Time, err *error) string {
	c := o.Claim
	cause := o.State.String()
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	late := sent.After(c.deadline)
	if errors.Is(answer, ErrRecordLost) {
		cause, answer = "record_lost", nil
	}
	switch {
	case answer == nil && o.State == Condemned:
		c.finishing, c.held.Condemned = false, true
		c.held.LastError = ""
		if o.Cause != nil {
			c.held.LastError = reason(o.Cause)
		}
		return cause
	case answer == nil:
		b.drop(c)
		c.finished = o.State
		if late && cause != "record_lost" {
			cause = "late"
		}
	case errors.Is(answer, ErrSuperseded):
		b.drop(c)
		c.lose()
		cause = "superseded"
	default: // this item's own fault: the claim stays, to be finished again
		c.finishing = false
		cause = "fault"
	}
	if answer != nil {
		*err = fmt.Errorf("dedup: finish %s %q as %v: %w", c.Work.Scope, c.Work.ID, o.State, answer)
	}
	return cause
}

const maxReason = 512

// reason is the text that a record keeps of err: valid UTF-8, at most maxReason bytes.
func reason(err error) string {
	s := err.Error()
	if len(s) > maxReason {
		s = s[:maxReason]
	}
	return strings.ToValidUTF8(s, "")
}
