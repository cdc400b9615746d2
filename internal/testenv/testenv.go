// Package testenv gives tests real servers: those whose addresses are in the environment, as
// scripts/services.sh env prints them, else containers where a Docker engine runs. Without
// either a test is skipped and says so; with IDEMQ_REQUIRE_SERVICES=1 it fails.
package testenv

import (
	"os"
	"strings"
	"testing"
)

// Redis returns the address of a Redis server, shared by all tests: use keys of your own.
func Redis(tb testing.TB) string {
	tb.Helper()
	return addresses(tb, "IDEMQ_REDIS_ADDR", "redis", redisContainer)[0]
}

// RedisCluster returns the addresses of a Redis Cluster of three masters with a replica each.
func RedisCluster(tb testing.TB) []string {
	tb.Helper()
	return addresses(tb, "IDEMQ_REDIS_CLUSTER_ADDRS", "redis-cluster", nil)
}

// Kafka returns the bootstrap addresses of a Kafka broker, shared by all tests: use topics of your own.
func Kafka(tb testing.TB) []string {
	tb.Helper()
	return addresses(tb, "IDEMQ_KAFKA_BROKERS", "kafka", kafkaContainer)
}

func addresses(tb testing.TB, variable, service string, container func(tb testing.TB) (string, bool)) []string {
	tb.Helper()
	v := os.Getenv(variable)
	if v == "" && container != nil && dockerRuns() {
		v, _ = container(tb)
	}
	if v == "" {
		Missing(tb, variable+" is not set: scripts/services.sh start "+service+`; eval "$(scripts/services.sh env)"`)
	}
	return strings.Split(v, ",")
}

// Missing skips the test for want of a server, or fails it where all servers are required.
func Missing(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("IDEMQ_REQUIRE_SERVICES") == "1" {
		tb.Fatal("a required server is missing: " + why)
	}
	tb.Skip("no server: " + why)
}
