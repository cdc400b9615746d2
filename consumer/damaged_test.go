package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// damaged is a Store with one record, that of the message "bad", which claims or words cannot use.
type damaged struct {
	*memstore.Store
	claim, finish error // their answer for that one item while damaged; nil: none
	healed        atomic.Bool
	refused       atomic.Int64
}

func (d *damaged) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	hit := func(q dedup.ClaimRequest) bool { return d.hits(q, d.claim) }
	return around(in, out, hit, dedup.Verdict{Err: d.claim}, func(in []dedup.ClaimRequest, out []dedup.Verdict) error {
		return d.Store.Claim(ctx, in, out)
	})
}

func (d *damaged) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	hit := func(q dedup.FinishRequest) bool { return d.hits(q.ClaimRequest, d.finish) }
	return around(in, out, hit, d.finish, func(in []dedup.FinishRequest, out []error) error {
		return d.Store.Finish(ctx, in, out)
	})
}

func (d *damaged) hits(q dedup.ClaimRequest, fault error) bool {
	if fault == nil || d.healed.Load() || q.Fingerprint != work(message("bad", "")).Fingerprint {
		return false
	}
	d.refused.Add(1)
	return true
}

// around answers fault for the items that hit picks, and lets do answer the others.
func around[Q, A any](in []Q, out []A, hit func(Q) bool, fault A, do func([]Q, []A) error) error {
	var rest []Q
	var at []int
	for i, q := range in {
		if hit(q) {
			out[i] = fault
			continue
		}
		rest, at = append(rest, q), append(at, i)
	}
	answers := make([]A, len(rest))
	err := do(rest, answers)
	for i, a := range answers {
		out[at[i]] = a
	}
	return err
}

// A fault of one item is no outage: everybody else goes on, and the item is asked for again once a
// second until its record is healed.
func TestRecordThatCannotBeUsedHoldsUpItsOwnMessageAlone(t *testing.T) {
	for name, c := range map[string]struct {
		claim, finish error
		word          error // of the handler, on bad's first run
		runs          int   // of bad
		next          bool  // what is behind bad in its lane goes on
		suspect       bool
	}{
		"claim":                     {claim: errBoom},
		"claim, perhaps made":       {claim: fmt.Errorf("%w: a part of a batch", dedup.ErrUnavailable)},
		"done":                      {finish: errBoom, runs: 1, next: true},
		"done, perhaps written":     {finish: fmt.Errorf("%w: a part of a batch", dedup.ErrUnavailable), runs: 1, next: true},
		"failure":                   {finish: errBoom, word: errBoom, runs: 1},
		"verdict to dead-letter it": {finish: errBoom, word: consumer.Permanent(errBoom), runs: 1},
		"done, of a suspect":        {finish: errBoom, runs: 1, next: true, suspect: true},
		"failure of a suspect":      {finish: errBoom, word: errBoom, runs: 1, suspect: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &damaged{Store: memstore.New(), claim: c.claim, finish: c.finish}
				if c.suspect {
					crash(t, newGuard(t, d.Store), 1, false, message("bad", ""))
				}
				g := newGuard(t, d)
				s := newSource()
				s.publish(message("bad", "a"), message("a1", "a"), message("bad", "copy"))
				s.publish(messages(20, "b")...)
				r := &recorder{}
				r.do = func(_ context.Context, m *consumer.Message) error {
					if m.ID == "bad" && r.times("bad") == 1 {
						return c.word
					}
					return nil
				}
				k := newConsumer(t, s, g, r.handle, nil)
				stop := start(t, k)
				time.Sleep(time.Minute)
				require.InDelta(t, 60, d.refused.Load(), 1, "once a second")
				require.Equal(t, c.runs, r.times("bad"))
				require.NotContains(t, s.said("ack"), "bad")
				require.NotContains(t, s.said("dead letter"), "bad")
				require.True(t, k.Stats().Receiving)
				if c.next {
					require.EqualValues(t, 21, k.Stats().Done)
				} else {
					require.EqualValues(t, 20, k.Stats().Done)
					if a1, err := g.Inspect(t.Context(), work(message("a1", ""))); err == nil {
						require.Equal(t, dedup.Released, a1.State, "nothing behind a head that waits stays claimed")
					}
				}

				d.healed.Store(true)
				time.Sleep(5 * time.Second)
				runs, dead := 1, 0
				switch {
				case c.word == errBoom:
					runs = 2
				case c.word != nil:
					dead = 1
				}
				require.EqualValues(t, 22-dead, k.Stats().Done)
				require.EqualValues(t, dead, k.Stats().DeadLettered)
				require.EqualValues(t, 1, k.Stats().Duplicates)
				require.Equal(t, runs, r.times("bad"))
				require.Equal(t, 1, r.times("a1"))
				require.NoError(t, stop())
				require.Zero(t, s.left())
				s.kept(t)
			})
		})
	}
}
