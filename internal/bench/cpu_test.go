package bench

import (
	"bufio"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// servers are the processes that answer a broker's and Redis's address; 0 is one that cannot be
// seen from here, as in a container.
type servers struct{ broker, redis int }

func (e env) servers(b broker) servers {
	return servers{broker: listener(b.addr), redis: listener(e.rdb.Options().Addr)}
}

// spent is CPU time.
type spent struct{ self, broker, redis time.Duration }

func (s servers) spent() spent {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return spent{self: time.Duration(u.Utime.Nano() + u.Stime.Nano()), broker: cpuOf(s.broker), redis: cpuOf(s.redis)}
}

// cpuOf reads what /proc knows of a process, in hundredths of a second.
func cpuOf(pid int) time.Duration {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(raw), ") ") // the name before it may hold anything
	f := strings.Fields(after)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// listener is the process that listens on a port of this machine.
func listener(addr string) int {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	socket := ""
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if s := socketOf(table, port); s != "" {
			socket = s
		}
	}
	if socket == "" {
		return 0
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == "socket:["+socket+"]" {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}

// socketOf is the inode of the socket that listens on port.
func socketOf(table, port string) string {
	n, err := strconv.Atoi(port)
	if err != nil {
		return ""
	}
	want := ":" + strings.ToUpper(hex.EncodeToString([]byte{byte(n >> 8), byte(n)}))
	f, err := os.Open(table)
	if err != nil {
		return ""
	}
	defer f.Close()
	const listening = "0A"
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if w := strings.Fields(lines.Text()); len(w) > 9 && w[3] == listening && strings.HasSuffix(w[1], want) {
			return w[9]
		}
	}
	return ""
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
