package httpdedup_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
)

// outage is a store that can be out of reach.
type outage struct {
	deduptest.Faulty
	down   atomic.Bool
	method string // only this one; "": all
	loses  bool   // calls take effect and their answers are lost
}

func (e *env) outage(method string, loses bool) *outage {
	o := &outage{method: method, loses: loses}
	fault := failing(func(method string) error {
		if o.down.Load() && (o.method == "" || o.method == method) {
			return errDown
		}
		return nil
	})
	o.Store = e.store
	if loses {
		o.After = fault
	} else {
		o.Before = fault
	}
	return o
}

var outageCases = []scenario{
	{"StoreDownBeforeTheHandlerNothingRuns", func(e *env) {
		o := e.outage("", false)
		s := e.siteOf(e.guardOn(o, &dedup.Options{Logger: quietSlog}), "shop", created, nil, nil)
		o.down.Store(true)
		r := s.mustProblem(503, "unavailable", "abc", "order")
		require.NotEmpty(e, r.header.Get("Retry-After"))
		s.ran(0)
		o.down.Store(false)
		s.must(201, "abc", "order")
	}},
	{"StoreDownDuringTheHandlerTheAnswerIsKeptOnceItIsBack", func(e *env) {
		o := e.outage("", false)
		s := e.siteOf(e.guardOn(o, &dedup.Options{Logger: quietSlog}), "shop", func(w http.ResponseWriter, r *http.Request) {
			o.down.Store(true)
			time.AfterFunc(100*time.Millisecond, func() { o.down.Store(false) })
			created(w, r)
		}, nil, nil)
		require.False(e, s.must(201, "abc", "order").replayed())
		require.True(e, s.must(201, "abc", "order").replayed())
	}},
	{"StoreDownAfterTheHandlerTheClientStillGetsItsAnswer", func(e *env) {
		var w watch
		o := e.outage("", false)
		down := true
		s := e.siteOf(e.guardOn(o, &dedup.Options{Logger: quietSlog, Lease: shortLease, Observe: w.observe}), "shop", func(w http.ResponseWriter, r *http.Request) {
			o.down.Store(down)
			created(w, r)
		}, nil, nil)
		begun := time.Now()
		require.False(e, s.must(201, "abc", "order").replayed())
		require.Less(e, time.Since(begun), 30*time.Second, "it is tried for a bounded time")
		require.Equal(e, 1, w.count("request unsettled"))
		o.down.Store(false)
		down = false
		require.Equal(e, 201, s.eventually("abc", "order").status)
		s.ran(2) // the named window: an effect, and no verdict
	}},
	{"LostReplyOfAVerdictChangesNothing", func(e *env) {
		o := e.outage("Finish", true)
		s := e.siteOf(e.guardOn(o, &dedup.Options{Logger: quietSlog}), "shop", func(w http.ResponseWriter, r *http.Request) {
			o.down.Store(true)
			time.AfterFunc(50*time.Millisecond, func() { o.down.Store(false) })
			created(w, r)
		}, nil, nil)
		require.False(e, s.must(201, "abc", "order").replayed())
		require.True(e, s.must(201, "abc", "order").replayed())
		s.ran(1)
	}},
	{"LostReplyOfAClaimDoesNotBlockItsKey", func(e *env) {
		o := e.outage("Claim", true)
		s := e.siteOf(e.guardOn(o, &dedup.Options{Logger: quietSlog}), "shop", created, nil, nil)
		o.down.Store(true)
		s.must(503, "abc", "order")
		o.down.Store(false)
		s.must(201, "abc", "order")
		s.ran(1)
	}},
	{"WhoChoseToGoOnUnprotectedGoesOn", func(e *env) {
		var w watch
		o := e.outage("", false)
		s := e.siteOf(e.guardOn(o, &dedup.Options{FailOpen: true, Observe: w.observe, Logger: quietSlog}), "shop", created, nil, nil)
		o.down.Store(true)
		for range 2 {
			require.False(e, s.must(201, "abc", "order").replayed())
		}
		s.ran(2)
		require.Equal(e, 2, w.count("claim unprotected"))
		require.Equal(e, 2, w.count("request unprotected"))
	}},
	{"AnswerThatTheStoreRefusesLeavesATombstone", func(e *env) {
		picky := &refusing{Store: e.store}
		s := e.siteOf(e.guardOn(picky, &dedup.Options{Logger: quietSlog}), "shop", created, nil, nil)
		require.Equal(e, "created", s.must(201, "abc", "order").body)
		s.mustProblem(409, "answer-not-kept", "abc", "order")
		s.ran(1)
	}},
	{"KeysAndCallersAreInNoLogErrorOrEvent", func(e *env) {
		var seen lines
		logger := slog.New(slog.NewTextHandler(&seen, &slog.HandlerOptions{Level: slog.LevelDebug}))
		observe := func(ev dedup.Event) {
			seen.add(ev.Name, ev.Scope, ev.Cause)
			if ev.Err != nil {
				seen.add(ev.Err.Error())
			}
		}
		o := e.outage("", false)
		status := 201
		s := e.siteOf(e.guardOn(o, &dedup.Options{Logger: logger, Observe: observe}), "shop", func(w http.ResponseWriter, r *http.Request) {
			o.down.Store(status == 202)
			w.WriteHeader(status)
		}, nil, nil)
		caller := with("User", "secret-ann")
		s.must(201, "secret-key", "order", caller)
		s.must(201, "secret-key", "order", caller)
		s.must(422, "secret-key", "other", caller)
		status = 202
		s.must(202, "secret-too", "order", caller)
		s.must(503, "secret-key", "order", caller)
		o.down.Store(false)
		c, err := e.guard(nil).Claim(e.Context(), httpdedup.WorkOf("shop", "secret-ann", "secret-bad"))
		require.NoError(e, err)
		require.NoError(e, c.Complete(e.Context(), []byte("bad")))
		s.must(500, "secret-bad", "order", caller)
		require.Contains(e, seen.String(), "an answer could not be stored")
		require.Contains(e, seen.String(), "request")
		require.NotContains(e, seen.String(), "secret")
	}},
}

// refusing takes no results above 10 bytes.
type refusing struct{ dedup.Store }

func (s *refusing) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if len(in[0].Result) > 10 {
		out[0] = errTooLong
		return nil
	}
	return s.Store.Finish(ctx, in, out)
}

// lines is a log of the test's.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) add(parts ...string) {
	for _, p := range parts {
		_, _ = l.Write([]byte(p + "\n"))
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestStoreThatHangsDoesNotHoldTheClientForLong(t *testing.T) {
	t.Parallel()
	e := onMemory(t)
	answers := make(chan struct{})
	t.Cleanup(func() { close(answers) })
	s := e.siteOf(e.guardOn(&deduptest.Faulty{Store: e.store, Before: func(ctx context.Context, method string) error {
		if method == "Claim" {
			return nil
		}
		select {
		case <-answers:
		case <-ctx.Done():
		}
		return errDown
	}}, &dedup.Options{Logger: quietSlog}), "shop", created, nil, nil)
	begun := time.Now()
	s.must(201, "abc", "order")
	require.Less(t, time.Since(begun), 30*time.Second)
}
