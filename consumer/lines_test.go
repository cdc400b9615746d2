package consumer_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// lines is a log to be read by a test.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count is how many lines have s in them.
func (l *lines) count(s string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, s) {
			n++
		}
	}
	return n
}
