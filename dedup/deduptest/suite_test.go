package deduptest

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

func configOf(s *reference) Config {
	return Config{
		Open:    func(testing.TB) dedup.Store { return s },
		Advance: func(_ testing.TB, d time.Duration) { s.Advance(d) },
		Corrupt: func(_ testing.TB, k dedup.Key) { s.mu.Lock(); s.garbage[k] = true; s.mu.Unlock() },
	}
}

func TestReferenceKeepsEveryRule(t *testing.T) {
	TestStore(t, configOf(newReference(mutant{})))
}

// TestEveryBrokenRuleIsCaughtByItsCase is the test of the suite: without it a case could pass
// whatever the Store does.
func TestEveryBrokenRuleIsCaughtByItsCase(t *testing.T) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "rule\ta Store that\tcaught by\tand by")
	rulesBroken := map[string]bool{}
	for _, m := range mutants() {
		by, also := caught(t, m)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.rule, m.what, strings.Join(by, ", "), strings.Join(also, " "))
		rulesBroken[m.rule] = true
		if len(by) == 0 {
			t.Errorf("a Store that %s passes the cases of %s", m.what, m.rule)
		}
	}
	for _, r := range rules() {
		name, _, _ := strings.Cut(r.name, "_")
		require.True(t, rulesBroken[name] || name == "Pinger", "no mutant breaks %s", r.name)
	}
	w.Flush()
	t.Log("\n" + table.String())
}

// caught runs the suite on m and returns the failing cases of m's rule, and the other rules with
// failing cases.
func caught(t *testing.T, m broken) (by, also []string) {
	for _, r := range rules() {
		name, _, _ := strings.Cut(r.name, "_")
		for _, tc := range r.cases {
			c := configOf(newReference(m.mutant))
			got := record(t, func(tb testing.TB) { tc.run(newEnv(tb, c.filled(tb))) })
			switch {
			case !got.Failed():
			case name == m.rule:
				by = append(by, tc.name)
			case !slices.Contains(also, name):
				also = append(also, name)
			}
		}
	}
	return by, also
}

// TestExplorationCatchesBrokenRules: the exhaustive test, too, must be able to fail.
func TestExplorationCatchesBrokenRules(t *testing.T) {
	require.False(t, record(t, func(tb testing.TB) { Explore(tb, newReference(mutant{}), 1, 4) }).Failed(), "the reference itself")
	for _, ms := range [][]broken{wordMutants, redriveMutants, countMutants} {
		for _, m := range ms {
			got := record(t, func(tb testing.TB) { Explore(tb, newReference(m.mutant), 1, 7) })
			require.True(t, got.Failed(), "a Store that %s passes the exploration", m.what)
		}
	}
}

// TestRandomRunsCatchBrokenRules does the same for the randomised test.
func TestRandomRunsCatchBrokenRules(t *testing.T) {
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.checks": "3000", "rapid.seed": "1"} {
		was := flag.Lookup(name).Value.String()
		require.NoError(t, flag.Set(name, value))
		t.Cleanup(func() { require.NoError(t, flag.Set(name, was)) })
	}
	checkModel(t, configOf(newReference(mutant{})))
	for _, ms := range [][]broken{wordMutants, lostMutants, epochMutants, redriveMutants, countMutants} {
		for _, m := range ms {
			if m.what == clockOnly {
				continue // runs keep the clock ahead of the epochs
			}
			got := record(t, func(tb testing.TB) { checkModel(tb, configOf(newReference(m.mutant))) })
			if !got.Failed() {
				t.Errorf("a Store that %s passes the random runs", m.what)
			}
		}
	}
}
