package deduptest

import (
	"errors"
	"slices"
	"time"

	"github.com/idemq/idemq/dedup"
)

// broken is a Store that keeps every rule but one, or but a part of one.
type broken struct {
	rule, what string
	mutant
}

const never = 100 * 365 * 24 * time.Hour

func acquired(v *dedup.Verdict) bool { return v.State == dedup.Acquired || v.State == dedup.Condemned }

func own(found *kept, q *dedup.ClaimRequest) bool {
	return found.state != 0 && found.owner == q.Owner
}

func mutants() []broken {
	return slices.Concat(claimMutants, wordMutants, lostMutants, timeMutants, batchMutants, epochMutants, redriveMutants, countMutants, otherMutants)
}

var claimMutants = []broken{
	{"Rule01", "reads and writes a new key in two steps", mutant{racy: func(k kept) bool { return k.state == 0 }}},
	{"Rule01", "reads and writes a free record in two steps", mutant{racy: func(k kept) bool { return k.state == dedup.Retryable || k.state == dedup.Released }}},
	{"Rule02", "finds the owner's own claim in progress", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if own(&f, q) && f.held {
			v.State, v.Left, *left = dedup.InProgress, time.Second, f
		}
	}}},
	{"Rule02", "lets a claim repeated after its end acquire", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if own(f, q) && !f.held {
			f.owner = dedup.Owner{}
		}
	}}},
	{"Rule06", "reads and writes a takeover in two steps", mutant{racy: func(k kept) bool { return k.held && !k.live }}},
	{"Rule06", "takes a finished record whose owner was late", mutant{
		verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
			left.reborn = f.held && !f.live && f.state == dedup.InProgress
		},
		claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
			if f.reborn && !f.held && !own(f, q) {
				f.state, f.held = dedup.InProgress, true
			}
		},
	}},
	{"Rule07", "answers done for what is in progress", mutant{claimed: func(_ kept, _ *kept, _ *dedup.ClaimRequest, v *dedup.Verdict) {
		if v.State == dedup.InProgress {
			v.State = dedup.Done
		}
	}}},
	{"Rule07", "answers done for condemned work that is not dead-lettered yet", mutant{claimed: func(f kept, _ *kept, _ *dedup.ClaimRequest, v *dedup.Verdict) {
		if v.State == dedup.InProgress && f.state == dedup.Condemned {
			v.State = dedup.Done
		}
	}}},
}

var wordMutants = []broken{
	{"Rule02", "refuses a verdict that is there already", mutant{verdict: func(f kept, _ *kept, q *dedup.FinishRequest, err *error) {
		if f.state == q.State && *err == nil {
			*err = dedup.ErrSuperseded
		}
	}}},
	{"Rule02", "counts a failure told twice as two", mutant{verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
		if f.state == dedup.Retryable && q.State == f.state && *err == nil {
			left.failed++
		}
	}}},
	{"Rule03", "does not compare the owner of a finish", mutant{finish: func(f *kept, q *dedup.FinishRequest) {
		if f.held {
			q.Owner = f.owner
		}
	}}},
	{"Rule03", "does not compare the owner of a beat", mutant{extend: func(f *kept, q *dedup.ExtendRequest) {
		if f.held {
			q.Owner = f.owner
		}
	}}},
	{"Rule03", "does not compare the state", mutant{finish: func(f *kept, q *dedup.FinishRequest) {
		if !f.held && f.owner == q.Owner && f.state != q.State && f.state != dedup.Condemned {
			f.state, f.held = dedup.InProgress, true
		}
	}}},
	{"Rule03", "lets a late beat revive a finished record", mutant{extend: func(f *kept, q *dedup.ExtendRequest) {
		if !f.held && f.owner == q.Owner {
			f.state, f.held = dedup.InProgress, true
		}
	}}},
	{"Rule03", "lets done follow condemned", mutant{finish: func(f *kept, q *dedup.FinishRequest) {
		if f.state == dedup.Condemned && q.State == dedup.Done && f.held {
			f.state = dedup.InProgress
		}
	}}},
	{"Rule03", "forgets with a release that it was condemned", mutant{verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
		if f.state == dedup.Condemned && q.State == dedup.Released && *err == nil {
			left.state = dedup.Released
		}
	}}},
	{"Rule03", "lets the successor run what is condemned", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if f.state == dedup.Condemned && !f.live && !own(f, q) {
			f.state, f.held = dedup.Released, false
		}
	}}},
	{"Rule04", "refuses a finish after the lease", mutant{verdict: func(f kept, left *kept, _ *dedup.FinishRequest, err *error) {
		if f.held && !f.live && *err == nil {
			*left, *err = f, dedup.ErrSuperseded
		}
	}}},
}

