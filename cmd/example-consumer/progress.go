package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// progress writes short lines with the time since the start.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	begun time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, begun: time.Now()} }

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%5.1fs  %s\n", time.Since(p.begun).Seconds(), fmt.Sprintf(format, args...))
}

// tail keeps the end of what a child writes, for the case that it ends by itself.
type tail struct {
	also io.Writer // nil: nobody

	mu  sync.Mutex
	end []byte
}

const tailSize = 2048

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if len(t.end) > tailSize {
		t.end = bytes.Clone(t.end[len(t.end)-tailSize:])
	}
	if t.also != nil {
		return t.also.Write(b)
	}
	return len(b), nil
}

func (t *tail) tail() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.end))
}
