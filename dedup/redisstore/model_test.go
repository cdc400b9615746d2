package redisstore_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAgreesWithMemstore makes the same calls of both stores, in real time, and compares every answer.
// The memory store is the plain statement of the state machine; what the scripts do differently
// is wrong.
func TestAgreesWithMemstore(t *testing.T) {
	client := realRedis(t)
	rapid.Check(t, func(rt *rapid.T) {
		p := &pair{t: rt, redis: open(client), mem: memstore.New(), keys: []dedup.Key{newKey(), newKey()}}
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			if p.step(); p.unclear {
				return
			}
		}
	})
}

const (
	shortLease = 40 * time.Millisecond
	shortKeep  = 50 * time.Millisecond
)

// pair drives the two stores. A call that meets the end of a lease or a retention may be answered
// either way; the run then ends.
type pair struct {
	t          *rapid.T
	redis, mem dedup.Store
	keys       []dedup.Key
	held       []twoHeld
	ends       []time.Time
	unclear    bool
}

// twoHeld is one claim as each store granted it: their epochs differ.
type twoHeld struct{ redis, mem dedup.Held }

func (p *pair) step() {
	switch op := rapid.SampledFrom([]string{"claim", "claim", "claim", "finish", "finish", "extend", "again", "wait", "inspect"}).Draw(p.t, "op"); op {
	case "claim":
		p.claim(p.request(newOwner()))
	case "again":
		if len(p.held) > 0 {
			q := p.request(p.pick().redis.Owner)
			p.claim(q)
		}
	case "finish", "extend":
		if len(p.held) > 0 {
			p.word(op, p.pick())
		}
	case "wait":
		pause(rapid.SampledFrom([]time.Duration{shortLease + 5*time.Millisecond, shortKeep + 5*time.Millisecond}).Draw(p.t, "d"))
	case "inspect":
		p.inspect()
	}
}

func (p *pair) pick() twoHeld {
	return p.held[rapid.IntRange(0, len(p.held)-1).Draw(p.t, "held")]
}

func (p *pair) request(o dedup.Owner) dedup.ClaimRequest {
	q := dedup.ClaimRequest{
		Key: rapid.SampledFrom(p.keys).Draw(p.t, "key"), Owner: o, Lease: time.Hour, Retention: 2 * time.Hour,
		Fingerprint: dedup.Fingerprint{rapid.SampledFrom([]byte{0, 0, 1, 1, 2}).Draw(p.t, "print")},
		Redrive:     rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(p.t, "redrive"),
		MustExist:   rapid.IntRange(0, 5).Draw(p.t, "must") == 0,
		Holder:      rapid.SampledFrom([]string{"", "me"}).Draw(p.t, "holder"),
	}
	if rapid.Bool().Draw(p.t, "shortLease") {
		q.Lease = shortLease
		if rapid.IntRange(0, 3).Draw(p.t, "shortKeep") == 0 {
			q.Retention = shortKeep
		}
	}
	return q
}

func (p *pair) claim(q dedup.ClaimRequest) {
	r, m := make([]dedup.Verdict, 1), make([]dedup.Verdict, 1)
	p.both(&q, func() error { return p.redis.Claim(p.t.Context(), []dedup.ClaimRequest{q}, r) },
		func() error { return p.mem.Claim(p.t.Context(), []dedup.ClaimRequest{q}, m) })
	if p.unclear {
		return
	}
	require.InDelta(p.t, m[0].Left, r[0].Left, float64(10*time.Millisecond), "%+v %+v", m[0], r[0])
	require.Equal(p.t, m[0].Epoch == 0, r[0].Epoch == 0)
	a, b := m[0], r[0]
	a.Left, b.Left, a.Epoch, b.Epoch = 0, 0, 0, 0
	require.Equal(p.t, a, b)
	if a.State == dedup.Acquired || a.State == dedup.Condemned {
		p.held = append(p.held, twoHeld{redis: heldOf(q, r[0]), mem: heldOf(q, m[0])})
	}
}

func (p *pair) word(op string, h twoHeld) {
	if rapid.IntRange(0, 9).Draw(p.t, "ahead") == 0 { // as if the store had gone back in time
		h.redis.Epoch, h.mem.Epoch = h.redis.Epoch+1e6, h.mem.Epoch+1e6
		h.redis.LastError, h.mem.LastError = "older", "older"
	}
	r, m := make([]error, 1), make([]error, 1)
	if op == "extend" {
		alone := rapid.Bool().Draw(p.t, "alone")
		p.both(&h.redis.ClaimRequest, func() error {
			return p.redis.Extend(p.t.Context(), []dedup.ExtendRequest{{Held: h.redis, Alone: alone}}, r)
		}, func() error {
			return p.mem.Extend(p.t.Context(), []dedup.ExtendRequest{{Held: h.mem, Alone: alone}}, m)
		})
	} else {
		f := dedup.FinishRequest{
			State:  rapid.SampledFrom([]dedup.State{dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned}).Draw(p.t, "state"),
			Reason: rapid.SampledFrom([]string{"", "boom"}).Draw(p.t, "reason"),
		}
		if rapid.Bool().Draw(p.t, "result") {
			f.Result = []byte("result")
		}
		fr, fm := f, f
		fr.Held, fm.Held = h.redis, h.mem
		p.both(&h.redis.ClaimRequest, func() error { return p.redis.Finish(p.t.Context(), []dedup.FinishRequest{fr}, r) },
			func() error { return p.mem.Finish(p.t.Context(), []dedup.FinishRequest{fm}, m) })
	}
	if !p.unclear {
		require.Equal(p.t, m[0], r[0])
	}
}

func (p *pair) inspect() {
	k := rapid.SampledFrom(p.keys).Draw(p.t, "key")
	var r, m dedup.Record
	var re, me error
	p.both(nil, func() error { r, re = p.redis.(dedup.Admin).Inspect(p.t.Context(), k); return nil },
		func() error { m, me = p.mem.(dedup.Admin).Inspect(p.t.Context(), k); return nil })
	if p.unclear {
		return
	}
	require.Equal(p.t, me, re)
	if errors.Is(me, dedup.ErrNotFound) {
		return
	}
	require.WithinDuration(p.t, m.Expires, r.Expires, 10*time.Millisecond)
	require.Equal(p.t, m.LeaseUntil.IsZero(), r.LeaseUntil.IsZero())
	if !m.LeaseUntil.IsZero() {
		require.WithinDuration(p.t, m.LeaseUntil, r.LeaseUntil, 10*time.Millisecond)
	}
	for _, d := range []*dedup.Record{&m, &r} {
		d.Epoch, d.ClaimedAt, d.LeaseUntil, d.Expires = 0, time.Time{}, time.Time{}, time.Time{}
	}
	require.Equal(p.t, m, r)
}

// both makes the two calls, and notes when what they wrote ends.
func (p *pair) both(q *dedup.ClaimRequest, redis, mem func() error) {
	begun := time.Now()
	require.NoError(p.t, redis())
	require.NoError(p.t, mem())
	ended := time.Now()
	const margin = 2 * time.Millisecond
	p.unclear = ended.Sub(begun) > 5*time.Millisecond
	for _, e := range p.ends {
		p.unclear = p.unclear || e.After(begun.Add(-margin)) && e.Before(ended.Add(margin))
	}
	if q != nil {
		p.ends = append(p.ends, ended.Add(q.Lease), ended.Add(q.Retention))
	}
}

func newKey() (k dedup.Key) {
	rand.Read(k[:])
	return k
}

func newOwner() (o dedup.Owner) {
	rand.Read(o[:])
	return o
}
