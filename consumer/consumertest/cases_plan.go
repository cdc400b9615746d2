package consumertest

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
)

var planCases = []testCase{
	{"PlanFillsZeroFieldsAndKeepsTheOthers", func(e *env) {
		s := e.open().source
		p, err := s.Plan(consumer.Policy{})
		require.NoError(e, err, "Plan of the zero Policy")
		require.Positive(e, p.MaxAttempts)
		require.Positive(e, p.MaxCrashes)
		require.NotEmpty(e, p.Backoff)
		require.Positive(e, p.HandlerTimeout)
		require.Positive(e, p.Concurrency)

		mine := consumer.Policy{MaxAttempts: 3, MaxCrashes: 2, Backoff: []time.Duration{time.Second, 2 * time.Second}, HandlerTimeout: 10 * time.Second, Concurrency: 4}
		p, err = s.Plan(mine)
		require.NoError(e, err)
		require.Equal(e, mine, p.Policy)
	}},
	{"PlanExplainsItsWindow", func(e *env) {
		p, err := e.open().source.Plan(consumer.Policy{})
		require.NoError(e, err)
		require.NotEmpty(e, p.Scope)
		require.GreaterOrEqual(e, p.Window, p.Waits(), "Window must cover the delays between the attempts")
		require.GreaterOrEqual(e, p.HandlerLimit, time.Duration(0))
		tagged := regexp.MustCompile(`\((read|declared|assumed)\)$`)
		for term := range strings.SplitSeq(p.Why, " + ") {
			require.Regexp(e, tagged, term, "each term of Why (%q) ends in (read), (declared) or (assumed)", p.Why)
		}
	}},
	{"PlanRefusesWhatCannotBeMeant", func(e *env) {
		s := e.open().source
		for name, p := range map[string]consumer.Policy{
			"MaxAttempts":    {MaxAttempts: -1},
			"MaxCrashes":     {MaxCrashes: -1},
			"Backoff":        {Backoff: []time.Duration{time.Second, -1}},
			"HandlerTimeout": {HandlerTimeout: -1},
			"Concurrency":    {Concurrency: -1},
		} {
			_, err := s.Plan(p)
			require.ErrorContains(e, err, name, "Plan with a negative %s", name)
		}
	}},
	{"PlanMayBeCalledBesideReceive", func(e *env) {
		m := e.open()
		came := make(chan got)
		errs := make(chan error, 100)
		var planning sync.WaitGroup
		e.Cleanup(planning.Wait) // last: a Plan that waits for Receive goes on when that has ended
		m.pump(came)             // waits, since there is nothing yet
		planning.Go(func() {
			for range cap(errs) {
				_, err := m.source.Plan(consumer.Policy{})
				errs <- err
			}
		})
		t := time.NewTimer(e.conf.Patience)
		defer t.Stop()
		for range cap(errs) {
			select {
			case err := <-errs:
				require.NoError(e, err, "Plan while Receive waits")
			case <-t.C:
				require.Fail(e, "Plan did not return while Receive waited")
			}
		}
		m.publish(1, "")
		m.ack(e.next(came, "the message"))
	}},
	{"ScopeIsThatOfThePlan", func(e *env) {
		m := e.open()
		before, err := m.source.Plan(consumer.Policy{})
		require.NoError(e, err)
		g := m.one(m.publish(1, "")[0])
		require.Equal(e, before.Scope, g.Scope, "Scope of a delivery")
		after, err := m.source.Plan(consumer.Policy{})
		require.NoError(e, err)
		require.Equal(e, before.Scope, after.Scope, "Scope once the broker has been asked")
		other, err := e.open().source.Plan(consumer.Policy{})
		require.NoError(e, err)
		require.Equal(e, before.Scope, other.Scope, "Scope of another member of the group")
		m.ack(g)
	}},
}
