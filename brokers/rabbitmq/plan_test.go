package rabbitmq_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
)

var somewhere = rabbitmq.Cluster{URLs: []string{"amqp://127.0.0.1/"}}

func sourceOf(t *testing.T, o rabbitmq.SourceOptions) *rabbitmq.Source {
	t.Helper()
	s, err := rabbitmq.NewSource(somewhere, "orders", &o)
	require.NoError(t, err)
	t.Cleanup(func() { closeSource(t, s) })
	return s
}

func TestPlanOfTheDefaults(t *testing.T) {
	p, err := sourceOf(t, rabbitmq.SourceOptions{}).Plan(consumer.Policy{})
	require.NoError(t, err)
	require.Equal(t, consumer.Plan{
		Policy: consumer.Policy{
			MaxAttempts: 6, MaxCrashes: 3, HandlerTimeout: time.Minute, Concurrency: 16,
			Backoff: []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute},
		},
		Scope:        "rabbitmq/orders",
		Window:       24*time.Hour + 5*time.Minute + 30*time.Minute + 6*time.Minute + 42*time.Minute + 40*time.Second + 30*time.Second + 18*time.Minute,
		HandlerLimit: 29 * time.Minute,
		Hold:         5 * time.Second,
		Why: "outage 24h (assumed) + reconnecting 5m (assumed) + consumer_timeout 30m (assumed) + 6 attempts x HandlerTimeout 1m = 6m (assumed) + " +
			"wait queues 42m40s (assumed) + wait for work in progress elsewhere 30s (assumed) + 6 returns from wait queues x 3m = 18m (assumed)",
	}, p)
}

func TestPlanOfDeclaredSettings(t *testing.T) {
	for name, c := range map[string]struct {
		opt    rabbitmq.SourceOptions
		policy consumer.Policy
		window time.Duration
		why    string
	}{
		"the ladder of the facts, five minutes a handler": {
			policy: consumer.Policy{HandlerTimeout: 5 * time.Minute},
			window: 24*time.Hour + 35*time.Minute + 30*time.Minute + 42*time.Minute + 40*time.Second + 30*time.Second + 18*time.Minute,
			why: "outage 24h (assumed) + reconnecting 5m (assumed) + consumer_timeout 30m (assumed) + 6 attempts x HandlerTimeout 5m = 30m (declared) + " +
				"wait queues 42m40s (assumed) + wait for work in progress elsewhere 30s (assumed) + 6 returns from wait queues x 3m = 18m (assumed)",
		},
		"another consumer_timeout": {
			opt:    rabbitmq.SourceOptions{Outage: time.Hour, HandlerLimit: 5 * time.Minute},
			policy: consumer.Policy{MaxAttempts: 2, HandlerTimeout: 10 * time.Second, Backoff: []time.Duration{time.Minute}},
			window: time.Hour + 5*time.Minute + 5*time.Minute + 20*time.Second + time.Minute + time.Minute + 6*time.Minute,
			why: "outage 1h (declared) + reconnecting 5m (assumed) + consumer_timeout 5m (declared) + 2 attempts x HandlerTimeout 10s = 20s (declared) + " +
				"wait queues 1m (declared) + wait for work in progress elsewhere 1m (assumed) + 2 returns from wait queues x 3m = 6m (assumed)",
		},
		"delays rounded up to the wait queues there are": {
			opt:    rabbitmq.SourceOptions{Delays: []time.Duration{time.Hour, 20 * time.Second}},
			policy: consumer.Policy{MaxAttempts: 4, HandlerTimeout: time.Second, Backoff: []time.Duration{time.Second, time.Minute}},
			window: 24*time.Hour + 35*time.Minute + 4*time.Second + 20*time.Second + 2*time.Hour + time.Hour + 12*time.Minute,
			why: "outage 24h (assumed) + reconnecting 5m (assumed) + consumer_timeout 30m (assumed) + 4 attempts x HandlerTimeout 1s = 4s (declared) + " +
				"wait queues 2h0m20s (declared) + wait for work in progress elsewhere 1h (assumed) + 4 returns from wait queues x 3m = 12m (assumed)",
		},
		"an exclusive source waits in memory": {
			opt:    rabbitmq.SourceOptions{Exclusive: true},
			window: 24*time.Hour + 35*time.Minute + 6*time.Minute + 31*time.Second,
			why: "outage 24h (assumed) + reconnecting 5m (assumed) + consumer_timeout 30m (assumed) + 6 attempts x HandlerTimeout 1m = 6m (assumed) + " +
				"backoff 31s (assumed)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := sourceOf(t, c.opt).Plan(c.policy)
			require.NoError(t, err)
			require.Equal(t, c.window, p.Window)
			require.Equal(t, c.why, p.Why)
			if c.opt.Exclusive {
				require.Negative(t, p.Hold)
			}
		})
	}
}

