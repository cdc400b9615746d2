package httpdedup_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// stalled is a store as a process sees it that stands still: claims get through, beats do not, and
// verdicts only once it goes on.
func (e *env) stalled() (s dedup.Store, goOn func()) {
	var going atomic.Bool
	return &deduptest.Faulty{Store: e.store, Before: failing(func(method string) error {
		if method == "Extend" || method == "Finish" && !going.Load() {
			return errDown
		}
		return nil
	})}, func() { going.Store(true) }
}

func (e *env) short() *dedup.Options { return &dedup.Options{Lease: shortLease, Logger: quietSlog} }

var crashCases = []scenario{
	{"VanishedOwnerIsFollowedOnceItsLeaseIsOver", func(e *env) {
		store, _ := e.stalled()
		g := newGate(e)
		dead := e.siteOf(e.guardOn(store, e.short()), "shop", g.created, nil, nil)
		ctx, kill := context.WithCancel(e.Context())
		first := dead.inBackground(ctx, "abc", "order")
		<-g.begun
		kill()
		<-first
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", func(w http.ResponseWriter, r *http.Request) {
			require.Equal(e, 1, dedup.ClaimFrom(r.Context()).Crashes)
			created(w, r)
		}, nil, nil)
		begun := time.Now()
		s.mustProblem(409, "in-progress", "abc", "order")
		s.must(422, "abc", "another order")
		require.Equal(e, 201, s.eventually("abc", "order").status)
		require.Less(e, time.Since(begun), time.Minute, "by the lease, not by the retention")
		require.True(e, s.must(201, "abc", "order").replayed())
		s.must(422, "abc", "another order")
		s.ran(1)
	}},
	{"LateOwnerIsAnsweredWithItsSuccessorsWord", func(e *env) {
		store, goOn := e.stalled()
		g := newGate(e)
		late := e.siteOf(e.guardOn(store, e.short()), "shop", func(w http.ResponseWriter, r *http.Request) {
			g.wait()
			<-r.Context().Done()
			require.ErrorIs(e, context.Cause(r.Context()), dedup.ErrLeaseLost)
			w.Header().Set("Set-Cookie", "late")
			http.Error(w, "late", http.StatusTeapot)
		}, nil, nil)
		first := late.inBackground(e.Context(), "abc", "order")
		<-g.begun
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", created, nil, nil)
		require.Equal(e, 201, s.eventually("abc", "order").status)
		goOn()
		g.letGo()
		r := <-first
		require.Equal(e, 201, r.status, r.body)
		require.True(e, r.replayed())
		require.Empty(e, r.header.Get("Set-Cookie"))
		require.Equal(e, "created", s.must(201, "abc", "order").body, "and that is what stays")
	}},
	{"LateOwnerWhomNobodyFollowedIsRemembered", func(e *env) {
		store, goOn := e.stalled()
		lost := make(chan struct{})
		late := e.siteOf(e.guardOn(store, e.short()), "shop", func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(lost)
			goOn()
			created(w, r)
		}, nil, nil)
		require.Equal(e, 201, late.must(201, "abc", "order").status)
		<-lost
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", created, nil, nil)
		require.True(e, s.must(201, "abc", "order").replayed())
		s.ran(0)
	}},
	{"LateOwnerIsToldToWaitWhileItsSuccessorRuns", func(e *env) {
		store, goOn := e.stalled()
		a, b := newGate(e), newGate(e)
		late := e.siteOf(e.guardOn(store, e.short()), "shop", a.created, nil, nil)
		first := late.inBackground(e.Context(), "abc", "order")
		<-a.begun
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", b.created, &httpdedup.Options{Wait: time.Minute}, nil)
		second := s.inBackground(e.Context(), "abc", "order")
		<-b.begun
		goOn()
		a.letGo()
		require.Equal(e, 409, (<-first).status)
		b.letGo()
		require.Equal(e, 201, (<-second).status)
		require.True(e, s.must(201, "abc", "order").replayed())
	}},
	{"RetentionOverTheKeyIsNewAndTheOldOwnerIsNobody", func(e *env) {
		store, goOn := e.stalled()
		g := newGate(e)
		o := &httpdedup.Options{Retention: shortLease}
		late := e.siteOf(e.guardOn(store, e.short()), "shop", func(w http.ResponseWriter, r *http.Request) {
			g.wait()
			http.Error(w, "old life", http.StatusTeapot)
		}, o, nil)
		first := late.inBackground(e.Context(), "abc", "order")
		<-g.begun
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", created, &httpdedup.Options{Retention: time.Minute}, nil)
		require.Equal(e, 201, s.eventually("abc", "order").status)
		goOn()
		g.letGo()
		require.Equal(e, 201, (<-first).status)
		require.Equal(e, "created", s.must(201, "abc", "order").body)
	}},
	{"AnswersAreForgottenWhenTheRetentionIsOver", func(e *env) {
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", created, &httpdedup.Options{Retention: shortLease}, nil)
		s.must(201, "abc", "order")
		require.Eventually(e, func() bool { return !s.must(201, "abc", "order").replayed() }, 20*time.Second, 100*time.Millisecond)
		s.ran(2)
	}},
	{"ClientThatGoesAwayChangesNothing", func(e *env) {
		g := newGate(e)
		s := e.siteOf(e.guardOn(e.store, e.short()), "shop", func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done() // the client's going ends it; the lease is kept all the same
			require.ErrorIs(e, context.Cause(r.Context()), context.Canceled)
			g.created(w, r)
		}, nil, nil)
		ctx, leave := context.WithCancel(e.Context())
		first := s.inBackground(ctx, "abc", "order")
		require.Eventually(e, func() bool { return s.runs.Load() == 1 }, 10*time.Second, time.Millisecond)
		leave()
		require.Nil(e, <-first)
		<-g.begun
		wait := time.After(2 * shortLease)
		for waiting := true; waiting; {
			s.mustProblem(409, "in-progress", "abc", "order")
			select {
			case <-wait:
				waiting = false
			case <-time.After(100 * time.Millisecond):
			}
		}
		g.letGo()
		r := s.eventually("abc", "order")
		require.Equal(e, 201, r.status)
		require.True(e, r.replayed())
		s.ran(1)
	}},
	{"RecordsThatCannotBeReadAreNeitherRunNorAnswered", func(e *env) {
		s := e.siteOf(e.guard(&dedup.Options{Logger: quietSlog}), "shop", created, &httpdedup.Options{
			Fingerprint: func(*http.Request, []byte) (f dedup.Fingerprint) { return f },
		}, nil)
		for name, result := range map[string]string{
			"empty": "", "garbage": "garbage", "another version": "\x02\x01\x00\xc9\x00", "another kind": "\x01\x03\x00\xc9\x00",
			"cut off": "\x01\x01\x00\xc9\x05\x08Locat", "no status": "\x01\x01\x00\x00\x00", "long tombstone": "\x01\x02\x00\xc9x",
			"a count beyond the end": "\x01\x01\x00\xc9\xff\xff\xff\xff\x0f",
		} {
			c, err := e.guard(nil).Claim(e.Context(), httpdedup.WorkOf("shop", "ann", name))
			require.NoError(e, err)
			require.NoError(e, c.Complete(e.Context(), []byte(result)))
			s.mustProblem(500, "record-unreadable", `"`+name+`"`, "")
		}
		s.ran(0)
	}},
	{"AnotherProgramsVerdictIsNoAnswer", func(e *env) {
		s := e.site(created, nil)
		for name, end := range map[string]func(c *dedup.Claim) error{
			"failed": func(c *dedup.Claim) error { return c.FailFinal(e.Context(), errors.New("no")) },
			"condemned": func(c *dedup.Claim) error {
				return errors.Join(c.Condemn(e.Context(), errors.New("no")), c.Release(e.Context()))
			},
		} {
			c, err := e.guard(nil).Claim(e.Context(), httpdedup.WorkOf("shop", "ann", name))
			require.NoError(e, err)
			require.NoError(e, end(c))
			s.mustProblem(409, "answer-not-kept", name, "")
		}
		s.ran(0)
	}},
}

