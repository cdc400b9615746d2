package testenv

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// RedisServer is a Redis server of one test. It keeps nothing on disk unless told so by its
// arguments, so that after Kill and Start it is empty.
type RedisServer struct {
	*Process
	Addr string // host:port, the same over restarts
}

// StartRedis starts a redis-server of the test's own on a free port. args are those of the
// command line, such as "--maxmemory-policy", "allkeys-lru"; they outrank the defaults.
func StartRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		Missing(tb, "redis-server is not installed: scripts/services.sh start redis")
	}
	folder, port := tb.TempDir(), mustFreePort(tb)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	command := append([]string{binary, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", folder}, args...)
	return &RedisServer{
		Process: startProcess(tb, "redis-server", folder, command, func() error { return pingRedis(addr) }),
		Addr:    addr,
	}
}

// pingRedis succeeds when the server says PONG; while it loads a file it says something else.
func pingRedis(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "+PONG\r\n" {
		err = fmt.Errorf("it answers %q", answer)
	}
	return err
}

func mustFreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatalf("no free port: %v", err)
	}
	return port
}
