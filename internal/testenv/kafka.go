package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// KafkaServer is a Kafka broker of one test. It keeps its data over Kill and Start.
type KafkaServer struct {
	*Process
	Addr string // where it tells its clients to connect, the same over restarts
}

// StartKafka starts a one-node Kafka broker of the test's own on a free port. settings are lines
// of its configuration, such as "message.max.bytes=2000000"; they outrank those of the shared
// broker, which it has otherwise.
func StartKafka(tb testing.TB, settings ...string) *KafkaServer {
	tb.Helper()
	port := mustFreePort(tb)
	return startKafka(tb, port, local(port), settings)
}

// StartKafkaBehind starts a broker that its clients reach through the proxy it returns, and
// only through that: a broker tells its clients where it is, and this one names the proxy.
func StartKafkaBehind(tb testing.TB, settings ...string) (*KafkaServer, *Proxy) {
	tb.Helper()
	port := mustFreePort(tb)
	proxy := NewProxy(tb, local(port))
	return startKafka(tb, port, proxy.Addr, settings), proxy
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func startKafka(tb testing.TB, port int, advertised string, settings []string) *KafkaServer {
	tb.Helper()
	java, jars := kafkaProgram(tb)
	folder, controller := tb.TempDir(), mustFreePort(tb)
	config := filepath.Join(folder, "server.properties")
	lines := append(kafkaSettings(port, controller, advertised, filepath.Join(folder, "data")), settings...)
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		tb.Fatalf("kafka: its configuration: %v", err)
	}
	format := exec.Command(java, quickStart, "-cp", jars, "kafka.tools.StorageTool", "format", "-t", "aWRlbXEtdGVzdHMta2Fma2E", "-c", config)
	if out, err := format.CombinedOutput(); err != nil {
		tb.Fatalf("kafka: format its folder: %v\n%s", err, out)
	}
	command := []string{java, quickStart, "-Xms128m", "-Xmx512m", "-cp", jars, "kafka.Kafka", config}
	return &KafkaServer{
		Process: startProcess(tb, "kafka", folder, command, func() error { return askKafka(local(port)) }),
		Addr:    advertised,
	}
}

// kafkaProgram finds Java and the jars that scripts/services.sh has fetched.
func kafkaProgram(tb testing.TB) (java, jars string) {
	tb.Helper()
	java, err := exec.LookPath("java")
	if err != nil {
		Missing(tb, "Java is not installed: scripts/services.sh start kafka")
	}
	lib := os.Getenv("IDEMQ_KAFKA_LIB")
	if lib == "" {
		Missing(tb, `IDEMQ_KAFKA_LIB, the folder of Kafka's jars, is not set: scripts/services.sh start kafka; eval "$(scripts/services.sh env)"`)
	}
	return java, filepath.Join(lib, "*")
}

func kafkaSettings(port, controller int, advertised, data string) []string {
	return []string{
		"process.roles=broker,controller", "node.id=1",
		"controller.quorum.voters=1@" + local(controller),
		"listeners=PLAINTEXT://" + local(port) + ",CONTROLLER://" + local(controller),
		"advertised.listeners=PLAINTEXT://" + advertised,
		"controller.listener.names=CONTROLLER", "inter.broker.listener.name=PLAINTEXT",
		"log.dirs=" + data, "num.partitions=4", "auto.create.topics.enable=false",
		"offsets.topic.replication.factor=1", "offsets.topic.num.partitions=4",
		"transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=4",
		"group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000",
		"broker.session.timeout.ms=1500", "broker.heartbeat.interval.ms=300",
	}
}

// askKafka succeeds when the broker lists itself; before that it refuses to create topics.
func askKafka(addr string) error {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(addr), Transport: transport, Timeout: 2 * time.Second}
	answer, err := client.Metadata(context.Background(), &kafka.MetadataRequest{})
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if len(answer.Brokers) == 0 {
		return errors.New("metadata: it does not list itself yet")
	}
	return nil
}