func TestPlanRefusesWhatCannotBeMeant(t *testing.T) {
	for _, c := range []struct {
		opt    rabbitmq.SourceOptions
		policy consumer.Policy
		want   string
	}{
		{rabbitmq.SourceOptions{}, consumer.Policy{HandlerTimeout: -time.Second},
			"rabbitmq: plan of rabbitmq/orders: consumer: Policy.HandlerTimeout -1s is negative; leave it zero for 1m"},
		{rabbitmq.SourceOptions{Prefetch: 8}, consumer.Policy{},
			"rabbitmq: SourceOptions.Prefetch 8 is below Policy.Concurrency 16: handlers would stand idle for want of deliveries; leave Prefetch zero for 32 or lower Concurrency"},
		{rabbitmq.SourceOptions{HandlerLimit: 10 * time.Minute}, consumer.Policy{HandlerTimeout: 9*time.Minute + 1},
			"rabbitmq: Policy.HandlerTimeout 9m0.000000001s is above what SourceOptions.HandlerLimit 10m0s leaves for one handler, 9m0s: no handler would ever start, or the server would take the message away from a running one; lower HandlerTimeout, or raise consumer_timeout in the server's configuration and HandlerLimit with it"},
		{rabbitmq.SourceOptions{Exclusive: true}, consumer.Policy{Backoff: []time.Duration{time.Second, 29 * time.Minute}},
			"rabbitmq: Policy.Backoff has 29m0s, which together with HandlerTimeout 1m0s is above what SourceOptions.HandlerLimit 30m0s leaves, 29m0s: an exclusive source waits in memory, and the server would take the message away meanwhile; shorten Backoff, or raise consumer_timeout in the server's configuration and HandlerLimit with it"},
	} {
		_, err := sourceOf(t, c.opt).Plan(c.policy)
		require.EqualError(t, err, c.want)
	}
	_, err := sourceOf(t, rabbitmq.SourceOptions{Prefetch: 16}).Plan(consumer.Policy{})
	require.NoError(t, err)
	_, err = sourceOf(t, rabbitmq.SourceOptions{Exclusive: true, Prefetch: 1}).Plan(consumer.Policy{})
	require.NoError(t, err, "one lane needs no more than one delivery")
}

