package testenv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// RocketMQServer is a name server with a broker, of one test; both keep their data over Kill and Start.
type RocketMQServer struct {
	NameServer *Process
	Broker     *Process
	Addr       string // the name server's, the same over restarts
	BrokerAddr string // where the broker tells its clients to connect
}

// StartRocketMQ starts a name server and a broker of the test's own on free ports. settings are
// lines of the broker's configuration; they outrank those of the shared broker, which it has otherwise.
func StartRocketMQ(tb testing.TB, settings ...string) *RocketMQServer {
	tb.Helper()
	java, jars := rocketMQProgram(tb)
	port, listen := freeBrokerPort(tb), freeBrokerPort(tb)
	s := &RocketMQServer{Addr: local(port), BrokerAddr: local(listen)}

	home := tb.TempDir()
	config := filepath.Join(home, "namesrv.properties")
	writeLines(tb, config, "listenPort="+strconv.Itoa(port))
	s.NameServer = startProcess(tb, "rocketmq-namesrv", home, []string{
		"env", "ROCKETMQ_HOME=" + home, java, quickStart, "-Xmx128m", "-cp", jars, "-Duser.home=" + home,
		"org.apache.rocketmq.namesrv.NamesrvStartup", "-c", config,
	}, func() error { _, err := askNameServer(s.Addr); return err })

	home = tb.TempDir()
	config = filepath.Join(home, "broker.conf")
	writeLines(tb, config, append(rocketMQSettings(port, listen, filepath.Join(home, "data")), settings...)...)
	s.Broker = startProcess(tb, "rocketmq-broker", home, []string{
		"env", "ROCKETMQ_HOME=" + home, java, quickStart, "-Xmx384m", "-XX:MaxDirectMemorySize=256m",
		"--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
		"--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "-cp", jars, "-Duser.home=" + home,
		"org.apache.rocketmq.broker.BrokerStartup", "-c", config,
	}, func() error { return askBroker(s.Addr, s.BrokerAddr) })
	return s
}

func writeLines(tb testing.TB, name string, lines ...string) {
	tb.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
}

// freeBrokerPort is a free port whose second one before and next one are free, too: a broker takes
// all three. It lies below those that systems give to outgoing connections, one of which could
// else have taken it before the broker comes to it, or while the broker is down.
func freeBrokerPort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := 21000 + rand.N(11000)
		if free(port-2) && free(port) && free(port+1) {
			return port
		}
	}
	tb.Fatal("rocketmq: no three free ports")
	return 0
}

func free(port int) bool {
	l, err := net.Listen("tcp", local(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// rocketMQProgram finds Java and the jars that scripts/services.sh has fetched.
func rocketMQProgram(tb testing.TB) (java, jars string) {
	tb.Helper()
	java, err := exec.LookPath("java")
	if err != nil {
		Missing(tb, "Java is not installed: scripts/services.sh start rocketmq")
	}
	lib := os.Getenv("IDEMQ_ROCKETMQ_LIB")
	if lib == "" {
		Missing(tb, `IDEMQ_ROCKETMQ_LIB, the folder of RocketMQ's jars, is not set: scripts/services.sh start rocketmq; eval "$(scripts/services.sh env)"`)
	}
	return java, filepath.Join(lib, "*")
}

// DelayLevels are the shared broker's: short, so that tests need not wait for minutes.
const DelayLevels = "1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 9s"

func rocketMQSettings(namesrv, listen int, data string) []string {
	return []string{
		"brokerClusterName=DefaultCluster", "brokerName=broker-a", "brokerId=0", "brokerIP1=127.0.0.1",
		"listenPort=" + strconv.Itoa(listen), "namesrvAddr=" + local(namesrv),
		"storePathRootDir=" + data,
		"autoCreateTopicEnable=false", "enablePropertyFilter=true", "flushDiskType=ASYNC_FLUSH",
		"mappedFileSizeCommitLog=67108864", "mappedFileSizeConsumeQueue=600000", "diskMaxUsedSpaceRatio=99",
		"waitTimeMillsInSendQueue=5000", // not 200: a machine that is busy with tests is not a broker that has too much to do
		"transactionTimeOut=3000", "transactionCheckInterval=3000", "messageDelayLevel=" + DelayLevels,
	}
}

// askBroker succeeds when the broker has registered with the name server and takes connections.
func askBroker(namesrv, broker string) error {
	answer, err := askNameServer(namesrv)
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(broker)) {
		return errors.New("the name server does not know the broker yet")
	}
	conn, err := net.DialTimeout("tcp", broker, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// askNameServer asks a name server for its cluster.
func askNameServer(addr string) ([]byte, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return nil, err
	}
	const header = `{"code":106,"language":"GO","version":317,"opaque":1,"flag":0}`
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(header)+4))
	frame = append(binary.BigEndian.AppendUint32(frame, uint32(len(header))), header...)
	if _, err := conn.Write(frame); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	answer := make([]byte, min(binary.BigEndian.Uint32(size[:]), 1<<20))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	return answer, nil
}
