package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitScripts is where the package puts the scripts that its wrapper, which would change to
// the packaged server's user and folders, calls.
const rabbitScripts = "/usr/lib/rabbitmq/bin/"

// RabbitServer is a RabbitMQ node of one test. It keeps its queues over Kill and Start.
type RabbitServer struct {
	*Process
	Addr string   // host:port, the same over restarts
	URL  string   // of its default virtual host, with the user's name and password
	env  []string // as the env command takes them
}

// StartRabbitMQ starts a RabbitMQ node of the test's own on free ports. settings are lines of
// rabbitmq.conf, such as "consumer_timeout = 2000", or, with a dash, arguments of the Erlang
// machine, such as "-rabbit channel_tick_interval 200", for what that file has no words for.
func StartRabbitMQ(tb testing.TB, settings ...string) *RabbitServer {
	tb.Helper()
	if _, err := os.Stat(rabbitScripts + "rabbitmq-server"); err != nil {
		Missing(tb, "rabbitmq-server is not installed: scripts/services.sh start rabbitmq")
	}
	folder, port, mapper := tb.TempDir(), mustFreePort(tb), mustFreePort(tb)
	var config, args string
	for _, line := range settings {
		if strings.HasPrefix(line, "-") {
			args += line + " "
		} else {
			config += line + "\n"
		}
	}
	for name, text := range map[string]string{"rabbitmq.conf": config, "plugins": "[].\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			tb.Fatalf("rabbitmq: its configuration: %v", err)
		}
	}
	startPortMapper(tb, mapper)
	p := strconv.Itoa(port)
	s := &RabbitServer{Addr: local(port), URL: rabbitURL(local(port)), env: []string{
		"HOME=" + folder, "ERL_EPMD_PORT=" + strconv.Itoa(mapper), "RUNNING_UNDER_SYSTEMD=1", // the script becomes the server
		"RABBITMQ_NODENAME=idemq-" + p + "@localhost", "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1", "RABBITMQ_NODE_PORT=" + p,
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(mustFreePort(tb)), "RABBITMQ_MNESIA_BASE=" + filepath.Join(folder, "data"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + args, "RABBITMQ_LOG_BASE=" + folder, "RABBITMQ_LOGS=-", "RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(folder, "rabbitmq.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(folder, "plugins"),
	}}
	command := append(append([]string{"env"}, s.env...), rabbitScripts+"rabbitmq-server")
	s.Process = startProcess(tb, "rabbitmq", folder, command, func() error { return askRabbitMQ(s.URL) })
	return s
}

// startPortMapper starts the process by which Erlang's nodes and tools find each other, which
// otherwise a node would start for the whole machine, and leave behind.
func startPortMapper(tb testing.TB, port int) {
	tb.Helper()
	p := strconv.Itoa(port)
	startProcess(tb, "epmd", tb.TempDir(), []string{"epmd", "-port", p, "-address", "127.0.0.1"}, func() error {
		return exec.Command("epmd", "-port", p, "-names").Run()
	})
}

// Ctl runs rabbitmqctl on the node and returns what it printed.
func (s *RabbitServer) Ctl(args ...string) string {
	s.tb.Helper()
	out, err := exec.Command("env", append(append(append([]string{}, s.env...), rabbitScripts+"rabbitmqctl", "-q"), args...)...).CombinedOutput()
	if err != nil {
		s.tb.Fatalf("rabbitmqctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func rabbitURL(addr string) string { return "amqp://guest:guest@" + addr + "/" }

// askRabbitMQ succeeds when the server lets a user in.
func askRabbitMQ(url string) error {
	c, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	return c.Close()
}
