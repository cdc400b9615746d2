package rabbitmq_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
)

func TestSettingsBeyondAllMeasureAreRefused(t *testing.T) {
	c := rabbitmq.Cluster{URLs: []string{"amqp://guest:guest@127.0.0.1:1/"}}
	for want, o := range map[string]rabbitmq.SourceOptions{
		"rabbitmq: SourceOptions.HandlerLimit 2562047h47m16.854775807s is above a year": {HandlerLimit: math.MaxInt64},
		"rabbitmq: SourceOptions.Outage 2562047h47m16.854775807s is above 10 years":     {Outage: math.MaxInt64},
		"rabbitmq: SourceOptions.Delays has 2562047h47m16.854775807s; the server keeps": {Delays: []time.Duration{time.Second, math.MaxInt64}},
	} {
		_, err := rabbitmq.NewSource(c, "q", &o)
		require.ErrorContains(t, err, want)
	}
	s, err := rabbitmq.NewSource(c, "q", nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	_, err = s.Plan(consumer.Policy{Backoff: []time.Duration{50 * 24 * time.Hour}})
	require.ErrorContains(t, err, "rabbitmq: Policy.Backoff has 1200h0m0s")
	slow, err := rabbitmq.NewSource(c, "q", &rabbitmq.SourceOptions{Delays: []time.Duration{24 * time.Hour}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = slow.Close(t.Context()) })
	_, err = slow.Plan(consumer.Policy{MaxAttempts: 5000, Backoff: []time.Duration{time.Second}})
	require.ErrorContains(t, err, "rabbitmq: Policy.MaxAttempts 5000 with wait queues of up to 24h0m0s")
}
