package deduptest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

// Forkable is a Store that can be copied with all it holds and whose clock stands still but for
// Advance. A copy has a clock of its own.
type Forkable interface {
	dedup.Store
	dedup.Admin
	Fork() Forkable
	Advance(d time.Duration)
}

const (
	exploreLease  = time.Second
	exploreKeep   = time.Hour // far more than all leases of a path together
	exploreTick   = 10 * time.Millisecond
	exploreOwners = 3
)

// Explored is what [Explore] saw.
type Explored struct {
	States, Transitions int
	// Situations counts, by what it is, the transitions that showed each situation worth
	// reaching. A name with no transition is there with 0.
	Situations map[string]int
}

// Explore drives s, which must be empty, through every order of the given number of steps by three
// owners on each key, and compares each answer, and the records after it, with a model of the rules.
// A step is a call or an end: a claim by a new owner, in the place of one that crashed or of none,
// answered or with its reply lost; the same claim again; a beat; each of the five words that end a
// claim, early, late or twice; the end of all leases; the end of all retentions. On a single key
// there are also claims with a higher redrive number, claims repeated though answered, beats
// alone, and the store going back behind a claim.
//
// States are merged that differ only in the names of owners and keys and in how long ago things
// happened: epochs count by their order, and no path is long enough for retention to end by itself.
func Explore(tb testing.TB, s Forkable, keys, steps int) Explored {
	tb.Helper()
	x := &explorer{tb: tb, seen: map[string]*node{}, Explored: Explored{Situations: map[string]int{}}}
	for _, name := range everySituation {
		x.Situations[name] = 0
	}
	root := &node{store: s, sides: make([]side, keys)}
	for i := range root.sides {
		root.sides[i].key = dedup.Key{byte(i + 1)}
	}
	layer := []*node{root}
	x.seen[root.code()] = root
	for range steps {
		x.next = nil
		for _, n := range layer {
			x.expand(n)
			n.store, n.sides = nil, nil // their memory is wanted
		}
		layer = x.next
	}
	x.States = len(x.seen)
	return x.Explored
}

type explorer struct {
	Explored
	tb   testing.TB
	seen map[string]*node
	next []*node
}

// node is a state of the whole: the Store under test, and by key what the model says.
type node struct {
	store  Forkable
	sides  []side
	tokens uint32 // owner tokens given out
	stage  int    // with one key: how far the story sawOldLifeSpeaks has come on some path to here
}

// side is one key with its owners.
type side struct {
	key    dedup.Key
	life   life
	owners [exploreOwners]owner
}

// owner is what one owner knows: nothing, its token (a reply was lost), or its claim.
type owner struct {
	asked, knows bool
	h            dedup.Held
}

func (n *node) fork() *node {
	return &node{store: n.store.Fork(), sides: slices.Clone(n.sides), tokens: n.tokens, stage: n.stage}
}

// expand takes every step from n.
func (x *explorer) expand(n *node) {
	for k := range n.sides {
		fresh := false // owners that know nothing are all alike
		for o := range n.sides[k].owners {
			if !n.sides[k].owners[o].asked {
				if fresh {
					continue
				}
				fresh = true
			}
			for _, m := range moves {
				if len(n.sides) > 1 && !m.core {
					continue
				}
				if m.possible == nil || m.possible(&n.sides[k], &n.sides[k].owners[o]) {
					x.step(n, m.name, func(to *node) { m.do(x, to, &to.sides[k], &to.sides[k].owners[o]) }, k)
				}
			}
		}
	}
	x.step(n, "all leases end", func(to *node) {
		to.store.Advance(exploreLease)
		for k := range to.sides {
			to.sides[k].life = to.sides[k].life.lapse()
		}
	}, -1)
	x.step(n, "all retentions end", func(to *node) {
		to.store.Advance(exploreKeep)
		for k := range to.sides {
			to.sides[k].life = life{}
		}
		if to.stage == 2 {
			to.stage = 3
		}
	}, -1)
}

