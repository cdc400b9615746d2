package deduptest

// guardMutants break the half of a rule that the Guard keeps. Its cases are the tests of package
// dedup that are named after rules.
var guardMutants = []mutant{
	{"Rule05", "does not count a verdict whose record was lost", []edit{
		{`cause, answer = "record_lost", nil`, "answer = nil"},
	}},
	{"Rule05", "does not count a beat whose record was lost", []edit{
		{`b.events = append(b.events, Event{Name: "record_lost"`, `_ = append(b.events, Event{Name: "record_lost"`},
	}},
	{"Rule09", "measures its lease from the answer", []edit{
		{"g.beats.add(claims, asked)", "asked = time.Now()\n\tg.beats.add(claims, asked)"},
	}},
	{"Rule09", "measures a beat from its answer", []edit{
		{"c.deadline = sent.Add(c.held.Lease)", "c.deadline = time.Now().Add(c.held.Lease)"},
	}},
	{"Rule09", "lets work go on whose lease is over", []edit{
		{"case left <= 0:\n\t\t\tb.lost(c)", "case left <= 0:\n\t\t\tb.drop(c)"},
	}},
	{"Rule09", "lets work begin whose lease is over", []edit{
		{"case !c.kept || !time.Now().Before(c.deadline):", "case false:"},
	}},
	{"Rule10", "takes a zero answer for one", []edit{
		{"if out[i].State == 0 && out[i].Err == nil {", "if false {"},
	}},
}
