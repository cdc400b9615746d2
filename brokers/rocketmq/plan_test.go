package rocketmq_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
)

var somewhere = rocketmq.Cluster{NameServers: []string{"127.0.0.1:9876"}}

func planOf(t *testing.T, o *rocketmq.SourceOptions, p consumer.Policy) (consumer.Plan, error) {
	t.Helper()
	s, err := rocketmq.NewSource(somewhere, "billing", []string{"orders"}, o)
	require.NoError(t, err)
	defer closeSource(t, s)
	return s.Plan(p)
}

// fixed is what every window has beside its outage, attempts and delays.
const fixed = 2*time.Minute + time.Second

func TestPlanOfTheDefaults(t *testing.T) {
	p, err := planOf(t, nil, consumer.Policy{})
	require.NoError(t, err)
	require.Equal(t, 16, p.MaxAttempts)
	require.Equal(t, 10*time.Second, p.Backoff[0], "RocketMQ's own first delay, level 3")
	require.Equal(t, 2*time.Hour, p.Backoff[len(p.Backoff)-1])
	require.Equal(t, "rocketmq/billing", p.Scope)
	require.Equal(t, 5*time.Second, p.Hold)
	require.Zero(t, p.HandlerLimit)
	require.Equal(t, 24*time.Hour+fixed+16*time.Minute+9940*time.Second+5*time.Second, p.Window)
	require.Equal(t, "outage 24h (assumed) + silent member 2m (assumed) + commit 1s (read) + 16 attempts x HandlerTimeout 1m = 16m (assumed) + "+
		"15 delays 2h45m40s (assumed) + in progress elsewhere 5s (read)", p.Why)
}

func TestPlanSumsTheDelaysThatTheBrokerKeeps(t *testing.T) {
	hour := []time.Duration{time.Hour}
	for name, c := range map[string]struct {
		opt    rocketmq.SourceOptions
		policy consumer.Policy
		delays time.Duration
		tag    string
	}{
		"sixteen retries":      {rocketmq.SourceOptions{}, consumer.Policy{MaxAttempts: 17}, 17_140 * time.Second, "assumed"},
		"more than the ladder": {rocketmq.SourceOptions{}, consumer.Policy{MaxAttempts: 19}, (17_140 + 2*7200) * time.Second, "assumed"},
		"eight retries":        {rocketmq.SourceOptions{}, consumer.Policy{MaxAttempts: 9}, 21*time.Minute + 40*time.Second, "assumed"},
		"rounded up to levels": {rocketmq.SourceOptions{}, consumer.Policy{MaxAttempts: 3, Backoff: []time.Duration{2 * time.Second, 11 * time.Second}}, 35 * time.Second, "assumed"},
		"custom levels": {
			rocketmq.SourceOptions{DelayLevels: []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}},
			consumer.Policy{MaxAttempts: 4}, 11 * time.Second, "declared",
		},
		"one level": {rocketmq.SourceOptions{DelayLevels: hour}, consumer.Policy{MaxAttempts: 4}, 3 * time.Hour, "declared"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := planOf(t, &c.opt, c.policy)
			require.NoError(t, err)
			require.Equal(t, c.delays, p.Window-24*time.Hour-fixed-5*time.Second-time.Duration(p.MaxAttempts)*time.Minute)
			require.Contains(t, p.Why, " delays "+short(c.delays)+" ("+c.tag+")")
		})
	}
}

// short is how Why writes the durations of these tests.
func short(d time.Duration) string {
	if d%time.Hour == 0 {
		return strconv.Itoa(int(d/time.Hour)) + "h"
	}
	return d.String()
}