var lostMutants = []broken{
	{"Rule05", "takes a missing record for superseded", mutant{spoken: func(f kept, left *kept, _ *dedup.Held, err *error) {
		if errors.Is(*err, dedup.ErrRecordLost) && f.state == 0 {
			*left, *err = f, dedup.ErrSuperseded
		}
	}}},
	{"Rule05", "says nothing of a missing record", mutant{spoken: func(_ kept, _ *kept, _ *dedup.Held, err *error) {
		if errors.Is(*err, dedup.ErrRecordLost) {
			*err = nil
		}
	}}},
	{"Rule05", "lets a record that went back supersede", mutant{spoken: func(f kept, left *kept, _ *dedup.Held, err *error) {
		if errors.Is(*err, dedup.ErrRecordLost) && f.state != 0 {
			*left, *err = f, dedup.ErrSuperseded
		}
	}}},
	{"Rule05", "overwrites a done record of a lower epoch", mutant{finish: func(f *kept, q *dedup.FinishRequest) {
		if f.state == dedup.Done && f.epoch < q.Epoch {
			*f = kept{}
		}
	}}},
	{"Rule05", "makes a lost claim again without its attempts", mutant{spoken: func(_ kept, left *kept, _ *dedup.Held, err *error) {
		if errors.Is(*err, dedup.ErrRecordLost) {
			left.failed = 0
		}
	}}},
	{"Rule05", "makes a lost condemned claim again as a plain one", mutant{extend: func(_ *kept, q *dedup.ExtendRequest) {
		q.Condemned = false
	}}},
}

var timeMutants = []broken{
	{"Rule08", "writes claims without expiry", mutant{claimed: func(_ kept, left *kept, _ *dedup.ClaimRequest, v *dedup.Verdict) {
		if acquired(v) {
			left.expiry = left.expiry.Add(never)
		}
	}}},
	{"Rule08", "writes beats and verdicts without expiry", mutant{spoken: func(_ kept, left *kept, _ *dedup.Held, err *error) {
		if !errors.Is(*err, dedup.ErrSuperseded) {
			left.expiry = left.expiry.Add(never)
		}
	}}},
	{"Rule08", "lets a claim's record expire with its lease", mutant{claimed: func(_ kept, left *kept, _ *dedup.ClaimRequest, v *dedup.Verdict) {
		if acquired(v) {
			left.expiry = left.deadline
		}
	}}},
	{"Rule08", "reads garbage as nothing", mutant{garbled: func(*kept) {}}},
	{"Rule08", "reads garbage as done", mutant{garbled: func(f *kept) { f.state = dedup.Done }}},
	{"Rule09", "derives the deadline from the time to live", mutant{claim: func(f *kept, q *dedup.ClaimRequest, now time.Time) {
		f.deadline = f.expiry.Add(q.Lease - q.Retention)
		f.live = f.held && now.Before(f.deadline)
	}}},
	{"Rule09", "measures the owner's lease by the asker's", mutant{claim: func(f *kept, q *dedup.ClaimRequest, now time.Time) {
		f.deadline = f.claimed.Add(q.Lease)
		f.live = f.held && now.Before(f.deadline)
	}}},
	{"Rule09", "lets askers move the deadline", mutant{claimed: func(_ kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if v.State == dedup.InProgress {
			left.deadline = left.deadline.Add(q.Lease)
		}
	}}},
	{"Rule11", "remembers done beyond its retention", mutant{expired: func(f kept) kept {
		if f.state == dedup.Done {
			f.expiry = f.expiry.Add(never)
			return f
		}
		return kept{}
	}}},
	{"Rule11", "carries counts into the new life", mutant{expired: func(f kept) kept {
		return kept{life: life{state: dedup.Released, epoch: f.epoch, failed: f.failed, crash: f.crash, number: f.number}}
	}}},
	{"Rule11", "lets an owner of the old life finish the new one", mutant{
		expired: func(kept) kept { return kept{reborn: true} },
		finish: func(f *kept, q *dedup.FinishRequest) {
			if f.reborn && f.held {
				q.Owner = f.owner
			}
		},
	}},
}

var batchMutants = []broken{
	{"Rule10", "leaves the last claim of a batch unanswered", mutant{answers: func(out []dedup.Verdict) {
		if len(out) > 1 {
			out[len(out)-1] = dedup.Verdict{}
		}
	}}},
	{"Rule10", "answers a batch in another order", mutant{answers: slices.Reverse[[]dedup.Verdict]}},
	{"Rule10", "answers one bad item's fault for its neighbours", mutant{words: func(out []error) {
		for _, err := range out {
			if err != nil && !errors.Is(err, dedup.ErrSuperseded) && !errors.Is(err, dedup.ErrRecordLost) {
				for i := range out {
					out[i] = err
				}
				return
			}
		}
	}}},
	{"Rule10", "answers words in another order", mutant{words: func(out []error) {
		if len(out) > 1 {
			out[0], out[1] = out[1], out[0]
		}
	}}},
	{"Rule10", "accepts what is no outcome", mutant{finish: func(f *kept, q *dedup.FinishRequest) {}, words: func(out []error) {
		for i, err := range out {
			if err != nil && !errors.Is(err, dedup.ErrSuperseded) && !errors.Is(err, dedup.ErrRecordLost) {
				out[i] = nil
			}
		}
	}}},
}
