package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// children are the processes of a trial: this binary again, with an assignment.
type children struct {
	subject string
	log     *progress
	stderr  io.Writer

	mu       sync.Mutex
	born     int
	running  map[int]*exec.Cmd
	stopping bool
}

// supervise starts a child, and another whenever it was killed.
func (c *children) supervise(ctx context.Context, a assignment, wasKilled func(child int) bool) error {
	for {
		id, cmd, output, err := c.start(ctx, a)
		if err != nil || cmd == nil {
			return err
		}
		err = cmd.Wait()
		c.mu.Lock()
		delete(c.running, id)
		stopping := c.stopping
		c.mu.Unlock()
		switch killed := wasKilled(id); {
		case ctx.Err() != nil:
			return nil
		case killed && signalOf(cmd) != syscall.SIGKILL:
			return fmt.Errorf("child %d was to die of SIGKILL, but ended with: %w", id, errors.Join(err, errNoSignal))
		case killed:
			continue
		case err != nil:
			return fmt.Errorf("child %d ended by itself: %w: %s", id, err, output.tail())
		case !stopping:
			return fmt.Errorf("child %d ended by itself: %s", id, output.tail())
		}
		return nil
	}
}

var errNoSignal = errors.New("no such signal")

func signalOf(cmd *exec.Cmd) syscall.Signal {
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return s.Signal()
	}
	return 0
}

// start returns no command once the trial is stopping.
func (c *children) start(ctx context.Context, a assignment) (int, *exec.Cmd, *tail, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || ctx.Err() != nil {
		return 0, nil, nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, nil, nil, err
	}
	c.born++
	a.Child = c.born
	text, err := json.Marshal(a)
	if err != nil {
		return 0, nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childVar+"="+string(text))
	if a.Subject == setnxSubject {
		// It is built on client libraries alone, and RocketMQ's has a data race in its Shutdown: under the race
		// detector, its report must not end the child with an error.
		cmd.Env = append(cmd.Env, "GORACE=exitcode=0")
	}
	cmd.WaitDelay = time.Second
	output := &tail{also: c.stderr}
	cmd.Stdout, cmd.Stderr = output, output
	if _, err := cmd.StdinPipe(); err != nil { // its end tells the child that the parent is gone
		return 0, nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, nil, fmt.Errorf("start a child: %w", err)
	}
	c.running[c.born] = cmd
	return c.born, cmd, output, nil
}

// kill sends SIGKILL, which no process can catch.
func (c *children) kill(child int, order string, p point) {
	c.mu.Lock()
	cmd := c.running[child]
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	c.log.say("%s: kill -9 %d, %v of %s", c.subject, cmd.Process.Pid, p, order)
	_ = cmd.Process.Signal(syscall.SIGKILL) // supervise looks at what it died of
}

// stop has the children drain and end.
func (c *children) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for _, cmd := range c.running {
		_ = cmd.Process.Signal(syscall.SIGTERM) // supervise sees whether it ended well
	}
}