func TestContradictorySettingsAreRefused(t *testing.T) {
	long := strings.Repeat("q", 250)
	for _, c := range []struct {
		cluster rabbitmq.Cluster
		queue   string
		opt     rabbitmq.SourceOptions
		want    string
	}{
		{rabbitmq.Cluster{}, "q", rabbitmq.SourceOptions{},
			"rabbitmq: Cluster.URLs is empty; name at least one node as amqp://user:pass@host:port/vhost"},
		{rabbitmq.Cluster{URLs: []string{"http://a:secret@b/"}}, "q", rabbitmq.SourceOptions{},
			"rabbitmq: Cluster.URLs[0] is not amqp[s]://user:pass@host:port/vhost: AMQP scheme must be either 'amqp://' or 'amqps://'"},
		{rabbitmq.Cluster{URLs: []string{"amqp://a/x", "amqp://b/y"}}, "q", rabbitmq.SourceOptions{},
			`rabbitmq: Cluster.URLs[0] names virtual host "x" and URLs[1] "y": they would be two sets of queues; name one`},
		{rabbitmq.Cluster{URLs: []string{"amqps://a", "amqp://b"}, TLS: &tls.Config{}}, "q", rabbitmq.SourceOptions{},
			"rabbitmq: Cluster.TLS is set, but URLs[1] begins with amqp, so it would be left unused and everything sent in the clear; write amqps"},
		{somewhere, "", rabbitmq.SourceOptions{},
			"rabbitmq: the queue is empty; messages are consumed, and deduplicated, per queue"},
		{somewhere, "q", rabbitmq.SourceOptions{DeadLetterQueue: "q"},
			`rabbitmq: SourceOptions.DeadLetterQueue "q" is the consumed queue: a message given up would come again at once, and for ever; dead-letter to another queue`},
		{somewhere, long, rabbitmq.SourceOptions{},
			`rabbitmq: queue "` + long + `" is too long for its wait and dead letter queues to be named after it; the protocol allows names of 255 bytes`},
		{somewhere, "q", rabbitmq.SourceOptions{Delays: []time.Duration{time.Second, 0}},
			"rabbitmq: SourceOptions.Delays has 0s; every delay must be above zero"},
		{somewhere, "q", rabbitmq.SourceOptions{Prefetch: -1},
			"rabbitmq: SourceOptions.Prefetch -1 is negative; leave it zero for twice the concurrency"},
		{somewhere, "q", rabbitmq.SourceOptions{Prefetch: 65536},
			"rabbitmq: SourceOptions.Prefetch 65536 is above 65535, the most that the protocol has room for"},
		{somewhere, "q", rabbitmq.SourceOptions{HandlerLimit: -1},
			"rabbitmq: SourceOptions.HandlerLimit -1ns is below 1s: no handler would ever start; leave it zero for 30m0s"},
		{somewhere, "q", rabbitmq.SourceOptions{Outage: -1},
			"rabbitmq: SourceOptions.Outage -1ns is negative; leave it zero for 24h0m0s"},
		{somewhere, "q", rabbitmq.SourceOptions{Exclusive: true, Delays: []time.Duration{time.Second}},
			"rabbitmq: SourceOptions.Exclusive and Delays are both set: a message in a wait queue would lose its place, so an exclusive source has none; leave Delays unset"},
	} {
		t.Run(c.want, func(t *testing.T) {
			_, err := rabbitmq.NewSource(c.cluster, c.queue, &c.opt)
			require.EqualError(t, err, c.want)
		})
	}
	_, err := rabbitmq.NewPublisher(somewhere, &rabbitmq.PublisherOptions{Timeout: -1})
	require.EqualError(t, err, "rabbitmq: PublisherOptions.Timeout -1ns is negative; leave it zero for 10s")
	for want, top := range map[string]rabbitmq.Topology{
		"rabbitmq: the queue is empty; messages are consumed, and deduplicated, per queue": {},
		"rabbitmq: Topology.Delays has -1s; every delay must be above zero":                {Queue: "q", Delays: []time.Duration{-time.Second}},
		"rabbitmq: Topology.Exclusive and Delays are both set: a message in a wait queue would lose its place, so an exclusive source uses none; leave Delays unset": {
			Queue: "q", Exclusive: true, Delays: []time.Duration{time.Second}},
	} {
		require.EqualError(t, top.Declare(t.Context(), somewhere), want)
	}
}

func TestErrorsShowNoPassword(t *testing.T) {
	_, err := rabbitmq.NewSource(rabbitmq.Cluster{URLs: []string{"amqp://user:se%cret@host/"}}, "q", nil)
	require.ErrorContains(t, err, "URLs[0]")
	require.NotContains(t, err.Error(), "cret")
}
