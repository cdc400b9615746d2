// Package testenv gives tests real servers. Shared ones ([Redis], [RedisCluster], [Kafka], [RabbitMQ],
// [RocketMQ], [PostgreSQL], [MySQL]) come from the environment, as scripts/services.sh env prints their addresses, else from
// containers where a Docker engine runs. Private ones ([StartRedis], [StartKafka], [StartRabbitMQ],
// [StartRocketMQ], [StartPostgreSQL], [StartMySQL]) are processes of the
// test, which it may stop, kill and start again; [NewProxy] breaks the connections to either.
// [Chromium] is the browser. Where a server or the browser cannot be had the test is skipped and says why; with
// IDEMQ_REQUIRE_SERVICES=1 it fails.
package testenv

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The ports on which scripts/services.sh and docker-compose.yml put the servers.
const (
	RedisPort        = 16379
	RedisClusterPort = 17000 // the first of six
	KafkaPort        = 19092
	RabbitMQPort     = 15674
	RocketMQPort     = 19876 // the name server's
	PostgreSQLPort   = 15432
	MySQLPort        = 13306
)

// Redis returns the address of a Redis server, shared by all tests: use keys of your own.
func Redis(tb testing.TB) string {
	tb.Helper()
	return addresses(tb, "IDEMQ_REDIS_ADDR", "redis", redisContainer)[0]
}

// RedisCluster returns the addresses of a Redis Cluster of three masters with a replica each.
// It comes from the environment only: the nodes name each other by addresses that hold inside
// a container's network, not outside.
func RedisCluster(tb testing.TB) []string {
	tb.Helper()
	return addresses(tb, "IDEMQ_REDIS_CLUSTER_ADDRS", "redis-cluster", nil)
}

// Kafka returns the bootstrap addresses of a Kafka broker, shared by all tests: use topics of your own.
func Kafka(tb testing.TB) []string {
	tb.Helper()
	return addresses(tb, "IDEMQ_KAFKA_BROKERS", "kafka", kafkaContainer)
}

// RabbitMQ returns the URL of a RabbitMQ server, shared by all tests: use queues of your own.
func RabbitMQ(tb testing.TB) string {
	tb.Helper()
	return addresses(tb, "IDEMQ_RABBITMQ_URL", "rabbitmq", rabbitContainer)[0]
}

// RocketMQ returns the addresses of the name servers of a RocketMQ broker, shared by all tests:
// use topics and groups of your own. The broker creates no topics by itself, and its delay levels
// are [DelayLevels].
func RocketMQ(tb testing.TB) []string {
	tb.Helper()
	return addresses(tb, "IDEMQ_ROCKETMQ_NAMESRV", "rocketmq", rocketMQContainer)
}

// PostgreSQL returns the DSN, for pgx, of a database that all tests share: use tables of your own.
func PostgreSQL(tb testing.TB) string {
	tb.Helper()
	return address(tb, "IDEMQ_POSTGRES_DSN", "postgres", postgresContainer)
}

// MySQL returns the DSN, for go-sql-driver, of a database that all tests share: use tables of your
// own. The server is MariaDB, which stands in for MySQL.
func MySQL(tb testing.TB) string {
	tb.Helper()
	return address(tb, "IDEMQ_MYSQL_DSN", "mysql", mysqlContainer)
}

// Chromium returns the path of the browser, for chromedp. Without the environment's word it is
// looked for where commands are.
func Chromium(tb testing.TB) string {
	tb.Helper()
	const variable, command = "IDEMQ_CHROMIUM", "chromium"
	if path := os.Getenv(variable); path != "" {
		return path
	}
	path, err := exec.LookPath(command)
	if err != nil {
		Missing(tb, variable+" is not set, and "+command+` is not installed: scripts/services.sh start chromium; eval "$(scripts/services.sh env)"`)
	}
	return path
}

// Missing skips the test for want of a server, or fails it where all servers are required.
func Missing(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv("IDEMQ_REQUIRE_SERVICES") == "1" {
		tb.Fatal("a required server is missing: " + why)
	}
	tb.Skip("no server: " + why)
}

func addresses(tb testing.TB, variable, service string, container func(testing.TB) string) []string {
	tb.Helper()
	return strings.Split(address(tb, variable, service, container), ",")
}

func address(tb testing.TB, variable, service string, container func(testing.TB) string) string {
	tb.Helper()
	v := os.Getenv(variable)
	if v == "" && container != nil && dockerRuns() {
		v = container(tb)
	}
	if v == "" {
		Missing(tb, variable+" is not set: scripts/services.sh start "+service+`; eval "$(scripts/services.sh env)"`)
	}
	return v
}
