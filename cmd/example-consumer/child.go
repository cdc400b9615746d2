package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// childVar, when it is set, makes this binary a consumer of the demonstration.
const childVar = "IDEMQ_EXAMPLE_CHILD"

// assignment is what a child is to be.
type assignment struct {
	Subject string  `json:"subject"`
	Child   int     `json:"child"`
	Report  string  `json:"report"` // where to report to
	Servers servers `json:"servers"`
	Topic   string  `json:"topic"`
	Group   string  `json:"group"`
	Outbox  string  `json:"outbox"` // of a relay: its database
}

// The subjects.
const (
	setnxSubject = "setnx loop"
	idemqSubject = "idemq"
	txSubject    = "idemq in tx"

	relayRole = "relay" // of each subject, with --outbox
)

// All subjects have the same short timeouts, so that the run is short: what is left by a killed child
// is taken over after them.
const (
	lease          = 2 * time.Second
	sessionTimeout = 2 * time.Second
)

// runAsChild reports whether this process is a child, and then how it ended.
func runAsChild() (ran bool, err error) {
	text := os.Getenv(childVar)
	if text == "" {
		return false, nil
	}
	var a assignment
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return true, fmt.Errorf("%s: %w", childVar, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(os.Interrupt) // the terminal's signal is for the parent, which then ends its children
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent is gone
	}()
	rep := newReporter(a.Report, a.Child)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("child", a.Child)
	switch a.Subject {
	case setnxSubject:
		return true, runSETNX(ctx, &a, rep, log)
	case idemqSubject, txSubject:
		return true, runIdemq(ctx, &a, rep, log)
	case relayRole:
		return true, runRelay(ctx, &a, rep, log)
	}
	return true, fmt.Errorf("%s: unknown subject %q", childVar, a.Subject)
}
