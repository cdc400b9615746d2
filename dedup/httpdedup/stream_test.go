package httpdedup_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/httpdedup"
)

var streamCases = []scenario{
	{"FlushedAnswerArrivesAtOnceAndIsNeverRunAgain", func(e *env) {
		more := make(chan struct{})
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/orders/1")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "a")
			require.NoError(e, http.NewResponseController(w).Flush())
			<-more
			_, _ = io.WriteString(w, "b")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "c")
		}, nil)
		res, err := http.DefaultClient.Do(s.request("abc", "order"))
		require.NoError(e, err)
		defer res.Body.Close()
		require.Equal(e, 201, res.StatusCode)
		require.Equal(e, "/orders/1", res.Header.Get("Location"))
		body := bufio.NewReader(res.Body)
		first, err := body.ReadByte()
		require.NoError(e, err)
		require.Equal(e, byte('a'), first)
		s.mustProblem(409, "in-progress", "abc", "order")
		close(more)
		rest, err := io.ReadAll(body)
		require.NoError(e, err)
		require.Equal(e, "bc", string(rest))
		require.Empty(e, s.mustProblem(409, "answer-not-kept", "abc", "order").header.Get("Retry-After"))
		s.ran(1)
	}},
	{"AnswerOverTheLimitIsSentWholeAndNeverRunAgain", func(e *env) {
		size := 1000
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			for range size / 100 {
				_, _ = io.WriteString(w, strings.Repeat("x", 100))
			}
		}, &httpdedup.Options{MaxResponse: 1000})
		require.Len(e, s.must(200, "over-with-its-header", "").body, 1000)
		s.mustProblem(409, "answer-not-kept", "over-with-its-header", "")
		size = 100_000
		require.Len(e, s.must(200, "far-over", "").body, 100_000)
		s.mustProblem(409, "answer-not-kept", "far-over", "")
		s.ran(2)
		size = 900
		s.must(200, "fits", "")
		require.Len(e, s.must(200, "fits", "").body, 900)
	}},
	{"FailureThatWasFlushedRunsAgain", func(e *env) {
		status := 503
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			w.(http.Flusher).Flush()
		}, nil)
		s.must(503, "abc", "")
		status = 201
		s.must(201, "abc", "")
		s.mustProblem(409, "answer-not-kept", "abc", "")
	}},
	{"AnswerThatBrokeOffIsNeverRunAgain", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler) // as a reverse proxy does whose upstream breaks off
		}, nil)
		_, err := s.try(e.Context(), http.MethodPost, "/orders", "abc", "")
		require.Error(e, err)
		s.mustProblem(409, "answer-not-kept", "abc", "")
		s.ran(1)
	}},
	{"HijackedConnectionIsNeverRunAgain", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			require.NoError(e, err)
			_, err = w.Write([]byte("x"))
			require.ErrorIs(e, err, http.ErrHijacked)
			_, _ = rw.WriteString("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
			_ = rw.Flush()
			_ = conn.Close()
		}, nil)
		require.Equal(e, "hi", s.must(202, "abc", "").body)
		r := s.eventually409("answer-not-kept", "abc")
		require.Equal(e, 409, r.status)
		s.ran(1)
	}},
}

func (s *site) request(key, body string) *http.Request {
	s.e.Helper()
	r, err := http.NewRequestWithContext(s.e.Context(), http.MethodPost, s.URL+"/orders", strings.NewReader(body))
	require.NoError(s.e, err)
	r.Header.Set("Idempotency-Key", key)
	return r
}

func (s *site) mustProblem(status int, reason, key, body string) *reply {
	s.e.Helper()
	r := s.must(status, key, body)
	require.Equal(s.e, reason, problemOf(s.e, r)["reason"])
	return r
}

// eventually409 waits for the reason: a hijacker's client can have its answer before the handler returns.
func (s *site) eventually409(reason, key string) *reply {
	s.e.Helper()
	var r *reply
	require.Eventually(s.e, func() bool {
		r = s.must(409, key, "")
		return problemOf(s.e, r)["reason"] == reason
	}, 10*time.Second, 10*time.Millisecond)
	return r
}

func TestInformationalAnswersPassAndAreNotTheAnswer(t *testing.T) {
	s := onMemory(t).site(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.WriteHeader(201)
	}, nil)
	s.must(201, "abc", "")
	again := s.must(201, "abc", "")
	require.True(t, again.replayed())
	require.Empty(t, again.header.Get("Link"))
}

func TestDeadlinesAndFullDuplexReachTheRealWriter(t *testing.T) {
	s := onMemory(t).site(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Minute)))
		require.NoError(t, c.EnableFullDuplex())
		w.WriteHeader(201)
	}, nil)
	s.must(201, "abc", "")
	require.True(t, s.must(201, "abc", "").replayed(), "none of these makes a stream of it")
}

func TestSwitchingProtocolsIsAStream(t *testing.T) {
	e := onMemory(t)
	s := e.site(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Upgrade", "chat")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_ = conn.Close()
	}, nil)
	res := rawRequest(e, s, "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: abc\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n", false)
	require.Equal(t, 101, res.StatusCode)
	s.eventually409("answer-not-kept", "abc")
}

func TestTrailersReachTheFirstClient(t *testing.T) {
	s := onMemory(t).site(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "abc")
		w.Header().Set("X-Sum", "42")
	}, nil)
	res, err := s.Client().Do(s.request("abc", ""))
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	require.Equal(t, "42", res.Trailer.Get("X-Sum"))
}

func TestHTTP2(t *testing.T) {
	e := onMemory(t)
	idempotent, err := httpdedup.Middleware(e.guard(nil), "shop", user, nil)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/plain", created)
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		require.NoError(t, http.NewResponseController(w).Flush())
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		require.ErrorIs(t, err, http.ErrNotSupported)
		w.WriteHeader(202)
	})
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	s := &site{e: e, Server: httptest.NewUnstartedServer(idempotent(mux))}
	s.EnableHTTP2 = true
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)

	res, err := s.Client().Do(s.request("proto", ""))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 2, res.ProtoMajor)

	require.Equal(t, 201, s.send("POST", "/plain", "a", "x").status)
	again := s.send("POST", "/plain", "a", "x")
	require.True(t, again.replayed())
	require.Equal(t, "created", again.body)
	require.Equal(t, 201, s.send("POST", "/stream", "b", "x").status)
	require.Equal(t, 409, s.send("POST", "/stream", "b", "x").status)
	require.Equal(t, 202, s.send("POST", "/hijack", "c", "x").status)
	require.True(t, s.send("POST", "/hijack", "c", "x").replayed(), "what could not be hijacked is an answer like others")
	for range 2 {
		_, err = s.try(t.Context(), "POST", "/abort", "d", "x")
		require.Error(t, err)
	}
	require.Equal(t, 413, s.send("POST", "/plain", "e", strings.Repeat("x", 1<<20+1)).status)
}