// step takes n by do, on one key or on all (-1), to what may be a new state.
func (x *explorer) step(n *node, name string, do func(to *node), key int) {
	to := n.fork()
	do(to)
	x.Transitions++
	for k := range to.sides {
		to.check(x.tb, &to.sides[k], name)
	}
	code := to.code()
	if old, ok := x.seen[code]; ok {
		old.stage = max(old.stage, to.stage)
		if key >= 0 {
			x.probe(to, &to.sides[key])
		}
		return
	}
	x.seen[code] = to
	x.next = append(x.next, to)
}

// probe looks once behind what Inspect shows before the Store of a state is dropped in favour of one
// that came there first: whether a crash now counts, and for whom, is hidden in the record.
func (x *explorer) probe(n *node, d *side) {
	n.store.Advance(exploreLease)
	d.life = d.life.lapse()
	q := n.newcomer(d, 0)
	out := make([]dedup.Verdict, 1)
	err := n.store.Claim(context.Background(), []dedup.ClaimRequest{q}, out)
	if _, want := d.life.claim(q, out[0].Epoch); err != nil || !sameVerdict(want, out[0]) {
		require.Fail(x.tb, "claim after the lease is not answered as by the model", "%+v, %v; the model says %+v from %+v", out[0], err, want, d.life)
	}
}

// check compares the record of d with the model's.
func (n *node) check(tb testing.TB, d *side, step string) {
	r, err := n.store.Inspect(context.Background(), d.key)
	if d.life.state == 0 {
		if !errors.Is(err, dedup.ErrNotFound) {
			require.Fail(tb, "a record is left", "after %s: %+v, %v", step, r, err)
		}
		return
	}
	l := d.life
	same := err == nil && r.State == l.state && r.Epoch == l.epoch && r.Attempt == l.failed+1 &&
		r.Crashes == l.crash && r.Redrive == l.number && r.LastError == l.why && string(r.Result) == l.result
	if !same {
		require.Fail(tb, "the record is not as the model has it", "after %s: %+v, %v; the model has %+v", step, r, err, l)
	}
}

// code is the same for states that differ only in names and in how long ago things happened.
func (n *node) code() string {
	parts := make([][]byte, len(n.sides))
	for i := range n.sides {
		parts[i] = n.sides[i].code()
	}
	slices.SortFunc(parts, bytes.Compare)
	return string(bytes.Join(parts, []byte{0xff}))
}

func (d *side) code() []byte {
	epochs := make([]uint64, 0, 1+exploreOwners)
	epochs = append(epochs, d.life.epoch)
	for i := range d.owners {
		epochs = append(epochs, d.owners[i].h.Epoch)
	}
	slices.Sort(epochs)
	epochs = slices.Compact(epochs)
	rank := func(e uint64) byte { i, _ := slices.BinarySearch(epochs, e); return byte(i) }
	var owners [exploreOwners]uint64
	for i := range d.owners {
		o := &d.owners[i]
		if !o.asked {
			continue
		}
		b := [8]byte{1, bit(d.life.state != 0 && o.h.Owner == d.life.owner), bit(o.knows), rank(o.h.Epoch)}
		b[4], b[5], b[6] = byte(o.h.Attempt), byte(o.h.Crashes), byte(o.h.Redrive)<<1|bit(o.h.Condemned)
		b[7] = letter(o.h.LastError)
		owners[i] = binary.BigEndian.Uint64(b[:])
	}
	slices.Sort(owners[:])
	l := &d.life
	code := []byte{
		byte(l.state), bit(l.held)<<2 | bit(l.live)<<1 | bit(l.alone), rank(l.epoch),
		byte(l.failed), byte(l.crash), byte(l.number), letter(l.why),
	}
	for _, o := range owners {
		code = binary.BigEndian.AppendUint64(code, o)
	}
	return code
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func letter(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}
