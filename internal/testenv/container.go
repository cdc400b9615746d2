package testenv

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	redisImage = "redis:7.0.15"
	kafkaImage = "apache/kafka:4.1.1"
)

// dockerRuns reports whether a Docker engine can be reached. One that is not set up must not cost a wait.
var dockerRuns = sync.OnceValue(func() bool {
	if os.Getenv("DOCKER_HOST") == "" {
		if _, err := os.Stat("/var/run/docker.sock"); err != nil {
			return false
		}
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false
	}
	defer provider.Close()
	return provider.Health(context.Background()) == nil
})

// redisContainer is started once for the test process and removed with it.
func redisContainer(tb testing.TB) (string, bool) {
	tb.Helper()
	return shared(tb, &redisOnce, redisRequest())
}

// kafkaContainer advertises the port that docker-compose.yml publishes, because a broker must
// tell its clients where it is before anybody knows a free port.
func kafkaContainer(tb testing.TB) (string, bool) {
	tb.Helper()
	return shared(tb, &kafkaOnce, kafkaRequest())
}

var redisOnce, kafkaOnce onceContainer

type onceContainer struct {
	once sync.Once
	addr string
	err  error
}

func shared(tb testing.TB, o *onceContainer, r testcontainers.ContainerRequest) (string, bool) {
	tb.Helper()
	o.once.Do(func() {
		ctx := context.Background()
		var c testcontainers.Container
		c, o.err = testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: r, Started: true})
		if o.err == nil {
			o.addr, o.err = c.Endpoint(ctx, "")
		}
	})
	if o.err != nil {
		tb.Fatalf("container %s: %v", r.Image, o.err)
	}
	return o.addr, true
}

func redisRequest() testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image: redisImage, ExposedPorts: []string{"6379/tcp"},
		Cmd:        []string{"redis-server", "--save", "", "--appendonly", "no"},
		WaitingFor: wait.ForLog("Ready to accept connections"),
	}
}

func kafkaRequest() testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image: kafkaImage, ExposedPorts: []string{"19092:19092/tcp"},
		Env: map[string]string{
			"KAFKA_NODE_ID": "1", "KAFKA_PROCESS_ROLES": "broker,controller",
			"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:19093", "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
			"KAFKA_LISTENERS":                      "PLAINTEXT://:19092,CONTROLLER://:19093",
			"KAFKA_ADVERTISED_LISTENERS":           "PLAINTEXT://localhost:19092",
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"KAFKA_NUM_PARTITIONS":                 "4", "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
			"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1", "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
			"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1", "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
			"KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
		},
		WaitingFor: wait.ForLog("Kafka Server started"),
	}
}
