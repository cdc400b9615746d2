package dedup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Claim is the answer to one Work, and the hold on it when State is Acquired or Condemned.
// Its methods may be called from any goroutine.
type Claim struct {
	Verdict
	Work Work

	g          *Guard
	held       Held // for requests; changed by Condemn only, guarded by g.beats.mu
	open       bool // made without the store, which is down, because of FailOpen
	leaseState      // guarded by g.beats.mu
}

// Unprotected reports that the claim was made without the store, by Options.FailOpen:
// the work may be running elsewhere, or may have been done.
func (c *Claim) Unprotected() bool { return c.open }

// Claim asks for w without running it, for work that ends elsewhere than it began. The error is
// nil whenever the store answered: look at State. An acquired claim is kept alive until it is
// finished, released, abandoned or lost, so end it on every path: defer c.Release.
func (g *Guard) Claim(ctx context.Context, w Work) (*Claim, error) {
	claims := make([]*Claim, 1)
	if err := g.ClaimBatch(ctx, []Work{w}, claims); err != nil {
		return nil, err
	}
	if err := claims[0].Err; err != nil {
		return nil, fmt.Errorf("dedup: claim %s %q: %w", w.Scope, w.ID, err)
	}
	return claims[0], nil
}

// ClaimBatch is Claim for many, up to 1024 in one round trip: claims[i] answers works[i], each a
// claim of its own, whose Err is set where this one alone could not be answered. Of equal works
// all but the first are InProgress. On a returned error none is held. With Options.FailOpen those
// that the store did not answer are Unprotected; what it said of the others counts.
func (g *Guard) ClaimBatch(ctx context.Context, works []Work, claims []*Claim) error {
	if len(claims) != len(works) {
		return fmt.Errorf("dedup: ClaimBatch: %d works and room for %d claims; pass slices of equal length", len(works), len(claims))
	}
	for i := range works {
		if err := works[i].check(&g.opts); err != nil {
			return err
		}
	}
	if err := context.Cause(ctx); err != nil && len(works) > 0 {
		return err
	}
	in, out, all := claimRoom(len(works))
	owners := make([]byte, len(works)*len(Owner{}))
	rand.Read(owners)
	for i := range works {
		w := &works[i]
		in[i] = ClaimRequest{Key: keyOf(g.app, w.Scope, w.ID), Owner: Owner(owners[i*len(Owner{}):]), Fingerprint: w.Fingerprint, Redrive: w.Redrive, MustExist: w.MustExist, Holder: g.opts.Holder}
		in[i].Lease, in[i].Retention = w.leases(&g.opts)
		if o, ok := g.unsure.take(&in[i]); ok { // from here on all of in is sent
			in[i].Owner = o
		}
	}
	asked := time.Now() // before the call: our own idea of the lease must end first
	if err := g.askFor(ctx, in, out); err != nil {
		return err
	}
	var outage error
	for i := range all {
		c := &all[i]
		c.g, c.Work, c.Verdict = g, works[i], out[i]
		if err := c.Err; g.opts.FailOpen && errors.Is(err, ErrUnavailable) {
			c.Verdict, c.open, outage = Verdict{State: Acquired, Attempt: 1}, true, err
		}
		c.held = heldOf(&in[i], &c.Verdict)
		claims[i] = c
	}
	g.countClaims(claims, outage)
	g.beats.add(claims, asked)
	return nil
}

// claimRoom is what n claims need, for one in one piece.
func claimRoom(n int) ([]ClaimRequest, []Verdict, []Claim) {
	if n != 1 {
		return make([]ClaimRequest, n), make([]Verdict, n), make([]Claim, n)
	}
	one := new(struct {
		in  [1]ClaimRequest
		out [1]Verdict
		all [1]Claim
	})
	return one.in[:], one.out[:], one.all[:]
}

// askFor submits in, once more under new tokens for what was answered to a token that had ended:
// one taken over from a lost reply, whose claim was released meanwhile. With FailOpen it also asks once more for
// what alone was not answered, before that runs beside an owner.
func (g *Guard) askFor(ctx context.Context, in []ClaimRequest, out []Verdict) error {
	outage, err := g.claims.submit(ctx, in, out)
	if err != nil {
		return err
	}
	if outage != nil && !g.opts.FailOpen {
		go g.releaseOrphans(in, out) // what another store call answered for the same caller
		return outage
	}
	for i := range out {
		switch {
		case out[i].State == Retryable || out[i].State == Released:
			in[i].Owner = newOwner()
		case g.opts.FailOpen && outage == nil && errors.Is(out[i].Err, ErrUnavailable): // of this one alone, as where others contend
			if _, ok := g.unsure.take(&in[i]); !ok { // somebody else asks with its token already
				in[i].Owner = newOwner()
			}
		default:
			continue
		}
		again := make([]Verdict, 1)
		if _, err := g.claims.submit(ctx, in[i:i+1:i+1], again); err != nil {
			again[0] = Verdict{Err: err}
		}
		out[i] = again[0]
	}
	return nil
}

func (g *Guard) countClaims(claims []*Claim, outage error) {
	if outage != nil {
		n := 0
		for _, c := range claims {
			if c.open {
				n++
			}
		}
		g.opts.Logger.Warn("dedup: store is down, running unprotected as Options.FailOpen says", "n", n, "err", outage)
	}
	if g.opts.Observe == nil {
		return
	}
	t := tally{name: "claim"}
	for _, c := range claims {
		if c.open {
			t.add(c.Work.Scope, "unprotected")
		} else {
			t.add(c.Work.Scope, claimCause(&c.Verdict))
		}
	}
	t.emit(g)
}
