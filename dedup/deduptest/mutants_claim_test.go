package deduptest

// scheduler lets a mutant of memstore give way to other goroutines.
var scheduler = edit{"\t\"context\"\n", "\t\"context\"\n\t\"runtime\"\n"}

// twoSteps makes memstore read a record and write it in two steps where cond holds: whoever comes
// in between is overwritten.
func twoSteps(cond string) []edit {
	return []edit{scheduler, {"r := s.live(in[i].Key, now)", `r := s.live(in[i].Key, now)
		if ` + cond + ` {
			found := record{}
			if r != nil {
				found = *r
			}
			s.mu.Unlock()
			runtime.Gosched()
			s.mu.Lock()
			if r != nil {
				*r = found
			}
		}`}}
}

// keepsLateLease lets a mutant of memstore tell what was done after its lease.
var keepsLateLease = edit{"\tr.leaseUntil, r.holder = time.Time{}, \"\"",
	"\tif r.holder = \"\"; now.Before(r.leaseUntil) || r.state != dedup.Done {\n\t\tr.leaseUntil = time.Time{}\n\t}"}

var claimMutants = []mutant{
	{"Rule01", "reads and writes a new key in two steps", twoSteps("r == nil")},
	{"Rule01", "reads and writes a free record in two steps", twoSteps("r != nil && (r.state == dedup.Retryable || r.state == dedup.Released)")},
	{"Rule02", "finds the owner's own claim in progress", []edit{
		{"return r.verdict(now, true)\n\t}\n\thigher", "return r.verdict(now, !r.owned() || r.leaseUntil.IsZero())\n\t}\n\thigher"},
	}},
	{"Rule02", "lets a claim repeated after its end acquire", []edit{
		{"if r.state != 0 && r.owner == q.Owner {", "if r.owned() && !r.leaseUntil.IsZero() && r.owner == q.Owner {"},
	}},
	{"Rule06", "reads and writes a takeover in two steps", twoSteps("r != nil && r.owned() && !now.Before(r.leaseUntil)")},
	{"Rule06", "takes a finished record whose owner was late", []edit{
		keepsLateLease,
		{"\tcase dedup.Done:\n\t\treturn r.verdict(now, false)", "\tcase dedup.Done:\n\t\tif r.leaseUntil.IsZero() {\n\t\t\treturn r.verdict(now, false)\n\t\t}"},
	}},
	{"Rule06", "puts its epoch over a finished record whose owner was late", []edit{
		keepsLateLease,
		{"\tcase dedup.Done:\n\t\treturn", "\tcase dedup.Done:\n\t\tif !r.leaseUntil.IsZero() {\n\t\t\tr.epoch++\n\t\t}\n\t\treturn"},
	}},
	{"Rule07", "answers done for what is in progress", []edit{
		{"v.State, v.Left = dedup.InProgress,", "v.State, v.Left = dedup.Done,"},
	}},
	{"Rule07", "answers done for condemned work that is not dead-lettered yet", []edit{
		{"case r.owned() && !mine:", "case r.state == dedup.Condemned && !mine:\n\t\tv.State = dedup.Done\n\tcase r.owned() && !mine:"},
	}},
	{"Rule07", "has no time left for what is in progress", []edit{
		{"v.State, v.Left = dedup.InProgress, r.leaseUntil.Sub(now)", "v.State = dedup.InProgress"},
	}},
	{"Rule07", "answers done to who wants a record that exists", []edit{
		{leaseRuns, "if now.Before(r.leaseUntil) {\n\t\t\tif q.MustExist {\n\t\t\t\treturn dedup.Verdict{State: dedup.Done}\n\t\t\t}\n\t\t\treturn r.verdict(now, false)"},
	}},
}

var wordMutants = []mutant{
	{"Rule02", "refuses a verdict that is there already", []edit{
		{"case r.state == q.State, r.state", "case r.state == q.State:\n\t\treturn dedup.ErrSuperseded\n\tcase r.state"},
	}},
	{"Rule02", "counts a failure told twice as two", []edit{
		{"case r.state == q.State, r.state", "case r.state == q.State && q.State == dedup.Retryable:\n\t\tr.attempts++\n\t\treturn nil\n\tcase r.state == q.State, r.state"},
	}},
	{"Rule03", "does not compare the owner of a finish", []edit{
		{"case r.owner != q.Owner:", "case r.owner != q.Owner && !held:"},
	}},
	{"Rule03", "does not compare the owner of a beat", []edit{
		{"if !r.owned() || r.owner != q.Owner || r", "if !r.owned() || r"},
	}},
	{"Rule03", "does not compare the state", []edit{
		{"case !held, r.state", "case !held && r.state == dedup.Condemned, r.state"},
	}},
	{"Rule03", "lets a late beat revive a finished record", []edit{
		{"if !r.owned() || r.owner != q.Owner || r.leaseUntil.IsZero() {", "if r.owner == q.Owner && !r.owned() {\n\t\tr.state, r.leaseUntil = dedup.InProgress, now\n\t}\n\tif r.owner != q.Owner || r.leaseUntil.IsZero() {"},
	}},
	{"Rule03", "lets a late beat hold again what was condemned and given back", []edit{
		{"|| r.owner != q.Owner || r.leaseUntil.IsZero() {", "|| r.owner != q.Owner {"},
	}},
	{"Rule03", "lets done follow condemned", []edit{
		{"q.State != dedup.Failed && q.State != dedup.Released:", "q.State != dedup.Failed && q.State != dedup.Released && q.State != dedup.Done:"},
	}},
	{"Rule03", "forgets with a release that it was condemned", []edit{
		{"if r.state != dedup.Condemned || q.State != dedup.Released {", "if true {"},
	}},
	{"Rule03", "lets the successor run what is condemned", []edit{
		{"if r.state != dedup.Condemned || higher {", "if true {"},
	}},
	{"Rule04", "refuses a finish after the lease", []edit{
		{"case r.owner != q.Owner:", "case r.owner != q.Owner, held && !now.Before(r.leaseUntil):"},
	}},
	{"Rule04", "refuses a beat after the lease", []edit{
		{"|| r.leaseUntil.IsZero() {", "|| !now.Before(r.leaseUntil) {"},
	}},
}

var lostMutants = []mutant{
	{"Rule05", "takes a missing record for superseded", []edit{
		{"\treturn remake(h, now), true", "\tif r == nil {\n\t\treturn &record{}, false\n\t}\n\treturn remake(h, now), true"},
	}},
	{"Rule05", "says nothing of a missing record", []edit{
		{"\ts.records[k] = r\n\treturn dedup.ErrRecordLost", "\ts.records[k] = r\n\treturn nil"},
	}},
	{"Rule05", "lets a record that went back supersede", []edit{
		{"if r != nil && (r.epoch >= h.Epoch || r.state == dedup.Done) {", "if r != nil {"},
	}},
	{"Rule05", "overwrites a done record of a lower epoch", []edit{
		{"(r.epoch >= h.Epoch || r.state == dedup.Done)", "r.epoch >= h.Epoch"},
	}},
	{"Rule05", "makes a lost claim again without its attempts", []edit{
		{"attempts: max(h.Attempt-1, 0)", "attempts: 0"},
	}},
	{"Rule05", "makes a lost condemned claim again as a plain one", []edit{
		{"if h.Condemned {", "if false {"},
	}},
	{"Rule05", "writes a lost record for a finish that it refuses", []edit{
		{"if !lost || err != nil {", "if lost && err != nil {\n\t\ts.records[k] = r\n\t}\n\tif !lost || err != nil {"},
	}},
}
