package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// patient lets handlers ask for an hour.
var patient = &consumer.Options{Policy: consumer.Policy{Backoff: []time.Duration{time.Second, time.Hour}}}

func TestRetryAfterIsCutWhereItWouldHoldThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		g, err := dedup.New("app", memstore.New(), &dedup.Options{Logger: out.logger()})
		require.NoError(t, err)
		s := newSource()
		s.policy.Backoff = []time.Duration{time.Second, 8 * time.Second, 4 * time.Second}
		s.publish(message("a", ""))
		begun := time.Now()
		var at []time.Duration
		stop := start(t, newConsumer(t, s, g, func(context.Context, *consumer.Message) error {
			at = append(at, time.Since(begun))
			return consumer.RetryAfter(26*time.Hour, errBoom)
		}, nil))
		time.Sleep(time.Hour)
		require.NoError(t, stop())
		require.Len(t, at, 5)
		for i := range at {
			require.InDelta(t, float64(8*i), at[i].Seconds(), 0.5)
		}
		require.Equal(t, 2, out.count("asked=26h0m0s got=8s"), "of four, in 24s")
		require.Equal(t, 1, out.count("and_more=1"))
	})
}

func TestRetryAfterIsLeftToABrokerThatCanPostpone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.hold = 5 * time.Second
		s.publish(message("a", ""))
		stop := start(t, newConsumer(t, s, newGuard(t, memstore.New()), func(context.Context, *consumer.Message) error {
			return consumer.RetryAfter(26*time.Hour, errBoom)
		}, nil))
		time.Sleep(time.Second)
		require.Equal(t, 26*time.Hour, s.all()[0].after)
		require.NoError(t, stop())
	})
}

func TestWindowHasRoomForTheLongestRetryAfter(t *testing.T) {
	b, g := kafkaLike(), newGuard(t, memstore.New())
	usual := newConsumer(t, b, g, nop, nil).Plan()
	require.NotContains(t, usual.Why, "RetryAfter")
	long := newConsumer(t, b, g, nop, patient).Plan()
	require.Contains(t, long.Why, "RetryAfter of 1h0m0s instead of shorter backoff = 59m59s (declared)")
	require.Equal(t, usual.Window-usual.Waits()+4*time.Hour, long.Window)
}
