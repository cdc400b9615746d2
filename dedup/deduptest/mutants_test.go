package deduptest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"
)

// mutant is what a real Store, or the Guard, becomes by a few edits of its source: one that keeps
// every rule but one, or but a part of one.
type mutant struct {
	rule, what string
	edits      []edit
}

// edit replaces old, which is in exactly one place, by new.
type edit struct{ old, new string }

// row is a line of the table: what became of a mutant.
type row struct {
	mutant
	subject  string
	by, also []string // cases of the rule that failed, and other rules with cases that failed
	found    []string // other tests of deduptest that failed
}

// TestEveryBrokenRuleIsCaughtByItsCase is the test of the suite: without it a case could pass
// whatever the Store does.
func TestEveryBrokenRuleIsCaughtByItsCase(t *testing.T) {
	rows := append(storeRows(t), guardRows(t)...)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "rule\tof\ta mutant that\tcaught by\tand by")
	caught, alone := map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.rule, r.subject, r.what, strings.Join(r.by, ", "), strings.Join(append(r.also, r.found...), " "))
		switch {
		case len(r.by) > 0:
			caught[r.rule] = true
			alone[r.rule] = alone[r.rule] || len(r.also) == 0
		case len(r.also) > 0:
			t.Errorf("%s that %s is caught by cases of %s, and by none of %s", r.subject, r.what, strings.Join(r.also, ", "), r.rule)
		default:
			t.Errorf("%s that %s passes all cases", r.subject, r.what)
		}
		for _, test := range r.missed() {
			t.Errorf("%s that %s passes %s", r.subject, r.what, test)
		}
	}
	w.Flush()
	t.Log("\n" + table.String())
	for _, r := range rules() {
		name, _, _ := strings.Cut(r.name, "_")
		require.True(t, caught[name], "no mutant breaks %s", r.name)
		if strings.HasPrefix(name, "Rule") {
			require.True(t, alone[name], "no mutant breaks %s alone", r.name)
		}
	}
}

// onOneKey are the rules about what calls on one key do, which Explore must find broken; overLives
// are those that take a longer run, and CheckModel, which must find both.
const (
	onOneKey  = "Rule02 Rule03 Rule04 Rule05 Rule13 Rule14"
	overLives = "Rule12"
)

// missed returns the tests that compare a store in memory with the model and should have failed, too.
func (r *row) missed() (tests []string) {
	if r.subject != "memstore" {
		return nil
	}
	if strings.Contains(onOneKey, r.rule) && !slices.Contains(r.found, "Explore") {
		tests = append(tests, "Explore")
	}
	if strings.Contains(onOneKey+overLives, r.rule) && !slices.Contains(r.found, "CheckModel") {
		tests = append(tests, "CheckModel")
	}
	return tests
}

// storeRows has the suite examine the mutants of both stores, and each store as it is.
func storeRows(t *testing.T) (rows []row) {
	var all []*suspect
	var files []map[string]string
	add := func(dir, open string, mutants []mutant) {
		sound := readSources(t, filepath.Join(sources, dir))
		for i, m := range append([]mutant{{rule: "sound"}}, mutants...) {
			name := fmt.Sprintf("%s%d_%s", dir, i, strings.ToLower(m.rule))
			all = append(all, &suspect{name: name, open: open})
			files = append(files, patch(t, sound, m))
			rows = append(rows, row{mutant: m, subject: dir})
		}
	}
	add("memstore", `examineMemory(t, "PACKAGE", PACKAGE.New)`, slices.Concat(
		claimMutants, wordMutants, lostMutants, timeMutants, batchMutants, epochMutants, redriveMutants, countMutants, otherMutants))
	add("redisstore", `examineRedis(t, "PACKAGE", func(c redis.UniversalClient) dedup.Store { return PACKAGE.New(c, nil) })`, redisMutants)
	examine(t, all, files)
	for i := range rows {
		v := all[i].found
		rows[i].sort(v.Cases)
		if v.Explored {
			rows[i].found = append(rows[i].found, "Explore")
		}
		if v.Random {
			rows[i].found = append(rows[i].found, "CheckModel")
		}
	}
	return slices.DeleteFunc(rows, func(r row) bool {
		if r.rule == "sound" {
			require.Empty(t, append(r.also, r.found...), "%s as it is", r.subject)
		}
		return r.rule == "sound"
	})
}

// sort takes in the cases that failed, which begin with their rule.
func (r *row) sort(cases []string) {
	for _, c := range cases {
		rule, name, _ := strings.Cut(c, "/")
		switch {
		case rule == r.rule:
			r.by = append(r.by, name)
		case !slices.Contains(r.also, rule):
			r.also = append(r.also, rule)
		}
	}
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: Test(Rule\d\d)_(\w+)`)

// guardRows runs the tests of package dedup that are named after rules on the Guard's mutants.
func guardRows(t *testing.T) (rows []row) {
	sound := readSources(t, sources)
	for _, m := range append([]mutant{{rule: "sound"}}, guardMutants...) {
		o := overlay{}
		for name, text := range patch(t, sound, m) {
			if text != sound[name] {
				o.add(t, filepath.Join(sources, name), text)
			}
		}
		out, err := o.goTest(t, sources, "^TestRule")
		if m.rule == "sound" {
			require.NoError(t, err, "the Guard as it is:\n%s", out)
			continue
		}
		r := row{mutant: m, subject: "Guard"}
		for _, test := range failedTest.FindAllStringSubmatch(out, -1) {
			r.sort([]string{test[1] + "/" + test[2]})
		}
		require.Equal(t, err != nil, len(r.by)+len(r.also) > 0, "the Guard that %s:\n%s", m.what, out)
		rows = append(rows, r)
	}
	return rows
}