func TestOrderedPlanWaitsInMemory(t *testing.T) {
	p, err := planOf(t, &rocketmq.SourceOptions{Ordered: true, Outage: time.Hour}, consumer.Policy{})
	require.NoError(t, err)
	require.Equal(t, 5, p.MaxAttempts)
	require.Negative(t, p.Hold, "the consumer never asks for a retry by the broker")
	require.Equal(t, time.Hour+fixed+5*time.Minute+15*time.Second, p.Window)
	require.Equal(t, "outage 1h (declared) + silent member 2m (assumed) + commit 1s (read) + 5 attempts x HandlerTimeout 1m = 5m (assumed) + 4 delays 15s (assumed)", p.Why)
	_, err = planOf(t, &rocketmq.SourceOptions{Ordered: true, DelayLevels: []time.Duration{time.Second}}, consumer.Policy{Backoff: []time.Duration{time.Hour}})
	require.NoError(t, err, "the broker's levels bound only what it postpones")
}

func TestPlanIsReadFromTheBroker(t *testing.T) {
	w := newWorld(t, 1)
	s := w.source(t)
	before, err := s.Plan(consumer.Policy{MaxAttempts: 3})
	require.NoError(t, err)
	require.Contains(t, before.Why, "2 delays 40s (assumed)")
	w.publish(t, "", "1")
	ack(t, receive(t, s, 1)...)
	after, err := s.Plan(consumer.Policy{MaxAttempts: 3})
	require.NoError(t, err)
	require.Equal(t, "1s 1s 2s 2s", testenv.DelayLevels[:11])
	require.Contains(t, after.Why, "2 delays 4s (read)", "levels 3 and 4")
	_, err = s.Plan(consumer.Policy{Backoff: []time.Duration{time.Minute}})
	require.ErrorContains(t, err, "Policy.Backoff has 1m0s, the longest delay of the broker (messageDelayLevel, read) is 9s: the retry would come too soon; lower Backoff or give the broker a longer level")
}

func TestPlanRefusesWhatContradictsTheBroker(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "1")
	for want, o := range map[string]rocketmq.SourceOptions{
		"SourceOptions.DelayLevels [1h0m0s] are not the broker's messageDelayLevel [1s 1s 2s":  {DelayLevels: []time.Duration{time.Hour}},
		"SourceOptions.Outage 100h is longer than the broker keeps messages (fileReservedTime": {Outage: 100 * time.Hour},
	} {
		s := w.source(t, func(to *rocketmq.SourceOptions) { l := to.Logger; *to = o; to.Logger = l })
		_, err := s.Plan(consumer.Policy{})
		require.NoError(t, err, "what only the broker knows is found later")
		receive(t, s, 1)
		_, err = s.Plan(consumer.Policy{})
		require.ErrorContains(t, err, want)
		closeSource(t, s)
	}
}

func TestPlanRefusesWhatCannotBeMeant(t *testing.T) {
	_, err := planOf(t, nil, consumer.Policy{HandlerTimeout: -time.Second})
	require.EqualError(t, err, "rocketmq: plan of rocketmq/billing: consumer: Policy.HandlerTimeout -1s is negative; leave it zero for 1m")
	_, err = planOf(t, &rocketmq.SourceOptions{DelayLevels: []time.Duration{time.Second, time.Minute}}, consumer.Policy{Backoff: []time.Duration{time.Hour}})
	require.EqualError(t, err, "rocketmq: plan of rocketmq/billing: Policy.Backoff has 1h0m0s, the longest delay of the broker (messageDelayLevel, declared) is 1m0s: "+
		"the retry would come too soon; lower Backoff or give the broker a longer level")
}

