package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// startTimeout is how long a server may take until it answers, on a machine that other tests use too.
const startTimeout = 90 * time.Second

// Process is a server of one test: it can be stopped, killed, paused and started again, and ends
// with the test. Its methods are for one goroutine, and fail the test when they cannot do their work.
type Process struct {
	tb      testing.TB
	name    string
	command []string
	folder  string
	answers func() error // nil once the server does its work
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd's process has ended

	stop  syscall.Signal // what asks it to end
	forks bool           // its children serve the clients, so that what befalls it must befall them
}

// quickStart keeps Java from compiling a second time what a server of a few seconds runs: half the processor time of its start.
const quickStart = "-XX:TieredStopAtLevel=1"

func startProcess(tb testing.TB, name, folder string, command []string, answers func() error) *Process {
	tb.Helper()
	p := &Process{tb: tb, name: name, command: command, folder: folder, answers: answers, stop: syscall.SIGTERM}
	p.startFirst()
	return p
}

// startFirst starts the server for the first time; from then on it ends with the test.
func (p *Process) startFirst() {
	p.tb.Helper()
	p.tb.Cleanup(func() {
		if p.Running() {
			p.Kill()
		}
	})
	p.Start()
}

// Start starts the server after Stop or Kill, on the same port and the same data, and returns when it answers.
func (p *Process) Start() {
	p.tb.Helper()
	if p.Running() {
		p.tb.Fatalf("%s: start: it runs already", p.name)
	}
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.tb.Fatalf("%s: its log: %v", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.folder, log, log
	cmd.SysProcAttr = childAttributes()
	p.cmd, p.ended = cmd, make(chan struct{})
	if err := run(cmd, p.ended); err != nil {
		p.tb.Fatalf("%s: start: %v", p.name, err)
	}
	p.awaitAnswer()
}

// run starts the command and closes ended when it has ended. The kernel counts the thread that
// started a process, not the program, as the parent whose death ends it: so that thread stays.
func run(cmd *exec.Cmd, ended chan<- struct{}) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	return <-started
}

func (p *Process) awaitAnswer() {
	p.tb.Helper()
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := p.answers()
		if err == nil {
			return
		}
		select {
		case <-p.ended:
			p.tb.Fatalf("%s: it ended instead of answering; the end of its log:\n%s", p.name, p.logTail())
		case <-deadline.C:
			p.tb.Fatalf("%s: no answer within %s: %v; the end of its log:\n%s", p.name, startTimeout, err, p.logTail())
		case <-again.C:
		}
	}
}

// Running reports whether the server's process is there.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the server as a crash does, without a word to anybody.
func (p *Process) Kill() {
	p.tb.Helper()
	p.end(syscall.SIGKILL)
}

// Stop ends the server in its own orderly way.
func (p *Process) Stop() {
	p.tb.Helper()
	p.end(p.stop)
}

// Restart is Kill and Start.
func (p *Process) Restart() {
	p.tb.Helper()
	p.Kill()
	p.Start()
}

// Pause makes the server silent with its connections open, as a stalled machine is, until Resume.
func (p *Process) Pause() {
	p.tb.Helper()
	p.signal(syscall.SIGSTOP)
}

// Resume ends a Pause.
func (p *Process) Resume() {
	p.tb.Helper()
	p.signal(syscall.SIGCONT)
}

func (p *Process) signal(s syscall.Signal) {
	p.tb.Helper()
	if !p.Running() {
		p.tb.Fatalf("%s: %s: it does not run", p.name, s)
	}
	if p.forks && s == syscall.SIGKILL {
		killFamily(p.cmd.Process.Pid)
		return
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		p.tb.Fatalf("%s: %s: %v", p.name, s, err)
	}
	if p.forks && (s == syscall.SIGSTOP || s == syscall.SIGCONT) {
		for _, child := range children(p.cmd.Process.Pid) {
			_ = syscall.Kill(child, s) // an error means that it has ended
		}
	}
}

func (p *Process) end(s syscall.Signal) {
	p.tb.Helper()
	p.signal(s)
	select {
	case <-p.ended:
	case <-time.After(startTimeout):
		p.tb.Fatalf("%s: it does not end by %s; the end of its log:\n%s", p.name, s, p.logTail())
	}
}

func (p *Process) logFile() string { return filepath.Join(p.folder, "server.log") }

func (p *Process) logTail() string {
	log, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-4096):])
}