func TestOwnerOfAnAbandonedTakeoverIsRemembered(t *testing.T) {
	e := onMemory(t)
	store, goOn := e.stalled()
	g := newGate(e)
	late := e.siteOf(e.guardOn(store, e.short()), "shop", g.created, nil, nil)
	first := late.inBackground(t.Context(), "abc", "order")
	<-g.begun
	s := e.siteOf(e.guardOn(e.store, e.short()), "shop", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, nil, nil)
	require.Equal(t, 503, s.eventually("abc", "order").status)
	goOn()
	g.letGo()
	r := <-first
	require.Equal(t, 201, r.status)
	require.False(t, r.replayed())
	require.True(t, s.must(201, "abc", "order").replayed(), "its successor has given up, so its word counts")
}

func FuzzStoredAnswersAreReadOrRefused(f *testing.F) {
	f.Add([]byte("\x01\x01\x00\xc9\x01\x08Location\x01\x02/1body"))
	f.Add([]byte("\x01\x02\x00\xc9"))
	f.Fuzz(func(t *testing.T, stored []byte) {
		e := &env{T: t, store: memstore.New(), app: "fuzz"}
		c, err := e.guard(nil).Claim(t.Context(), httpdedup.WorkOf("shop", "ann", "abc"))
		require.NoError(t, err)
		require.NoError(t, c.Complete(t.Context(), stored))
		again, ok := httpdedup.Recode(stored)
		if ok {
			twice, ok := httpdedup.Recode(again)
			require.True(t, ok)
			require.Equal(t, again, twice)
		}
	})
}

func TestClaimAnsweredAfterItsLeaseIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{T: t, store: memstore.New(), app: "test"}
		claims := 0
		slow := &deduptest.Faulty{Store: e.store, After: failing(func(method string) error {
			if method == "Claim" {
				if claims++; claims == 1 {
					time.Sleep(2 * shortLease)
				}
			}
			return nil
		})}
		idempotent, err := httpdedup.Middleware(e.guardOn(slow, e.short()), "shop", user, nil)
		require.NoError(t, err)
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", "abc")
		idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, r.Context().Err(), "no work begins under a lease that is over")
			created(w, r)
		})).ServeHTTP(w, r)
		require.Equal(t, 201, w.Code)
		require.Equal(t, 2, claims)
	})
}