func TestContradictorySettingsAreRefused(t *testing.T) {
	at := func(servers ...string) rocketmq.Cluster { return rocketmq.Cluster{NameServers: servers} }
	for _, c := range []struct {
		cluster rocketmq.Cluster
		group   string
		topics  []string
		opt     rocketmq.SourceOptions
		want    string
	}{
		{at(), "g", []string{"t"}, rocketmq.SourceOptions{},
			"rocketmq: Cluster.NameServers is empty; name at least one name server as host:port"},
		{at("a:9876,b:9876"), "g", []string{"t"}, rocketmq.SourceOptions{},
			`rocketmq: Cluster.NameServers has "a:9876,b:9876", which is a list in one string; give each name server a string of its own`},
		{at("a"), "g", []string{"t"}, rocketmq.SourceOptions{},
			`rocketmq: Cluster.NameServers has "a", which is not host:port: address a: missing port in address`},
		{rocketmq.Cluster{NameServers: []string{"a:1"}, Namespace: "a b"}, "g", []string{"t"}, rocketmq.SourceOptions{},
			`rocketmq: Cluster.Namespace "a b" has other characters than letters, digits, - and _`},
		{rocketmq.Cluster{NameServers: []string{"a:1"}, Credentials: primitive.Credentials{AccessKey: "a"}}, "g", []string{"t"}, rocketmq.SourceOptions{},
			"rocketmq: Cluster.Credentials has only one of AccessKey and SecretKey; set both or none"},
		{somewhere, "", []string{"t"}, rocketmq.SourceOptions{},
			"rocketmq: the consumer group is empty; positions are kept, and messages deduplicated, per group"},
		{somewhere, "g.x", []string{"t"}, rocketmq.SourceOptions{},
			`rocketmq: the consumer group "g.x" is no name that brokers take: letters, digits, - and _, at most 120 with the namespace`},
		{somewhere, "g", nil, rocketmq.SourceOptions{},
			"rocketmq: there is no topic to consume; name at least one"},
		{somewhere, "g", []string{""}, rocketmq.SourceOptions{},
			`rocketmq: "" is no topic that brokers take: letters, digits, - and _, at most 127 with the namespace`},
		{somewhere, "g", []string{"t", "t"}, rocketmq.SourceOptions{},
			`rocketmq: topic "t" is named twice; name it once`},
		{somewhere, "g", []string{"t", "g-retry"}, rocketmq.SourceOptions{},
			`rocketmq: topic "g-retry" is where group "g" keeps its own retries, and is consumed by itself; leave it out`},
		{somewhere, "g", []string{"t", "g-dead"}, rocketmq.SourceOptions{},
			`rocketmq: SourceOptions.DeadLetterTopic "g-dead" is among the consumed topics: a message given up would come again at once, and for ever; dead-letter to another topic`},
		{somewhere, "g", []string{"t"}, rocketmq.SourceOptions{DeadLetterTopic: "g-retry"},
			`rocketmq: SourceOptions.DeadLetterTopic "g-retry" is where group "g" keeps its retries: a message given up would come again at once; dead-letter to another topic`},
		{somewhere, "g", []string{"t"}, rocketmq.SourceOptions{MaxInFlight: -1},
			"rocketmq: SourceOptions.MaxInFlight -1 is below 1: nothing would ever be delivered; leave it zero for 256"},
		{somewhere, "g", []string{"t"}, rocketmq.SourceOptions{MaxInFlight: 1 << 30},
			"rocketmq: SourceOptions.MaxInFlight 1073741824 is above 1000000: whole queues would be read into memory; lower it, or leave it zero for 256"},
		{somewhere, "g", []string{"t"}, rocketmq.SourceOptions{Outage: -time.Second},
			"rocketmq: SourceOptions.Outage -1s is negative; leave it zero for 24h0m0s"},
		{somewhere, "g", []string{"t"}, rocketmq.SourceOptions{DelayLevels: []time.Duration{2, 1}},
			"rocketmq: SourceOptions.DelayLevels [2ns 1ns] must be positive and ascend, as in the broker's messageDelayLevel"},
	} {
		t.Run(c.want, func(t *testing.T) {
			_, err := rocketmq.NewSource(c.cluster, c.group, c.topics, &c.opt)
			require.EqualError(t, err, c.want)
		})
	}
	_, err := rocketmq.NewPublisher(somewhere, &rocketmq.PublisherOptions{Timeout: -1})
	require.EqualError(t, err, "rocketmq: PublisherOptions.Timeout -1ns is negative; leave it zero for 10s")
}
