package deduptest

import (
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Config says how to test a Store. Only Open is required.
type Config struct {
	// Open returns a Store, on the same data each time within one test: the cases open two,
	// as two processes would. Clean up with tb.Cleanup. Required.
	Open func(tb testing.TB) dedup.Store
	// Advance moves the clock by which the store decides leases and expiry. With it the cases
	// run one after the other, since they share the clock. Default: time.Sleep, cases in parallel.
	Advance func(tb testing.TB, d time.Duration)
	// Corrupt overwrites what is stored under k with bytes that are no record.
	// Default: none, and the cases that need it do not apply.
	Corrupt func(tb testing.TB, k dedup.Key)
	// Lease is the lease that cases let run out, and the retention that they wait for: as short
	// as the store's clock is fine, and by Advance's default really slept. Default: 100ms.
	Lease time.Duration
}

func (c Config) filled(tb testing.TB) Config {
	if c.Open == nil {
		tb.Fatal("deduptest: Config.Open is nil; pass a function that returns the Store under test")
	}
	if c.Advance == nil {
		c.Advance = func(_ testing.TB, d time.Duration) { time.Sleep(d) }
	}
	if c.Lease <= 0 {
		c.Lease = 100 * time.Millisecond
	}
	return c
}

// rule is a rule of the port, or an optional port, with its cases.
type rule struct {
	name  string
	cases []testCase
}

type testCase struct {
	name string
	run  func(e *env)
}

// rules lists everything that TestStore runs, in the order of the package's documentation.
func rules() []rule {
	return []rule{
		{"Rule01_OneOfManyClaimsAcquires", rule01},
		{"Rule02_RepeatedCallsChangeNothing", rule02},
		{"Rule03_OwnerAndStateAreCompared", rule03},
		{"Rule04_LateOwnerFinishesIfNobodyFollowed", rule04},
		{"Rule05_LostRecordDoesNotSupersede", rule05},
		{"Rule06_TakeoverIsCompareAndSet", rule06},
		{"Rule07_InProgressIsNeverDone", rule07},
		{"Rule08_EveryWriteExpiresAndGarbageIsAnError", rule08},
		{"Rule09_StoreClockDecidesLeases", rule09},
		{"Rule10_BatchAnswersItemByItem", rule10},
		{"Rule11_RetentionOverIsANewLife", rule11},
		{"Rule12_EpochsOnlyGrow", rule12},
		{"Rule13_HigherRedriveTakesFailedAndCondemned", rule13},
		{"Rule14_FailuresAndCrashesAreCounted", rule14},
		{"Claim", claimCases},
		{"Content", contentCases},
		{"Admin", adminCases},
		{"Pinger", pingerCases},
	}
}

// inapplicable says why the case of that name, or the whole rule where name is empty, cannot be run with c and
// the Store that it opens; "" for all others.
func (c Config) inapplicable(rule, name string, s dedup.Store) (why string) {
	switch rule + "/" + name {
	case "Rule08_EveryWriteExpiresAndGarbageIsAnError/GarbageIsAnError", "Rule10_BatchAnswersItemByItem/OneUndecodableRecordAmongOthers":
		if c.Corrupt == nil {
			return "Config.Corrupt is nil"
		}
	case "Admin/":
		if _, ok := s.(dedup.Admin); !ok {
			return "the Store is no dedup.Admin"
		}
	case "Pinger/":
		if _, ok := s.(dedup.Pinger); !ok {
			return "the Store is no dedup.Pinger"
		}
	}
	return ""
}

// TestStore runs every rule of the port, and those of each optional port that the Store has.
// A failing subtest is named after the rule that is broken; what does not apply is none, and t says so.
func TestStore(t *testing.T, c Config) {
	parallel := c.Advance == nil
	c = c.filled(t)
	about := c.Open(t)
	applies := func(t *testing.T, rule, name string) bool {
		why := c.inapplicable(rule, name, about)
		if why != "" {
			t.Logf("%s/%s does not apply: %s", rule, name, why)
		}
		return why == ""
	}
	for _, r := range rules() {
		if !applies(t, r.name, "") {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			for _, tc := range r.cases {
				if !applies(t, r.name, tc.name) {
					continue
				}
				t.Run(tc.name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					tc.run(newEnv(t, c))
				})
			}
		})
	}
}
