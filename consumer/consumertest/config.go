package consumertest

import (
	"testing"
	"time"

	"github.com/idemq/idemq/consumer"
)

// Config says how to test a Source. All of it acts on one topic or queue that is new, and on one
// group that reads it from its beginning. Where a topic has parts that are assigned to members,
// it has at least two. The zero values of the last fields stand for a broker that carries
// everything.
type Config struct {
	// Open returns one more member of the group. The suite closes it. Required.
	Open func(tb testing.TB) consumer.Source
	// Publish sends ms in their order, with their ID, Key, Headers and Body as far as the broker has a place
	// for them, and returns once the broker has them. An empty ID is left to the broker. Required.
	Publish func(tb testing.TB, ms ...consumer.Message)
	// DeadLetters returns everything dead-lettered so far: at least Headers and Body, and
	// Key where Ordered. The suite asks until it finds what it waits for. Required.
	DeadLetters func(tb testing.TB) []consumer.Message
	// Cut breaks every connection of the sources that Open returned, and of no others; new
	// ones may be made at once. Default: none, and the cases that need it do not apply.
	Cut func(tb testing.TB)
	// Ordered: the broker keeps an order per Key, and Open's sources give it to their lanes.
	Ordered bool
	// OneMember: the broker gives messages to one member at a time, the others stand by. The
	// cases that need two do not apply.
	OneMember bool
	// Patience is how long a case waits for one redelivery, a rebalance included, and for Close.
	// A broken Source fails that late. Default: 30s.
	Patience time.Duration
	// Delay is one that Retry can keep; the shorter, the quicker the suite. Above 1s
	// RetryInProgressNeverEndsAMessage does not apply. Default: 200ms.
	Delay time.Duration
	// MaxBody is the largest body that is sent, in bytes. Default: 1 MiB.
	MaxBody int
	// Report is told of each case that did not fail, from any goroutine, and why it did not apply; ""
	// if it did. Default: nobody is told.
	Report func(name, inapplicable string)

	TextHeaders bool // header values are printable text: no control characters, valid UTF-8
	NilIsEmpty  bool // "no value" arrives as an empty body, or the other way round
	NoEmptyBody bool // a message without a body is refused by the broker
}

func (c Config) filled(tb testing.TB) Config {
	tb.Helper()
	for name, missing := range map[string]bool{"Open": c.Open == nil, "Publish": c.Publish == nil, "DeadLetters": c.DeadLetters == nil} {
		if missing {
			tb.Fatalf("consumertest: Config.%s is nil; it is required", name)
		}
	}
	if c.Patience <= 0 {
		c.Patience = 30 * time.Second
	}
	if c.Delay <= 0 {
		c.Delay = 200 * time.Millisecond
	}
	if c.MaxBody <= 0 {
		c.MaxBody = 1 << 20
	}
	return c
}

// testCase is a rule of the port.
type testCase struct {
	name string
	run  func(e *env)
}

// inapplicable says why the case of that name cannot be run with c; "" for all others.
func (c Config) inapplicable(name string) (why string) {
	switch name {
	case "OrderIsKeptPerLane":
		if !c.Ordered {
			return "the broker keeps no order (Config.Ordered)"
		}
	case "RetryHoldsNobodyElseUp":
		if c.Ordered {
			return "a lane may wait for its head (Config.Ordered)"
		}
	case "RetryInProgressNeverEndsAMessage":
		if c.Delay > time.Second {
			return "a hundred redeliveries would take too long (Config.Delay)"
		}
	case "MembersShareTheWorkAndLoseNothing", "LostClosesWhenAMessageMovesToAnotherMember":
		if c.OneMember {
			return "a second member stands by (Config.OneMember)"
		}
	case "CutLosesSessionsAndNoMessage", "SettleOnALostSessionIsANoOp", "RetrySurvivesACut":
		if c.Cut == nil {
			return "there is no way to cut connections (Config.Cut)"
		}
	}
	return ""
}

// TestSource runs every rule of the port that applies, each as a subtest named after it. fresh is called
// once for t, to know which do, and once per subtest, and returns the Config of a new topic or queue; it may
// skip, and cleans up with tb.Cleanup. Subtests run in parallel.
func TestSource(t *testing.T, fresh func(tb testing.TB) Config) {
	about := fresh(t).filled(t)
	for _, tc := range cases() {
		if why := about.inapplicable(tc.name); why != "" {
			t.Logf("%s does not apply: %s", tc.name, why)
			if about.Report != nil {
				about.Report(tc.name, why)
			}
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, fresh(t))
			if report := e.conf.Report; report != nil {
				t.Cleanup(func() {
					if !t.Failed() {
						report(tc.name, "")
					}
				})
			}
			tc.run(e)
		})
	}
}

// cases lists everything that TestSource runs.
func cases() []testCase {
	var all []testCase
	for _, cs := range [][]testCase{planCases, receiveCases, settleCases, againCases, retryCases, deadCases, memberCases, lostCases} {
		all = append(all, cs...)
	}
	return all
}
