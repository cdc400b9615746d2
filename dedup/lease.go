package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

type claimKey struct{}

// claimContext carries the claim without a context of its own for the value.
type claimContext struct {
	context.Context
	claim *Claim
}

func (c claimContext) Value(key any) any {
	if key == (claimKey{}) {
		return c.claim
	}
	return c.Context.Value(key)
}

// ClaimFrom returns the claim that Do or the consumer put into ctx, or nil.
// Its Epoch is the fencing token.
func ClaimFrom(ctx context.Context) *Claim {
	c, _ := ctx.Value(claimKey{}).(*Claim)
	return c
}

// Context returns a context for the claim's work: it ends, with cause ErrLeaseLost, when the claim
// can no longer be trusted, and ClaimFrom finds the claim in it. Call the CancelFunc when the work is over.
func (c *Claim) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.open:
	case !c.kept || !time.Now().Before(c.deadline):
		cancel(ErrLeaseLost)
	default:
		c.cancels = append(c.cancels, cancel)
	}
	return claimContext{ctx, c}, func() { cancel(context.Canceled) }
}

// Held reports whether the work may begin or go on: the claim is acquired, or condemned, not
// finished, and its lease has not run out by this process's own clock.
func (c *Claim) Held() bool {
	if c.open {
		return true
	}
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.kept && time.Now().Before(c.deadline)
}

// Abandon stops the heartbeat and leaves the claim to its lease, for work that does not end when
// it is told to. The claim may still be finished for as long as nobody has taken over.
func (c *Claim) Abandon() {
	b := &c.g.beats
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(c)
}

// Alone tells the store that no other work runs in this process, so that a crash from now on is
// this work's own and counts. It also starts the lease anew. For a suspect (Crashes > 0), just
// before it runs. ErrSuperseded: another owner has taken over, or the claim was finished. A claim that
// was not answered Acquired or Condemned has nothing to mark, which is an error.
func (c *Claim) Alone(ctx context.Context) error {
	if c.open {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	b := &c.g.beats
	b.mu.Lock()
	if err := c.markable(); err != nil {
		b.mu.Unlock()
		return fmt.Errorf("dedup: mark %s %q as running alone: %w", c.Work.Scope, c.Work.ID, err)
	}
	c.alone = true
	in := []ExtendRequest{{Held: c.held, Alone: true}}
	b.mu.Unlock()
	out := make([]error, 1)
	sent := time.Now()
	switch outage, err := c.g.extends.submit(ctx, in, out); {
	case err != nil:
		return err
	case outage != nil:
		return outage
	}
	b.mu.Lock()
	defer b.unlock()
	if c.kept {
		b.taken(c, sent, out[0])
	}
	if out[0] != nil && !errors.Is(out[0], ErrRecordLost) {
		return fmt.Errorf("dedup: mark %s %q as running alone: %w", c.Work.Scope, c.Work.ID, out[0])
	}
	return nil
}

// markable says why the store must not be told anything of c: it would make a record where it finds
// none, and the claim is nobody's. Called with heartbeat.mu held.
func (c *Claim) markable() error {
	switch {
	case c.State != Acquired && c.State != Condemned:
		return fmt.Errorf("the claim was answered %v", c.State)
	case c.undecided:
		return ErrSuperseded
	case c.finished != 0:
		return fmt.Errorf("%w: the claim was finished as %v before", ErrSuperseded, c.finished)
	}
	return nil
}
