package kafka_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
)

var somewhere = kafka.Cluster{Brokers: []string{"127.0.0.1:9092"}}

func TestPlanOfTheDefaults(t *testing.T) {
	s, err := kafka.NewSource(somewhere, "billing", []string{"orders"}, nil)
	require.NoError(t, err)
	defer closeSource(t, s)
	p, err := s.Plan(consumer.Policy{})
	require.NoError(t, err)
	require.Equal(t, consumer.Plan{
		Policy: consumer.Policy{
			MaxAttempts: 5, MaxCrashes: 3, HandlerTimeout: time.Minute, Concurrency: 16,
			Backoff: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
		},
		Scope:  "kafka/billing",
		Window: 24*time.Hour + 6*time.Minute + 16*time.Second,
		Hold:   -1,
		Why: "outage 24h (assumed) + session 30s (assumed) + rebalance 30s (assumed) + commit 1s (read) + " +
			"5 attempts x HandlerTimeout 1m = 5m (assumed) + backoff 15s (assumed)",
	}, p)
}

func TestPlanOfDeclaredSettings(t *testing.T) {
	s, err := kafka.NewSource(somewhere, "billing", []string{"orders"}, &kafka.SourceOptions{
		Outage: time.Hour, SessionTimeout: 10 * time.Second, RebalanceTimeout: 20 * time.Second,
	})
	require.NoError(t, err)
	defer closeSource(t, s)
	p, err := s.Plan(consumer.Policy{MaxAttempts: 2, HandlerTimeout: 10 * time.Second, Backoff: []time.Duration{3 * time.Second}})
	require.NoError(t, err)
	require.Equal(t, time.Hour+10*time.Second+20*time.Second+time.Second+20*time.Second+3*time.Second, p.Window)
	require.Equal(t, "outage 1h (declared) + session 10s (declared) + rebalance 20s (declared) + commit 1s (read) + "+
		"2 attempts x HandlerTimeout 10s = 20s (declared) + backoff 3s (declared)", p.Why)
}

func TestPlanRefusesWhatCannotBeMeant(t *testing.T) {
	s, err := kafka.NewSource(somewhere, "billing", []string{"orders"}, nil)
	require.NoError(t, err)
	defer closeSource(t, s)
	_, err = s.Plan(consumer.Policy{HandlerTimeout: -time.Second})
	require.EqualError(t, err, "kafka: plan of kafka/billing: consumer: Policy.HandlerTimeout -1s is negative; leave it zero for 1m")
}

func TestContradictorySettingsAreRefused(t *testing.T) {
	for _, c := range []struct {
		cluster kafka.Cluster
		group   string
		topics  []string
		opt     kafka.SourceOptions
		want    string
	}{
		{kafka.Cluster{}, "g", []string{"t"}, kafka.SourceOptions{},
			"kafka: Cluster.Brokers is empty; name at least one broker as host:port"},
		{kafka.Cluster{Brokers: []string{"kafka"}}, "g", []string{"t"}, kafka.SourceOptions{},
			`kafka: Cluster.Brokers has "kafka", which is not host:port: address kafka: missing port in address`},
		{somewhere, "", []string{"t"}, kafka.SourceOptions{},
			"kafka: the consumer group is empty; positions are kept, and messages deduplicated, per group"},
		{somewhere, "g", nil, kafka.SourceOptions{},
			"kafka: there is no topic to consume; name at least one"},
		{somewhere, "g", []string{""}, kafka.SourceOptions{},
			"kafka: topic 1 is empty"},
		{somewhere, "g", []string{"a b"}, kafka.SourceOptions{},
			`kafka: topic "a b" is no name that Kafka takes: letters, digits, '.', '_' and '-', at most 249 of them, and neither . nor .. alone`},
		{somewhere, "g", []string{"t"}, kafka.SourceOptions{DeadLetterTopic: "t/dead"},
			`kafka: the dead letter topic "t/dead" of topic "t" is no name that Kafka takes, so no message could ever be given up; set SourceOptions.DeadLetterTopic to another: letters, digits, '.', '_' and '-', at most 249 of them, and neither . nor .. alone`},
		{somewhere, "g", []string{strings.Repeat("t", 246)}, kafka.SourceOptions{},
			`kafka: the dead letter topic "` + strings.Repeat("t", 246) + `.dlt" of topic "` + strings.Repeat("t", 246) + `" is no name that Kafka takes, so no message could ever be given up; set SourceOptions.DeadLetterTopic to another: letters, digits, '.', '_' and '-', at most 249 of them, and neither . nor .. alone`},
		{somewhere, "g", []string{"t", "u", "t"}, kafka.SourceOptions{},
			`kafka: topic "t" is named twice; name it once`},
		{somewhere, "g", []string{"t"}, kafka.SourceOptions{MaxInFlight: -1},
			"kafka: SourceOptions.MaxInFlight -1 is below 1: nothing would ever be delivered; leave it zero for 256"},
		{somewhere, "g", []string{"t"}, kafka.SourceOptions{Outage: -time.Second},
			"kafka: SourceOptions.Outage -1s is negative; leave it zero for 24h0m0s"},
		{somewhere, "g", []string{"t"}, kafka.SourceOptions{SessionTimeout: -time.Second},
			"kafka: SourceOptions.SessionTimeout -1s is below 100ms, too short for a heartbeat; leave it zero for 30s"},
		{somewhere, "g", []string{"t"}, kafka.SourceOptions{RebalanceTimeout: time.Millisecond},
			"kafka: SourceOptions.RebalanceTimeout 1ms is below 100ms; leave it zero for SessionTimeout 30s"},
		{somewhere, "g", []string{"t", "dead"}, kafka.SourceOptions{DeadLetterTopic: "dead"},
			`kafka: SourceOptions.DeadLetterTopic "dead" is among the consumed topics: a message given up would come again at once, and for ever; dead-letter to another topic`},
		{somewhere, "g", []string{"t", "t.dlt"}, kafka.SourceOptions{},
			`kafka: topics "t" and "t.dlt" are both consumed, and SourceOptions.DeadLetterTopic is unset, so the first dead-letters to the second: a message given up would come again at once; set DeadLetterTopic or consume "t.dlt" in a group of its own`},
	} {
		t.Run(c.want, func(t *testing.T) {
			_, err := kafka.NewSource(c.cluster, c.group, c.topics, &c.opt)
			require.EqualError(t, err, c.want)
		})
	}
	_, err := kafka.NewPublisher(somewhere, &kafka.PublisherOptions{Timeout: -1})
	require.EqualError(t, err, "kafka: PublisherOptions.Timeout -1ns is negative; leave it zero for 10s")
}
