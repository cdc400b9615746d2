package deduptest

import (
	"errors"
	"time"

	"github.com/idemq/idemq/dedup"
)

func setEpoch(left *kept, v *dedup.Verdict, epoch uint64) { left.epoch, v.Epoch = epoch, epoch }

// takes reports a claim that acquires what another had.
func takes(f *kept, q *dedup.ClaimRequest, v *dedup.Verdict) bool { return acquired(v) && !own(f, q) }

const clockOnly = "takes the clock for the epoch even when it is behind"

var epochMutants = []broken{
	{"Rule12", "keeps the epoch in a takeover", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) && f.held {
			setEpoch(left, v, f.epoch)
		}
	}}},
	{"Rule12", "keeps the epoch after a release", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) && f.state == dedup.Released {
			setEpoch(left, v, f.epoch)
		}
	}}},
	{"Rule12", "starts epochs anew with every life", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if f.state == 0 && acquired(v) {
			setEpoch(left, v, 1)
		}
	}}},
	{"Rule12", clockOnly, mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) {
			setEpoch(left, v, uint64(left.claimed.UnixMilli()))
		}
	}}},
}

var redriveMutants = []broken{
	{"Rule13", "never takes failed", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if f.state == dedup.Failed {
			q.Redrive = 0
		}
	}}},
	{"Rule13", "takes done", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if f.state == dedup.Done && q.Redrive > f.number {
			f.state = dedup.Failed
		}
	}}},
	{"Rule13", "takes failed with an equal number", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if f.state == dedup.Failed && q.Redrive == f.number && f.number > 0 {
			f.state = dedup.Released
		}
	}}},
	{"Rule13", "never takes condemned", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if f.state == dedup.Condemned {
			q.Redrive = 0
		}
	}}},
	{"Rule13", "takes condemned while its lease lives", mutant{claim: func(f *kept, q *dedup.ClaimRequest, _ time.Time) {
		if f.state == dedup.Condemned && q.Redrive > f.number {
			f.live = false
		}
	}}},
	{"Rule13", "writes the asker's lower number", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) {
			left.number, v.Redrive = q.Redrive, q.Redrive
		}
	}}},
	{"Rule13", "keeps the counts in a redrive", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) && q.Redrive > f.number {
			left.failed, left.crash = f.failed, f.crash
			v.Attempt, v.Crashes = f.failed+1, f.crash
		}
	}}},
}

var countMutants = []broken{
	{"Rule14", "counts no failures", mutant{verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
		if q.State == dedup.Retryable && *err == nil {
			left.failed = f.failed
		}
	}}},
	{"Rule14", "counts a release", mutant{verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
		if q.State == dedup.Released && *err == nil && f.held {
			left.failed++
		}
	}}},
	{"Rule14", "counts no crashes", crashes(func(f kept) int { return f.crash })},
	{"Rule14", "counts every crash", crashes(func(f kept) int { return f.crash + 1 })},
	{"Rule14", "counts the first crash only alone", crashes(func(f kept) int {
		if f.alone {
			return f.crash + 1
		}
		return f.crash
	})},
	{"Rule14", "ignores alone", mutant{extend: func(_ *kept, q *dedup.ExtendRequest) { q.Alone = false }}},
	{"Rule14", "forgets alone with the next beat", mutant{extend: func(f *kept, _ *dedup.ExtendRequest) { f.alone = false }}},
	{"Rule14", "takes the owner before for alone", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) {
			left.alone = f.alone
		}
	}}},
	{"Rule14", "counts the takeover of a condemned record", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) && f.held && v.State == dedup.Condemned {
			left.crash++
			v.Crashes++
		}
	}}},
	{"Rule14", "keeps crashes after a failure", mutant{verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
		if q.State == dedup.Retryable && *err == nil {
			left.crash = f.crash
		}
	}}},
	{"Rule14", "keeps the counts of what is done", mutant{verdict: func(f kept, left *kept, q *dedup.FinishRequest, err *error) {
		if q.State == dedup.Done && *err == nil {
			left.failed, left.crash = f.failed, f.crash
		}
	}}},
	{"Rule14", "starts crashes anew with a beat", mutant{extend: func(f *kept, q *dedup.ExtendRequest) {
		if f.owner == q.Owner {
			f.crash = 0
		}
	}}},
	{"Rule14", "starts crashes anew with a release", mutant{verdict: func(_ kept, left *kept, q *dedup.FinishRequest, err *error) {
		if q.State == dedup.Released && *err == nil {
			left.crash = 0
		}
	}}},
}

// crashes replaces how a takeover of running work counts.
func crashes(count func(f kept) int) mutant {
	return mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if takes(&f, q, v) && f.state == dedup.InProgress && q.Redrive <= f.number {
			left.crash = count(f)
			v.Crashes = left.crash
		}
	}}
}

var otherMutants = []broken{
	{"Claim", "compares a zero fingerprint", mutant{claimed: func(f kept, left *kept, q *dedup.ClaimRequest, v *dedup.Verdict) {
		if f.state != 0 && f.print != q.Fingerprint {
			*v, *left = dedup.Verdict{State: dedup.Mismatch}, f
		}
	}}},
	{"Claim", "forgets the fingerprint", mutant{claimed: func(_ kept, left *kept, _ *dedup.ClaimRequest, _ *dedup.Verdict) { left.print = dedup.Fingerprint{} }}},
	{"Claim", "makes a record where one must exist", mutant{claim: func(_ *kept, q *dedup.ClaimRequest, _ time.Time) { q.MustExist = false }}},
	{"Content", "cuts results", mutant{finish: func(_ *kept, q *dedup.FinishRequest) { q.Result = q.Result[:min(len(q.Result), 65535)] }}},
	{"Content", "loses the reason of a failure", mutant{finish: func(_ *kept, q *dedup.FinishRequest) { q.Reason = "" }}},
	{"Admin", "shows a holder after the end", mutant{verdict: func(f kept, left *kept, _ *dedup.FinishRequest, err *error) {
		if !errors.Is(*err, dedup.ErrSuperseded) {
			left.holder = f.holder
		}
	}}},
}
