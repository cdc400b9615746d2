package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errNoAnswer is what an item gets that a store left unanswered: no answer is a fault,
// never a verdict.
var errNoAnswer = errors.New("dedup: the store left this item without an answer")

// callTimeout bounds one store call: several fit into the lease, so that a beat whose reply is
// lost is repeated in time.
func callTimeout(lease time.Duration) time.Duration {
	return min(max(lease/4, 100*time.Millisecond), 5*time.Second)
}

// apart tells beats of which one allows for less time than the other, because of a Work's own lease.
// In one call the short lease would cut short the time of all others, or wait for as long as they do.
func apart(a, b *ExtendRequest) bool { return callTimeout(a.Lease) != callTimeout(b.Lease) }

// roundTrip makes one store call, within the time that the lease leaves for it, and reports it.
func (g *Guard) roundTrip(ctx context.Context, cause string, n int, lease time.Duration, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout(lease))
	defer cancel()
	begun := time.Now()
	err := call(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %s of %d: %w", ErrUnavailable, cause, n, err)
	}
	g.Emit(Event{Name: "store", Cause: cause, N: n, Took: max(time.Since(begun), 1), Err: err})
	return err
}

func (g *Guard) storeClaim(ctx context.Context, in []ClaimRequest, out []Verdict) error {
	err := g.roundTrip(ctx, "claim", len(in), g.opts.Lease, func(ctx context.Context) error { return g.store.Claim(ctx, in, out) })
	if err != nil {
		g.unsure.put(in, g.opts.Lease)
		return err
	}
	for i := range out {
		if out[i].State == 0 && out[i].Err == nil {
			out[i].Err = errNoAnswer
		}
		if errors.Is(out[i].Err, ErrUnavailable) { // answered in part: this item's reply may be lost as a whole call's
			g.unsure.put(in[i:i+1], g.opts.Lease)
		}
	}
	return nil
}

// storeExtend is given beats that allow for the same time: see apart.
func (g *Guard) storeExtend(ctx context.Context, in []ExtendRequest, out []error) error {
	return g.roundTrip(ctx, "extend", len(in), in[0].Lease, func(ctx context.Context) error { return g.store.Extend(ctx, in, out) })
}

func (g *Guard) storeFinish(ctx context.Context, in []FinishRequest, out []error) error {
	return g.roundTrip(ctx, "finish", len(in), g.opts.Lease, func(ctx context.Context) error { return g.store.Finish(ctx, in, out) })
}

// foldClaim answers a twin of a claim that was answered in the same call: what the first one
// acquired is in progress for the others.
func foldClaim(q *ClaimRequest, v Verdict) Verdict {
	if v.Err == nil && (v.State == Acquired || v.State == Condemned) {
		v.State, v.Left = InProgress, q.Lease
	}
	return v
}

// releaseOrphans gives back what was acquired for a caller that is gone. Where that fails the
// lease ends by itself, at the price of one crash counted.
func (g *Guard) releaseOrphans(in []ClaimRequest, out []Verdict) {
	var fin []FinishRequest
	for i := range out {
		if v := &out[i]; v.State == Acquired || v.State == Condemned {
			fin = append(fin, FinishRequest{Held: heldOf(&in[i], v), State: Released})
		}
	}
	if len(fin) == 0 {
		return
	}
	if err, _ := g.finishes.submit(context.Background(), fin, make([]error, len(fin))); err != nil {
		g.opts.Logger.Warn("dedup: claims of a caller that is gone could not be released and end with their leases", "n", len(fin), "err", err)
	}
}

// heldOf is the claim that v granted to q.
func heldOf(q *ClaimRequest, v *Verdict) Held {
	h := Held{
		ClaimRequest: *q, Epoch: v.Epoch, Attempt: v.Attempt, Crashes: v.Crashes,
		Condemned: v.State == Condemned, LastError: v.LastError,
	}
	h.Redrive = v.Redrive // the record's number, which is the higher one
	return h
}
