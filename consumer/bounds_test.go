package consumer_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

const years = 365 * 24 * time.Hour

func TestPolicyBeyondAllMeasureIsRefusedAtOnce(t *testing.T) {
	day := 24 * time.Hour
	for want, p := range map[string]consumer.Policy{
		"Policy.MaxAttempts 9223372036854775807 is above 100000":      {MaxAttempts: math.MaxInt},
		"Policy.MaxAttempts 2147483647 is above 100000":               {MaxAttempts: math.MaxInt32},
		"Policy.MaxCrashes 9223372036854775807 is above 100000":       {MaxCrashes: math.MaxInt},
		"Policy.HandlerTimeout 2562047h47m16.854775807s is above":     {HandlerTimeout: math.MaxInt64},
		"Policy.Concurrency 9223372036854775807 is above":             {Concurrency: math.MaxInt},
		"Policy.Backoff has the delay 2562047h47m16.854775807s, abov": {Backoff: []time.Duration{time.Second, math.MaxInt64}},
		"Policy.MaxAttempts 100000 with HandlerTimeout 24h0m0s and a": {MaxAttempts: 100_000, HandlerTimeout: day},
		"Policy.MaxCrashes 100000 with HandlerTimeout 24h0m0s and th": {MaxCrashes: 100_000, HandlerTimeout: day},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := consumer.New(consumertest.NewBroker(), newGuard(t, memstore.New()), nop, &consumer.Options{Policy: p})
			require.ErrorContains(t, err, want)
		})
	}
}

func TestLargestPolicyHasAWindowThatAddsUp(t *testing.T) {
	p := consumer.Policy{MaxAttempts: 100_000, MaxCrashes: 100_000, HandlerTimeout: 30 * time.Minute, Backoff: []time.Duration{time.Second, 10 * time.Minute}}
	c := newConsumer(t, consumertest.NewBroker(), newGuard(t, memstore.New()), nop, &consumer.Options{Policy: p})
	require.Greater(t, c.Plan().Window, 13*years)
	require.Greater(t, c.Plan().Retention, c.Plan().Window)

	for n, want := range map[int]time.Duration{1: 0, 2: time.Second, 3: time.Second + 10*time.Minute, 100_000: time.Second + 99_998*10*time.Minute} {
		p.MaxAttempts = n
		require.Equal(t, want, p.Waits(), "%d attempts", n)
	}
}

// endless is a Source with a window of its own making.
type endless struct {
	consumer.Source
	window time.Duration
}

func (e endless) Plan(p consumer.Policy) (consumer.Plan, error) {
	plan, err := e.Source.Plan(p)
	plan.Window = e.window
	return plan, err
}

func TestWindowThatNoRecordCouldBeKeptForIsRefused(t *testing.T) {
	g := newGuard(t, memstore.New())
	for _, w := range []time.Duration{-time.Second, math.MaxInt64} {
		_, err := consumer.New(endless{consumertest.NewBroker(), w}, g, nop, nil)
		require.ErrorContains(t, err, "no record could be kept for so long")
	}
	_, err := consumer.New(consumertest.NewBroker(), g, nop, &consumer.Options{Retention: math.MaxInt64})
	require.ErrorContains(t, err, "Options.Retention 2562047h47m16.854775807s is above 100 years")
	g, err = dedup.New("app", memstore.New(), &dedup.Options{Lease: 2 * years, Retention: 3 * years, Logger: quiet})
	if err == nil { // the Guard may have a limit of its own
		_, err = consumer.New(consumertest.NewBroker(), g, nop, nil)
	}
	require.ErrorContains(t, err, "Lease")
}

func TestPolicyKeepsNoSliceOfItsCaller(t *testing.T) {
	mine := []time.Duration{time.Second}
	c := newConsumer(t, consumertest.NewBroker(), newGuard(t, memstore.New()), nop, &consumer.Options{Policy: consumer.Policy{Backoff: mine}})
	mine[0] = time.Hour
	require.Equal(t, []time.Duration{time.Second}, c.Plan().Backoff)
}

func nop(context.Context, *consumer.Message) error { return nil }
