package deduptest

const (
	nextEpoch = "r.epoch = max(r.epoch+1, uint64(now.UnixMilli()))"
	isHigher  = "higher := q.Redrive > r.redrive"
	crashes   = "if r.state == dedup.InProgress && (r.crashes == 0 || r.alone) {"
)

var epochMutants = []mutant{
	{"Rule12", "keeps the epoch in a takeover", []edit{
		{nextEpoch, "if r.leaseUntil.IsZero() {\n\t\t" + nextEpoch + "\n\t}"},
	}},
	{"Rule12", "keeps the epoch after a release", []edit{
		{isHigher, isHigher + "\n\treleased := r.state == dedup.Released"},
		{nextEpoch, "if !released {\n\t\t" + nextEpoch + "\n\t}"},
	}},
	{"Rule12", "starts epochs anew with every life", []edit{
		{nextEpoch, "if r.epoch == 0 {\n\t\tr.epoch = 1\n\t} else {\n\t\t" + nextEpoch + "\n\t}"},
	}},
	{"Rule12", "keeps the epoch in a redrive", []edit{
		{nextEpoch, "if !higher || r.epoch == 0 {\n\t\t" + nextEpoch + "\n\t}"},
	}},
	{"Rule12", "takes the clock for the epoch even when it is behind", []edit{
		{nextEpoch, "r.epoch = uint64(now.UnixMilli())"},
	}},
}

var redriveMutants = []mutant{
	{"Rule13", "never takes failed", []edit{{"if !higher {", "if true {"}}},
	{"Rule13", "takes done", []edit{
		{"\tcase dedup.Done:\n\t\treturn r.verdict(now, false)", "\tcase dedup.Done:\n\t\tif !higher {\n\t\t\treturn r.verdict(now, false)\n\t\t}"},
	}},
	{"Rule13", "takes failed with an equal number", []edit{{"if !higher {", "if q.Redrive < r.redrive || q.Redrive == 0 {"}}},
	{"Rule13", "never takes condemned", []edit{{isHigher, isHigher + " && r.state != dedup.Condemned"}}},
	{"Rule13", "takes condemned while its lease lives", []edit{
		{"if now.Before(r.leaseUntil) {\n\t\t\treturn", "if now.Before(r.leaseUntil) && (r.state == dedup.InProgress || !higher) {\n\t\t\treturn"},
	}},
	{"Rule13", "writes the asker's lower number", []edit{
		{"if higher {", "if !higher {\n\t\tr.redrive = q.Redrive\n\t}\n\tif higher {"},
	}},
	{"Rule13", "keeps the counts in a redrive", []edit{
		{"r.redrive, r.attempts, r.crashes = q.Redrive, 0, 0", "r.redrive = q.Redrive"},
	}},
}

var countMutants = []mutant{
	{"Rule14", "counts no failures", []edit{{"r.attempts+1, 0, q.Reason", "r.attempts, 0, q.Reason"}}},
	{"Rule14", "counts a release", []edit{{"\tcase dedup.Failed:\n\t\tr.lastError", "\tcase dedup.Released:\n\t\tr.attempts++\n\tcase dedup.Failed:\n\t\tr.lastError"}}},
	{"Rule14", "counts no crashes", []edit{{"r.crashes++", "r.crashes += 0"}}},
	{"Rule14", "counts every crash", []edit{{crashes, "if r.state == dedup.InProgress {"}}},
	{"Rule14", "counts the first crash only alone", []edit{{crashes, "if r.state == dedup.InProgress && r.alone {"}}},
	{"Rule14", "ignores alone", []edit{{"r.alone = r.alone || q.Alone", "r.alone = false"}}},
	{"Rule14", "forgets alone with the next beat", []edit{{"r.alone = r.alone || q.Alone", "r.alone = q.Alone"}}},
	{"Rule14", "takes the owner before for alone", []edit{
		{"r.claimedAt, r.alone = q.Owner, q.Holder, now, false", "r.claimedAt = q.Owner, q.Holder, now"},
	}},
	{"Rule14", "counts the takeover of a condemned record", []edit{{crashes, "if r.crashes == 0 || r.alone {"}}},
	{"Rule14", "keeps crashes after a failure", []edit{{"r.attempts+1, 0, q.Reason", "r.attempts+1, r.crashes, q.Reason"}}},
	{"Rule14", "keeps the counts of what is done", []edit{
		{"r.attempts, r.crashes, r.lastError, r.result = 0, 0, \"\",", "r.lastError, r.result = \"\","},
	}},
	{"Rule14", "starts crashes anew with a beat", []edit{{"r.alone = r.alone || q.Alone", "r.alone, r.crashes = r.alone || q.Alone, 0"}}},
	{"Rule14", "starts crashes anew with a release", []edit{
		{"\tcase dedup.Failed:\n\t\tr.lastError", "\tcase dedup.Released:\n\t\tr.crashes = 0\n\tcase dedup.Failed:\n\t\tr.lastError"},
	}},
}

var otherMutants = []mutant{
	{"Claim", "compares a zero fingerprint", []edit{
		{"if r.fingerprint != q.Fingerprint && r.fingerprint != (dedup.Fingerprint{}) && q.Fingerprint != (dedup.Fingerprint{}) {", "if r.state != 0 && r.fingerprint != q.Fingerprint {"},
	}},
	{"Claim", "forgets the fingerprint", []edit{{"r.fingerprint = q.Fingerprint", "r.fingerprint = dedup.Fingerprint{}"}}},
	{"Claim", "makes a record where one must exist", []edit{{"if in[i].MustExist {", "if false {"}}},
	{"Content", "cuts results", []edit{{"slices.Clone(q.Result)", "slices.Clone(q.Result[:min(len(q.Result), 65535)])"}}},
	{"Content", "keeps the caller's slice", []edit{{"slices.Clone(q.Result)", "q.Result"}}},
	{"Content", "loses the reason of a failure", []edit{{"\tcase dedup.Failed:\n\t\tr.lastError = q.Reason", "\tcase dedup.Failed:\n\t\tr.lastError = \"\""}}},
	{"Admin", "shows a holder after the end", []edit{{"\tr.leaseUntil, r.holder = time.Time{}, \"\"", "\tr.leaseUntil = time.Time{}"}}},
	{"Admin", "forgets what a lease holds", []edit{{"r != nil && r.owned() && now.Before(r.leaseUntil)", "r != nil && now.Before(now)"}}},
}
