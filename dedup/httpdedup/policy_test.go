package httpdedup_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
)

var policyCases = []scenario{
	{"AnswersThatSayNotNowAreNotRemembered", func(e *env) {
		for i, status := range []int{500, 502, 503, 504, 429, 408} {
			next := status
			s := e.site(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(next) }, nil)
			key := fmt.Sprint("key-", i)
			s.must(status, key, "order")
			require.False(e, s.must(status, key, "order").replayed())
			next = 201
			require.False(e, s.must(201, key, "order").replayed())
			require.True(e, s.must(201, key, "order").replayed())
			s.ran(3)
		}
	}},
	{"ErrorsOfTheClientAreRemembered", func(e *env) {
		for _, status := range []int{400, 403, 404, 409, 410, 422} {
			s := e.site(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "because", status) }, nil)
			key := fmt.Sprint("key-", status)
			s.must(status, key, "order")
			again := s.must(status, key, "order")
			require.True(e, again.replayed())
			require.Equal(e, "because\n", again.body)
			s.ran(1)
		}
	}},
	{"EachRouteHasItsOwnPolicy", func(e *env) {
		answer := func(status int) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }
		}
		g := e.guard(nil)
		everything := e.siteOf(g, "a", answer(500), &httpdedup.Options{Retryable: func(int) bool { return false }}, nil)
		everything.must(500, "abc", "")
		require.True(e, everything.must(500, "abc", "").replayed())
		successes := e.siteOf(g, "b", answer(404), &httpdedup.Options{Retryable: func(s int) bool { return s >= 300 }}, nil)
		successes.must(404, "abc", "")
		require.False(e, successes.must(404, "abc", "").replayed())
	}},
	{"FailureAfterTheEffectIsRemembered", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			httpdedup.EffectDone(r.Context())
			http.Error(w, "charged, but no receipt", 500)
		}, nil)
		s.must(500, "abc", "order")
		again := s.must(500, "abc", "order")
		require.True(e, again.replayed())
		require.Equal(e, "charged, but no receipt\n", again.body)
		s.ran(1)
	}},
	{"PanicAfterTheEffectIsRemembered", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			httpdedup.EffectDone(r.Context())
			panic("no receipt")
		}, nil)
		_, err := s.try(e.Context(), http.MethodPost, "/orders", "abc", "order")
		require.Error(e, err)
		again := s.must(500, "abc", "order")
		require.True(e, again.replayed())
		require.Equal(e, "failed-after-effect", problemOf(e, again)["reason"])
		s.ran(1)
	}},
	{"PanicIsNotRememberedAndGoesOn", func(e *env) {
		for i, value := range []any{"boom", http.ErrAbortHandler, fmt.Errorf("boom")} {
			var seen any
			outside := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() {
						if seen = recover(); seen != nil {
							w.WriteHeader(599)
						}
					}()
					next.ServeHTTP(w, r)
				})
			}
			var mended atomic.Bool
			s := e.siteOf(e.guard(nil), "shop", func(w http.ResponseWriter, r *http.Request) {
				created(w, r)
				if !mended.Load() {
					panic(value)
				}
			}, nil, outside)
			key := fmt.Sprint("key-", i)
			require.Empty(e, s.must(599, key, "order").body, "what was held back is not sent")
			require.Equal(e, value, seen)
			r, err := e.record(key)
			require.NoError(e, err)
			require.Equal(e, dedup.Retryable, r.State)
			mended.Store(true)
			require.False(e, s.must(201, key, "order").replayed())
			s.ran(2)
		}
	}},
	{"PolicyThatPanicsLeavesTheKeyGood", func(e *env) {
		var mended atomic.Bool
		s := e.site(created, &httpdedup.Options{Retryable: func(int) bool {
			if !mended.Load() {
				panic("no such status")
			}
			return false
		}})
		_, err := s.try(e.Context(), http.MethodPost, "/orders", "abc", "order")
		require.Error(e, err)
		mended.Store(true)
		require.False(e, s.must(201, "abc", "order").replayed())
		s.ran(2)
	}},
	{"AbortedConnectionRunsAgain", func(e *env) {
		var mended atomic.Bool
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			if !mended.Load() {
				panic(http.ErrAbortHandler)
			}
			created(w, r)
		}, nil)
		_, err := s.try(e.Context(), http.MethodPost, "/orders", "abc", "order")
		require.Error(e, err)
		mended.Store(true)
		s.must(201, "abc", "order")
		s.ran(2)
	}},
}

func TestEffectDoneOutsideAGuardedRequestDoesNothing(t *testing.T) {
	httpdedup.EffectDone(context.Background())
	httpdedup.EffectDone(httptest.NewRequest(http.MethodGet, "/", nil).Context())
}

func TestHandlersFindTheirClaim(t *testing.T) {
	s := onMemory(t).site(func(w http.ResponseWriter, r *http.Request) {
		c := dedup.ClaimFrom(r.Context())
		_, _ = fmt.Fprint(w, c.Epoch > 0, c.Crashes, c.Unprotected())
	}, nil)
	require.Equal(t, "true 0 false", s.must(200, "abc", "").body)
}

func TestInvalidStatusPanicsInTheHandlerAndIsNotRemembered(t *testing.T) {
	var status atomic.Int64
	s := onMemory(t).site(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(int(status.Load())) }, nil)
	_, err := s.try(t.Context(), http.MethodPost, "/", "abc", "")
	require.Error(t, err)
	status.Store(202)
	require.Equal(t, 202, s.send(http.MethodPost, "/", "abc", "").status)
}

func TestContradictionsAreRefused(t *testing.T) {
	g := onMemory(t).guard(nil)
	key := func(*http.Request, []byte) string { return "" }
	for wanted, make := range map[string]func() error{
		"Guard is nil":          func() error { _, err := httpdedup.Middleware(nil, "shop", user, nil); return err },
		"scope is empty":        func() error { _, err := httpdedup.Middleware(g, "", user, nil); return err },
		"caller is nil":         func() error { _, err := httpdedup.Middleware(g, "shop", nil, nil); return err },
		"Options.Strict":        func() error { return options(g, httpdedup.Options{Strict: true, Key: key}) },
		"Options.Retention -1s": func() error { return options(g, httpdedup.Options{Retention: -1e9}) },
		"lease 30s":             func() error { return options(g, httpdedup.Options{Retention: 1e9}) },
		"Options.MaxBody -1":    func() error { return options(g, httpdedup.Options{MaxBody: -1}) },
		`Methods has "GET"`:     func() error { return options(g, httpdedup.Options{Methods: []string{"PUT", "GET"}}) },
		`write "POST"`:          func() error { return options(g, httpdedup.Options{Methods: []string{"post "}}) },
		"Methods is empty":      func() error { return options(g, httpdedup.Options{Methods: []string{}}) },
		`Methods has "OPTIONS"`: func() error { return options(g, httpdedup.Options{Methods: []string{"OPTIONS"}}) },
	} {
		require.ErrorContains(t, make(), wanted)
	}
	require.NoError(t, options(g, httpdedup.Options{Methods: []string{"PUT", "DELETE"}}))
}

func options(g *dedup.Guard, o httpdedup.Options) error {
	_, err := httpdedup.Middleware(g, "shop", user, &o)
	return err
}
