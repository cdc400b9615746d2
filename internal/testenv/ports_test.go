package testenv_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/idemq/idemq/internal/testenv"
)

type composeFile struct {
	Services map[string]struct {
		Image       string            `yaml:"image"`
		Ports       []string          `yaml:"ports"`
		Environment map[string]string `yaml:"environment"`
		Healthcheck struct {
			Test []string `yaml:"test"`
		} `yaml:"healthcheck"`
	} `yaml:"services"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	text, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var c composeFile
	require.NoError(t, yaml.Unmarshal(text, &c))
	return c
}

func TestComposePublishesThePortsOfTheCode(t *testing.T) {
	services := readCompose(t).Services
	first, last := testenv.RedisClusterPort, testenv.RedisClusterPort+5
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:6379", testenv.RedisPort)}, services["redis"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d-%d:%d-%d", first, last, first, last)}, services["redis-cluster"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:%d", testenv.KafkaPort, testenv.KafkaPort)}, services["kafka"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:5672", testenv.RabbitMQPort)}, services["rabbitmq"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:5432", testenv.PostgreSQLPort)}, services["postgres"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:3306", testenv.MySQLPort)}, services["mysql"].Ports)
	require.Equal(t, fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", testenv.KafkaPort), services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"],
		"a broker sends its clients to the port it advertises")
}

func TestComposePublishesRocketMQ(t *testing.T) {
	services := readCompose(t).Services
	namesrv, broker := testenv.RocketMQPort, testenv.RocketMQPort+1035
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:9876", namesrv)}, services["rocketmq-namesrv"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:%d", broker, broker)}, services["rocketmq-broker"].Ports)
	conf := services["rocketmq-broker"].Environment["BROKER_CONF"]
	require.Contains(t, conf, fmt.Sprintf("brokerIP1=127.0.0.1\nlistenPort=%d\n", broker), "a broker sends its clients to the address it registers")
	require.Contains(t, conf, "messageDelayLevel="+testenv.DelayLevels+"\n")
	require.Equal(t, services["rocketmq-namesrv"].Image, services["rocketmq-broker"].Image)
	script, err := os.ReadFile("../../scripts/services.sh")
	require.NoError(t, err)
	require.Contains(t, string(script), "messageDelayLevel="+testenv.DelayLevels+"\n")
}

func TestRocketMQHasOneVersionEverywhere(t *testing.T) {
	_, version, _ := strings.Cut(readCompose(t).Services["rocketmq-broker"].Image, ":")
	script, err := os.ReadFile("../../scripts/services.sh")
	require.NoError(t, err)
	require.Contains(t, string(script), "rocketmq_version="+version+"\n")
	pom, err := os.ReadFile("../../scripts/rocketmq-pom.xml")
	require.NoError(t, err)
	require.Contains(t, string(pom), "<version>"+version+"</version>")
}

func TestComposePinsImagesAndChecksHealth(t *testing.T) {
	services := readCompose(t).Services
	require.Len(t, services, 8)
	pinned := regexp.MustCompile(`^[a-z/]+:\d+(\.\d+){1,2}$`)
	for name, s := range services {
		require.Regexp(t, pinned, s.Image, name)
		require.NotEmpty(t, s.Healthcheck.Test, name)
	}
}

func TestScriptDefaultsToThePortsOfTheCode(t *testing.T) {
	text, err := os.ReadFile("../../scripts/services.sh")
	require.NoError(t, err)
	sqlText, err := os.ReadFile("../../scripts/services-sql.sh")
	require.NoError(t, err)
	for variable, port := range map[string]int{
		"IDEMQ_REDIS_PORT":         testenv.RedisPort,
		"IDEMQ_REDIS_CLUSTER_PORT": testenv.RedisClusterPort,
		"IDEMQ_KAFKA_PORT":         testenv.KafkaPort,
		"IDEMQ_RABBITMQ_PORT":      testenv.RabbitMQPort,
		"IDEMQ_ROCKETMQ_PORT":      testenv.RocketMQPort,
		"IDEMQ_POSTGRES_PORT":      testenv.PostgreSQLPort,
		"IDEMQ_MYSQL_PORT":         testenv.MySQLPort,
	} {
		require.Contains(t, string(text)+string(sqlText), "${"+variable+":-"+strconv.Itoa(port)+"}")
	}
}

func TestKafkaHasOneVersionEverywhere(t *testing.T) {
	_, version, _ := strings.Cut(readCompose(t).Services["kafka"].Image, ":")
	script, err := os.ReadFile("../../scripts/services.sh")
	require.NoError(t, err)
	require.Contains(t, string(script), "kafka_version="+version+"\n")
	pom, err := os.ReadFile("../../scripts/kafka-pom.xml")
	require.NoError(t, err)
	require.Contains(t, string(pom), "<version>"+version+"</version>")
}
