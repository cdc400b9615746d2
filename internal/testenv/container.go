package testenv

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	redisImage  = "redis:7.0.15"
	kafkaImage  = "apache/kafka:4.1.1"
	rabbitImage = "rabbitmq:3.10.8"

	rocketMQImage = "apache/rocketmq:5.3.3"
	postgresImage = "postgres:15.18"
	mysqlImage    = "mariadb:10.11"
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

// A container serves all tests of its process and is removed by testcontainers' reaper after it.
var startRedisContainer = sync.OnceValues(func() (string, error) {
	return startContainer(redisRequest())
})

var startKafkaContainer = sync.OnceValues(func() (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	return startContainer(kafkaRequest(port))
})

var startRocketMQContainer = sync.OnceValues(func() (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	return startContainer(rocketMQRequest(port))
})

func redisContainer(tb testing.TB) string {
	tb.Helper()
	return started(tb, redisImage, startRedisContainer)
}

func kafkaContainer(tb testing.TB) string {
	tb.Helper()
	return started(tb, kafkaImage, startKafkaContainer)
}

var startRabbitContainer = sync.OnceValues(func() (string, error) {
	return startContainer(rabbitRequest())
})

func rabbitContainer(tb testing.TB) string {
	tb.Helper()
	return rabbitURL(started(tb, rabbitImage, startRabbitContainer))
}

func rocketMQContainer(tb testing.TB) string {
	tb.Helper()
	return started(tb, rocketMQImage, startRocketMQContainer)
}

var startPostgresContainer = sync.OnceValues(func() (string, error) {
	return startContainer(postgresRequest())
})

func postgresContainer(tb testing.TB) string {
	tb.Helper()
	return postgresDSN(started(tb, postgresImage, startPostgresContainer))
}

var startMySQLContainer = sync.OnceValues(func() (string, error) {
	return startContainer(mysqlRequest())
})

func mysqlContainer(tb testing.TB) string {
	tb.Helper()
	return mysqlDSN(started(tb, mysqlImage, startMySQLContainer))
}

func started(tb testing.TB, image string, start func() (string, error)) string {
	tb.Helper()
	addr, err := start()
	if err != nil {
		tb.Fatalf("container %s: %v", image, err)
	}
	return addr
}

func startContainer(r testcontainers.ContainerRequest) (string, error) {
	ctx := context.Background() // the container outlives the test that asked first
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: r, Started: true})
	if err != nil {
		return "", err
	}
	return c.Endpoint(ctx, "")
}

func redisRequest() testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image: redisImage, ExposedPorts: []string{"6379/tcp"},
		Cmd:        []string{"redis-server", "--save", "", "--appendonly", "no"},
		WaitingFor: wait.ForLog("Ready to accept connections"),
	}
}

func rabbitRequest() testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image: rabbitImage, ExposedPorts: []string{"5672/tcp"},
		WaitingFor: wait.ForLog("Server startup complete"),
	}
}

// postgresRequest waits for the server's second start: the first one is for making the user and the
// database, and listens inside only.
func postgresRequest() testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image: postgresImage, ExposedPorts: []string{"5432/tcp"},
		Env:        map[string]string{"POSTGRES_USER": sqlName, "POSTGRES_PASSWORD": sqlName, "POSTGRES_DB": sqlName, "TZ": "UTC"},
		Cmd:        []string{"postgres", "-c", "max_connections=300", "-c", "max_wal_size=256MB"},
		WaitingFor: wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
	}
}

// mysqlRequest likewise: the first start says port 0.
func mysqlRequest() testcontainers.ContainerRequest {
	return testcontainers.ContainerRequest{
		Image: mysqlImage, ExposedPorts: []string{"3306/tcp"},
		Env: map[string]string{
			"MARIADB_USER": sqlName, "MARIADB_PASSWORD": sqlName, "MARIADB_DATABASE": sqlName,
			"MARIADB_RANDOM_ROOT_PASSWORD": "1", "TZ": "UTC",
		},
		Cmd:        []string{"--character-set-server=utf8mb4", "--default-time-zone=+00:00", "--max-connections=300"},
		WaitingFor: wait.ForLog("port: 3306"),
	}
}

// kafkaRequest publishes the broker on a port that is chosen beforehand, because a broker has to
// tell its clients where it is, and is asked for that before Docker has chosen one. The port is
// free and not the default one: test processes run side by side, each with a broker of its own.
func kafkaRequest(port int) testcontainers.ContainerRequest {
	p := strconv.Itoa(port)
	inside := network.MustParsePort(p + "/tcp")
	return testcontainers.ContainerRequest{
		Image: kafkaImage, ExposedPorts: []string{inside.String()},
		Env: map[string]string{
			"KAFKA_NODE_ID": "1", "KAFKA_PROCESS_ROLES": "broker,controller",
			"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093", "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
			"KAFKA_LISTENERS":                      "PLAINTEXT://:" + p + ",CONTROLLER://:9093",
			"KAFKA_ADVERTISED_LISTENERS":           "PLAINTEXT://127.0.0.1:" + p,
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"KAFKA_NUM_PARTITIONS":                 "4", "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
			"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1", "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
			"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1", "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
			"KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
			"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":     "0", "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
		},
		HostConfigModifier: func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{inside: {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: p}}}
		},
		WaitingFor: wait.ForLog("Kafka Server started"),
	}
}

// rocketMQRequest runs name server and broker in one container. As Kafka, the broker tells its
// clients where it is, so it listens on a port that is chosen beforehand.
func rocketMQRequest(port int) testcontainers.ContainerRequest {
	p := strconv.Itoa(port)
	inside := network.MustParsePort(p + "/tcp")
	lines := strings.Join(rocketMQSettings(9876, port, "/tmp/rocketmq"), "\n")
	return testcontainers.ContainerRequest{
		Image: rocketMQImage, ExposedPorts: []string{"9876/tcp", inside.String()},
		Env: map[string]string{"JAVA_OPT_EXT": "-Xms256m -Xmx512m -Xmn128m"},
		Cmd: []string{"bash", "-c", "printf '" + lines + "\n' >/tmp/broker.conf && (sh mqnamesrv & exec sh mqbroker -c /tmp/broker.conf)"},
		HostConfigModifier: func(h *container.HostConfig) {
			loopback := netip.MustParseAddr("127.0.0.1")
			h.PortBindings = network.PortMap{
				inside:                            {{HostIP: loopback, HostPort: p}},
				network.MustParsePort("9876/tcp"): {{HostIP: loopback}},
			}
		},
		WaitingFor: wait.ForLog("boot success. serializeType=JSON and name server is"),
	}
}

// freePort asks the system for a port that nobody listens on. Another process may take it before
// it is used; a server that finds it taken ends, and the test shows the server's log.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
