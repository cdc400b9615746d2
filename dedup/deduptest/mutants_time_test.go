package deduptest

const (
	leaseRuns  = "if now.Before(r.leaseUntil) {\n\t\t\treturn r.verdict(now, false)"
	claimFound = "\t\ts.sweepSome(now)\n\t\tr := s.live(in[i].Key, now)"
	newRecord  = "r = &record{}\n"
)

// oldRecord hands a mutant of memstore what a key had in its life before.
var oldRecord = edit{claimFound, "\t\told := s.records[in[i].Key]\n" + claimFound}

var timeMutants = []mutant{
	{"Rule08", "writes claims without expiry", []edit{
		{"now, false\n\tr.beat(q, now)", "now, false\n\tr.beat(q, now)\n\tr.expires = now.Add(1 << 62)"},
	}},
	{"Rule08", "writes takeovers without expiry", []edit{
		{"now, false\n\tr.beat(q, now)", "now, false\n\ttaken := !r.leaseUntil.IsZero()\n\tif r.beat(q, now); taken {\n\t\tr.expires = now.Add(1 << 62)\n\t}"},
	}},
	{"Rule08", "writes beats without expiry", []edit{
		{"|| q.Alone\n\tr.beat(&q.ClaimRequest, now)", "|| q.Alone\n\tr.beat(&q.ClaimRequest, now)\n\tr.expires = now.Add(1 << 62)"},
	}},
	{"Rule08", "writes verdicts without expiry", []edit{
		{"r.expires = now.Add(q.Retention)", "r.expires = now.Add(1 << 62)"},
	}},
	{"Rule08", "writes condemned without expiry", []edit{
		{"dedup.Condemned, q.Reason\n\t\tr.beat(&q.ClaimRequest, now)", "dedup.Condemned, q.Reason\n\t\tr.leaseUntil, r.expires = now.Add(q.Lease), now.Add(1<<62)"},
	}},
	{"Rule08", "lets a claim's record expire with its lease", []edit{
		{"r.expires = now.Add(max(q.Retention, q.Lease))", "r.expires = r.leaseUntil"},
	}},
	{"Rule09", "derives the deadline from the time to live", []edit{
		{leaseRuns, "if now.Before(r.expires.Add(q.Lease - q.Retention)) {\n\t\t\treturn r.verdict(now, false)"},
	}},
	{"Rule09", "measures the owner's lease by the asker's", []edit{
		{leaseRuns, "if now.Before(r.claimedAt.Add(q.Lease)) {\n\t\t\treturn r.verdict(now, false)"},
	}},
	{"Rule09", "lets askers move the deadline", []edit{
		{leaseRuns, "if now.Before(r.leaseUntil) {\n\t\t\tdefer func() { r.leaseUntil = r.leaseUntil.Add(q.Lease) }()\n\t\t\treturn r.verdict(now, false)"},
	}},
	{"Rule09", "begins the lease anew for whoever asks", []edit{
		{leaseRuns, "if now.Before(r.leaseUntil) {\n\t\t\tdefer func() { r.leaseUntil = now.Add(q.Lease) }()\n\t\t\treturn r.verdict(now, false)"},
	}},
	{"Rule11", "begins the retention of done anew for whoever asks", []edit{
		{"\tcase dedup.Done:\n\t\treturn r.verdict(now, false)", "\tcase dedup.Done:\n\t\tr.expires = now.Add(q.Retention)\n\t\treturn r.verdict(now, false)"},
	}},
	{"Rule11", "begins the retention of failures anew for whoever asks", []edit{
		{"\t\tif !higher {\n\t\t\treturn", "\t\tif !higher {\n\t\t\tdefer func() { r.expires = now.Add(q.Retention) }()\n\t\t\treturn"},
	}},
	{"Rule11", "lets who asks keep it for a lease without a word of it", []edit{
		{"\tcase dedup.Done:\n\t\treturn r.verdict(now, false)", "\tcase dedup.Done:\n\t\tdefer func() { r.expires = later(r.expires, now.Add(q.Lease)) }()\n\t\treturn r.verdict(now, false)"},
		{"// owned reports", "func later(a, b time.Time) time.Time {\n\tif a.Before(b) {\n\t\treturn b\n\t}\n\treturn a\n}\n\n// owned reports"},
	}},
	{"Rule11", "remembers done beyond its retention", []edit{
		{"if r != nil && !now.Before(r.expires) {", "if r != nil && r.state != dedup.Done && !now.Before(r.expires) {"},
		{"\t\tif !now.Before(r.expires) {", "\t\tif r.state != dedup.Done && !now.Before(r.expires) {"},
	}},
	{"Rule11", "forgets failures before their retention is over", []edit{
		{"r.expires = now.Add(q.Retention)", "r.expires = now.Add(q.Retention)\n\tif r.state == dedup.Failed {\n\t\tr.expires = now.Add(min(q.Lease, q.Retention))\n\t}"},
	}},
	{"Rule11", "carries counts into the new life", []edit{
		oldRecord,
		{newRecord, newRecord + "\t\t\tif old != nil {\n\t\t\t\tr.attempts, r.crashes = old.attempts, old.crashes\n\t\t\t}\n"},
	}},
	{"Rule11", "lets an owner of the old life finish the new one", []edit{
		oldRecord,
		{"\talone       bool", "\tformer      dedup.Owner\n\talone       bool"},
		{newRecord, newRecord + "\t\t\tif old != nil {\n\t\t\t\tr.former = old.owner\n\t\t\t}\n"},
		{"case r.owner != q.Owner:", "case r.owner != q.Owner && r.former != q.Owner:"},
	}},
}

const (
	endOfClaim  = "out[i] = r.claim(&in[i], now)\n\t}\n"
	endOfFinish = "r.finish(&in[i], now))\n\t}\n"
)

var batchMutants = []mutant{
	{"Rule10", "leaves the last claim of a batch unanswered", []edit{
		{endOfClaim, endOfClaim + "\tif n := len(out); n > 1 {\n\t\tout[n-1] = dedup.Verdict{}\n\t}\n"},
	}},
	{"Rule10", "answers a batch in another order", []edit{
		{endOfClaim, endOfClaim + "\tif n := len(out); n > 1 {\n\t\tout[0], out[n-1] = out[n-1], out[0]\n\t}\n"},
	}},
	{"Rule10", "answers words in another order", []edit{
		{endOfFinish, endOfFinish + "\tif n := len(out); n > 1 {\n\t\tout[0], out[1] = out[1], out[0]\n\t}\n"},
	}},
	{"Rule10", "answers one bad item's fault for its neighbours", []edit{
		{endOfFinish, endOfFinish + "\tfor i := range in {\n\t\tif !isOutcome(in[i].State) {\n\t\t\tfor j := range out {\n\t\t\t\tout[j] = out[i]\n\t\t\t}\n\t\t}\n\t}\n"},
	}},
	{"Rule10", "accepts what is no outcome", []edit{
		{"case !isOutcome(q.State):", "case !isOutcome(q.State):\n\t\treturn nil\n\tcase false:"},
	}},
	{"Rule10", "claims under an ended context", []edit{
		{"out []dedup.Verdict) error {\n\tif err := ctx.Err(); err != nil {", "out []dedup.Verdict) error {\n\tif err := ctx.Err(); false {"},
	}},
}
