package httpdedup_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
)

var replayCases = []scenario{
	{"CompletedRequestIsAnsweredAgain", func(e *env) {
		s := e.site(created, nil)
		first := s.must(201, "abc", "order")
		require.False(e, first.replayed())
		for range 3 {
			again := s.must(201, "abc", "order")
			require.True(e, again.replayed())
			require.Equal(e, first.body, again.body)
			require.Equal(e, "/orders/1", again.header.Get("Location"))
			require.Equal(e, first.header.Get("Content-Type"), again.header.Get("Content-Type"))
			require.Equal(e, "no-store", again.header.Get("Cache-Control"))
		}
		s.ran(1)
	}},
	{"BodiesOfAnyBytesAreKept", func(e *env) {
		body := make([]byte, 300_000)
		for i := range body {
			body[i] = byte(i * i)
		}
		s := e.site(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(body) }, nil)
		require.Equal(e, string(body), s.must(200, "abc", "").body)
		again := s.must(200, "abc", "")
		require.True(e, again.replayed())
		require.Equal(e, string(body), again.body)
	}},
	{"WhoHasTheAnswerIsNeverToldToWait", func(e *env) {
		s := e.site(created, nil)
		for i := range 20 {
			key := "key-" + strconv.Itoa(i)
			s.must(201, key, "order")
			require.True(e, s.must(201, key, "order").replayed())
		}
		s.ran(20)
	}},
	{"OfManyEqualRequestsOneRuns", func(e *env) {
		g := newGate(e)
		a, b := e.site(g.created, nil), e.site(g.created, nil)
		var answers sync.Map
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				r, err := []*site{a, b}[i%2].try(e.Context(), http.MethodPost, "/orders", "abc", "order")
				if err == nil {
					answers.Store(i, r)
				}
				if r != nil && r.status == 409 { // so they are told while it runs
					g.letGo()
				}
			})
		}
		all.Wait()
		ran, conflicts := 0, 0
		answers.Range(func(_, v any) bool {
			switch r := v.(*reply); {
			case r.status == 409:
				conflicts++
				seconds, err := strconv.Atoi(r.header.Get("Retry-After"))
				require.NoError(e, err)
				require.GreaterOrEqual(e, seconds, 1)
				require.Equal(e, "in-progress", problemOf(e, r)["reason"])
			case !r.replayed():
				require.Equal(e, 201, r.status)
				ran++
			}
			return true
		})
		require.Equal(e, 1, ran)
		require.Positive(e, conflicts)
		require.Equal(e, int64(1), a.runs.Load()+b.runs.Load())
	}},
	{"WhoMayWaitGetsTheFirstAnswer", func(e *env) {
		g := newGate(e)
		o := &httpdedup.Options{Wait: time.Minute}
		a, b := e.site(g.created, o), e.site(g.created, o)
		first := a.inBackground(e.Context(), "abc", "order")
		<-g.begun
		var waiting []<-chan *reply
		for range 5 {
			waiting = append(waiting, b.inBackground(e.Context(), "abc", "order"))
		}
		select {
		case <-waiting[0]:
			e.Error("answered before the first was")
		case <-time.After(150 * time.Millisecond): // long enough for a question or two
		}
		g.letGo()
		require.False(e, (<-first).replayed())
		for _, w := range waiting {
			r := <-w
			require.Equal(e, 201, r.status)
			require.True(e, r.replayed())
		}
		b.ran(0)
	}},
	{"WhoWaitedInVainRunsWhenTheFirstFails", func(e *env) {
		g := newGate(e)
		failing := e.site(func(w http.ResponseWriter, r *http.Request) {
			g.wait()
			w.WriteHeader(503)
		}, nil)
		first := failing.inBackground(e.Context(), "abc", "order")
		<-g.begun
		s := e.site(created, &httpdedup.Options{Wait: time.Minute})
		second := s.inBackground(e.Context(), "abc", "order")
		g.letGo()
		require.Equal(e, 503, (<-first).status)
		require.Equal(e, 201, (<-second).status)
	}},
}

func TestAnswerIsStoredBeforeItIsSent(t *testing.T) {
	e := onMemory(t)
	storing, stored := make(chan struct{}), make(chan struct{})
	g := e.guardOn(&deduptest.Faulty{Store: e.store, Before: failing(func(method string) error {
		if method == "Finish" {
			close(storing)
			<-stored
		}
		return nil
	})}, nil)
	s := e.siteOf(g, "shop", created, nil, nil)
	answer := s.inBackground(t.Context(), "abc", "order")
	<-storing
	select {
	case <-answer:
		t.Error("it was sent before it was stored")
	case <-time.After(50 * time.Millisecond):
	}
	close(stored)
	require.Equal(t, 201, (<-answer).status)
}

func TestWaitEndsWithTheClient(t *testing.T) {
	e := onMemory(t)
	g := newGate(e)
	s := e.site(g.created, &httpdedup.Options{Wait: time.Hour})
	first := s.inBackground(t.Context(), "abc", "order")
	<-g.begun
	ctx, cancel := context.WithCancel(t.Context())
	second := s.inBackground(ctx, "abc", "order")
	cancel()
	require.Nil(t, <-second)
	g.letGo()
	require.Equal(t, 201, (<-first).status)
	s.Close() // waits for handlers, so it returns only because nobody waits
}

func TestWaitIsBounded(t *testing.T) {
	e := onMemory(t)
	g := newGate(e)
	s := e.site(g.created, &httpdedup.Options{Wait: 60 * time.Millisecond})
	first := s.inBackground(t.Context(), "abc", "order")
	<-g.begun
	s.must(409, "abc", "order")
	g.letGo()
	<-first
}

// failing makes a hook for deduptest.Faulty that sees the method only.
func failing(f func(method string) error) func(context.Context, string) error {
	return func(_ context.Context, method string) error { return f(method) }
}

var (
	errDown    = errors.New("connection refused")
	errTooLong = errors.New("result is too long")
)
