package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

// cluster is a few consumer processes in one group, and what was done to them.
type cluster struct {
	t      *testing.T
	spec   childSpec
	kind   kind
	broker broker

	ps      []*process // three, where a test does not say otherwise
	started int
	ended   []*process
}

// process is one incarnation of a consumer.
type process struct {
	name            string
	cmd             *exec.Cmd
	log             *os.File
	killed          time.Time // zero: it was not
	stopped, resume time.Time
}

const (
	topicPartitions = 12
	timeouts        = 2 * time.Second // lease, session and rebalance
)

// newCluster has no processes yet. own: the server is the test's.
func newCluster(t *testing.T, k kind, partitions int, own bool) *cluster {
	name := fmt.Sprintf("chaos-%d", time.Now().UnixNano())
	c := &cluster{t: t, kind: k, ps: make([]*process, 3), spec: childSpec{
		Broker: k.name, Redis: testenv.Redis(t), Topic: name, Group: name, App: name, Folder: t.TempDir(),
		Lease: timeouts, Session: timeouts, Work: k.work,
	}}
	start := k.start
	if own {
		start = k.own
	}
	c.broker = start(t, &c.spec, partitions)
	t.Cleanup(func() {
		for _, p := range c.ps {
			if p != nil {
				_ = p.cmd.Process.Kill()
				_ = p.cmd.Wait()
				p.log.Close()
			}
		}
	})
	return c
}

// startAll begins an incarnation in each place.
func (c *cluster) startAll() {
	for i := range c.ps {
		c.start(i)
	}
}

// terminateAll has every process drain and end.
func (c *cluster) terminateAll() {
	for i := range c.ps {
		c.terminate(i)
	}
}

// start begins a new incarnation in place i.
func (c *cluster) start(i int) {
	c.started++
	spec := c.spec
	spec.Name = fmt.Sprintf("p%d-%d", i, c.started)
	raw, err := json.Marshal(spec)
	require.NoError(c.t, err)
	p := &process{name: spec.Name, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(raw))
	p.log, err = os.Create(spec.Folder + "/" + spec.Name + ".log")
	require.NoError(c.t, err)
	p.cmd.Stderr = p.log
	require.NoError(c.t, p.cmd.Start())
	c.ps[i] = p
}

// kill sends SIGKILL and takes note of when.
func (c *cluster) kill(i int) {
	p := c.ps[i]
	p.killed = time.Now()
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGKILL))
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.Equal(c.t, syscall.SIGKILL, status.Signal(), "%s had ended by itself:\n%s", p.name, c.tail(p))
	c.end(i)
}

// terminate asks for a drain and waits for its end.
func (c *cluster) terminate(i int) {
	p := c.ps[i]
	require.Eventually(c.t, func() bool { // before that the signal would kill it
		_, err := os.Stat(c.spec.Folder + "/" + p.name + ".events")
		return err == nil
	}, time.Minute, 10*time.Millisecond, "%s does not begin", p.name)
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(c.t, p.cmd.Wait(), "%s:\n%s", p.name, c.tail(p))
	c.end(i)
}

func (c *cluster) end(i int) {
	c.ps[i].log.Close()
	c.ended = append(c.ended, c.ps[i])
	c.ps[i] = nil
}

// freeze stops process i for d.
func (c *cluster) freeze(i int, d time.Duration) {
	p := c.ps[i]
	p.stopped = time.Now()
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	<-time.After(d)
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGCONT))
	p.resume = time.Now()
}

func (c *cluster) tail(p *process) string {
	b, _ := os.ReadFile(c.spec.Folder + "/" + p.name + ".log")
	lines := strings.Split(string(b), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
