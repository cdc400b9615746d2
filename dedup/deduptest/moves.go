package deduptest

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

// move is one thing that one owner of one key can do.
type move struct {
	name     string
	core     bool                         // also taken where several keys multiply the states
	possible func(d *side, o *owner) bool // nil: always
	do       func(x *explorer, n *node, d *side, o *owner)
}

var moves = func() []move {
	knows := func(_ *side, o *owner) bool { return o.knows }
	all := []move{
		{"a new owner claims", true, nil, func(x *explorer, n *node, d *side, o *owner) { x.claim(n, d, o, n.newcomer(d, 0), false) }},
		{"a new owner claims with a higher number", false, nil, func(x *explorer, n *node, d *side, o *owner) { x.claim(n, d, o, n.newcomer(d, 1), false) }},
		{"a new owner claims and the reply is lost", true, nil, func(x *explorer, n *node, d *side, o *owner) { x.claim(n, d, o, n.newcomer(d, 0), true) }},
		{"an owner claims again", false, knows, func(x *explorer, n *node, d *side, o *owner) {
			x.claim(n, d, o, o.h.ClaimRequest, false)
		}},
		{"an owner claims again after a lost reply", true, func(_ *side, o *owner) bool { return o.asked && !o.knows }, func(x *explorer, n *node, d *side, o *owner) {
			x.claim(n, d, o, o.h.ClaimRequest, false)
		}},
		{"an owner beats", true, knows, func(x *explorer, n *node, d *side, o *owner) { x.extend(n, d, o, false) }},
		{"an owner beats alone", false, knows, func(x *explorer, n *node, d *side, o *owner) { x.extend(n, d, o, true) }},
		{"the store goes back behind an owner's claim", false, behind, func(x *explorer, n *node, d *side, o *owner) {
			o.h.Epoch = d.newest() + 1
		}},
	}
	for _, s := range outcomes {
		all = append(all, move{"an owner says " + s.String(), true, knows, func(x *explorer, n *node, d *side, o *owner) { x.finish(n, d, o, s) }})
	}
	return all
}()

func (d *side) newest() uint64 {
	newest := d.life.epoch
	for i := range d.owners {
		newest = max(newest, d.owners[i].h.Epoch)
	}
	return newest
}

// behind: seen from the owner, a store that went back has a record of a lower epoch.
func behind(d *side, o *owner) bool {
	return o.knows && d.life.state != 0 && o.h.Epoch <= d.life.epoch && d.newest() == d.life.epoch
}

// newcomer is a claim of d by an owner that takes the place of a crashed one, or of none.
func (n *node) newcomer(d *side, number int) dedup.ClaimRequest {
	n.tokens++
	q := dedup.ClaimRequest{Key: d.key, Lease: exploreLease, Retention: exploreKeep, Redrive: number}
	binary.BigEndian.PutUint32(q.Owner[:], n.tokens)
	return q
}

func (x *explorer) claim(n *node, d *side, o *owner, q dedup.ClaimRequest, lost bool) {
	n.store.Advance(exploreTick) // so that no two claims fall into one millisecond of the clock
	in, out := []dedup.ClaimRequest{q}, make([]dedup.Verdict, 1)
	err := n.store.Claim(context.Background(), in, out)
	was, got := d.life, out[0]
	next, want := was.claim(q, got.Epoch)
	if err != nil || !sameVerdict(want, got) || next.held && next.owner == q.Owner && was.owner != q.Owner && got.Epoch <= was.epoch {
		require.Fail(x.tb, "claim is not answered as by the model", "%+v, %v; the model says %+v from %+v", got, err, want, was)
	}
	x.situations(n, was, q, want)
	d.life = next
	switch holds := got.State == dedup.Acquired || got.State == dedup.Condemned; {
	case lost:
		*o = owner{asked: true, h: dedup.Held{ClaimRequest: q}}
	case holds:
		*o = owner{asked: true, knows: true, h: heldOf(q, got)}
		o.h.Epoch = max(o.h.Epoch, d.life.epoch)
	default: // a refused asker goes away
		*o = owner{}
	}
}

// sameVerdict compares what every store must answer alike; times are not the model's.
func sameVerdict(want, got dedup.Verdict) bool {
	if got.State != want.State || got.Err != nil {
		return false
	}
	switch want.State {
	case dedup.Mismatch, dedup.Absent:
		return true
	case dedup.InProgress:
		return got.Redrive == want.Redrive && got.Left > 0 && got.Result == nil
	}
	// Of what is done the epoch is nobody's token any more: a store may answer that of the owner who said so, who
	// may have asked by the same token again in a later life of the key.
	return (got.Epoch == want.Epoch || want.State == dedup.Done) && got.Attempt == want.Attempt && got.Crashes == want.Crashes &&
		got.Redrive == want.Redrive && got.LastError == want.LastError && string(got.Result) == string(want.Result)
}

func (x *explorer) extend(n *node, d *side, o *owner, alone bool) {
	in, out := []dedup.ExtendRequest{{Held: o.h, Alone: alone}}, make([]error, 1)
	err := n.store.Extend(context.Background(), in, out)
	was := d.life
	next, want := was.extend(in[0])
	if err != nil || !errors.Is(out[0], want) {
		require.Fail(x.tb, "beat is not answered as by the model", "%v, %v; the model says %v to %+v from %+v", out[0], err, want, in[0], was)
	}
	d.life = next
	x.spoke(n, "beat", was, o, want)
}

func (x *explorer) finish(n *node, d *side, o *owner, s dedup.State) {
	in, out := []dedup.FinishRequest{finishOf(o.h, s)}, make([]error, 1)
	in[0].Reason = s.String()
	err := n.store.Finish(context.Background(), in, out)
	was := d.life
	next, want := was.finish(in[0])
	if err != nil || !errors.Is(out[0], want) {
		require.Fail(x.tb, "finish is not answered as by the model", "%v, %v; the model says %v to %+v from %+v", out[0], err, want, in[0], was)
	}
	d.life = next
	x.spoke(n, "finish", was, o, want)
	if s == dedup.Condemned && (want == nil || errors.Is(want, dedup.ErrRecordLost)) && next.held {
		o.h.Condemned, o.h.LastError = true, in[0].Reason
	}
}
