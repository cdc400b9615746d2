package httpdedup_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
)

var requestCases = []scenario{
	{"AnotherRequestUnderTheKeyIsRefused", func(e *env) {
		s := e.site(created, nil)
		s.must(201, "abc", `{"amount":1}`, with("Content-Type", "application/json"))
		for name, r := range map[string]*reply{
			"method":       s.send(http.MethodPatch, "/orders", "abc", `{"amount":1}`, with("Content-Type", "application/json")),
			"path":         s.send(http.MethodPost, "/refunds", "abc", `{"amount":1}`, with("Content-Type", "application/json")),
			"query":        s.send(http.MethodPost, "/orders?n=2", "abc", `{"amount":1}`, with("Content-Type", "application/json")),
			"body":         s.post("abc", `{"amount":2}`, with("Content-Type", "application/json")),
			"empty body":   s.post("abc", "", with("Content-Type", "application/json")),
			"content type": s.post("abc", `{"amount":1}`, with("Content-Type", "text/plain")),
		} {
			require.Equal(e, 422, r.status, name)
			require.Equal(e, "key-reused", problemOf(e, r)["reason"])
		}
		require.True(e, s.must(201, "abc", `{"amount":1}`, with("Content-Type", "Application/JSON; charset=utf-8")).replayed())
		s.ran(1)
	}},
	{"AnotherPathIsAnotherRequestThoughARouterStripsWhatTheyDifferIn", func(e *env) {
		g := e.guard(&dedup.Options{Logger: quietSlog})
		strip := func(next http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/charges/", http.StripPrefix("/charges", next))
			mux.Handle("/refunds/", http.StripPrefix("/refunds", next))
			return mux
		}
		s := e.siteOf(g, "shop", created, nil, strip)
		require.Equal(e, 201, s.send(http.MethodPost, "/charges/42", "abc", "10").status)
		require.Equal(e, 422, s.send(http.MethodPost, "/refunds/42", "abc", "10").status)
		require.True(e, s.send(http.MethodPost, "/charges/42", "abc", "10").replayed())
		s.ran(1)
	}},
	{"AnotherRequestIsRefusedWhileTheFirstStillRuns", func(e *env) {
		g := newGate(e)
		s := e.site(g.created, nil)
		first := s.inBackground(e.Context(), "abc", "order 1")
		<-g.begun
		r := s.must(422, "abc", "order 2")
		require.Empty(e, r.header.Get("Retry-After"), "waiting cannot help")
		g.letGo()
		require.Equal(e, 201, (<-first).status)
		s.ran(1)
	}},
	{"AnotherRequestIsRefusedAfterTheFirstFailed", func(e *env) {
		status := 503
		s := e.site(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }, nil)
		s.must(503, "abc", "order 1")
		s.must(422, "abc", "order 2")
		status = 201
		s.must(201, "abc", "order 1")
		s.ran(2)
	}},
	{"EqualJSONIsTheSameRequestWhereThatWasChosen", func(e *env) {
		bytewise := e.site(created, nil)
		bytewise.must(201, "bytes", `{"a":1,"b":[2,{"c":3}]}`)
		bytewise.must(422, "bytes", `{"b": [2, {"c":3}], "a": 1}`)
		s := e.site(created, &httpdedup.Options{Fingerprint: httpdedup.JSONFingerprint})
		s.must(201, "json", `{"a":1,"b":[2,{"c":3}]}`)
		require.True(e, s.must(201, "json", "{\"b\": [2, {\"c\":3}],\n \"a\": 1}").replayed())
		s.must(422, "json", `{"b":[{"c":3},2],"a":1}`)
		s.must(422, "json", `{"b":[2,{"c":3}],"a":1.0}`)
		s.ran(1)
	}},
	{"BodyIsReadOnceAndTheHandlerGetsItWhole", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%d %d %v %v", len(b), r.ContentLength, r.TransferEncoding, err)
		}, nil)
		body := strings.Repeat("0123456789", 20_000)
		chunked := func(r *http.Request) { r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader(body)) }
		require.Equal(e, "200000 200000 [] <nil>", s.must(200, "abc", "", chunked).body)
		require.True(e, s.must(200, "abc", body).replayed(), "how the body was sent does not count")
		require.Equal(e, "0 0 [] <nil>", s.must(200, "empty", "").body)
	}},
	{"BodyOverTheLimitIsRefusedBeforeExecution", func(e *env) {
		s := e.site(created, &httpdedup.Options{MaxBody: 1000})
		s.must(201, "fits", strings.Repeat("x", 1000))
		require.Equal(e, "body-too-large", problemOf(e, s.must(413, "abc", strings.Repeat("x", 1001)))["reason"])
		s.must(413, "abc", "", func(r *http.Request) {
			r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader(strings.Repeat("x", 1001)))
		})
		s.ran(1)
		e.noRecord("abc")
	}},
	{"RefusalOfALongBodyLeavesTheConnectionOpen", func(e *env) {
		g := newGate(e)
		s := e.site(g.created, nil)
		body := strings.Repeat("x", 400<<10)
		first := s.inBackground(e.Context(), "abc", body)
		<-g.begun
		reused := false
		connection := func(r *http.Request) {
			*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
			}))
		}
		require.Eventually(e, func() bool { // a client that is slow to note that it has sent all takes a new one
			s.must(409, "abc", body, connection)
			return reused
		}, 20*time.Second, time.Millisecond)
		g.letGo()
		require.Equal(e, 201, (<-first).status)
	}},
	{"TruncatedBodyIsRefusedAndLeavesNoRecord", func(e *env) {
		s := e.site(created, nil)
		for _, request := range []string{
			"Content-Length: 10\r\n\r\nabc",
			"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
			"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		} {
			res := rawRequest(e, s, "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: abc\r\n"+request, true)
			require.Equal(e, 400, res.StatusCode)
		}
		s.ran(0)
		e.noRecord("abc")
	}},
	{"MethodsThatChangeNothingPass", func(e *env) {
		s := e.site(created, nil)
		s.must(201, "abc", "order")
		for i, m := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodGet} {
			require.False(e, s.send(m, "/orders", "abc", "").replayed())
			s.send(m, "/orders", "", "")
			s.ran(3 + 2*i)
		}
		s.send(http.MethodGet, "/orders", "new", "")
		e.noRecord("new")
	}},
	{"WhoMayNoLongerAskIsNotAnswered", func(e *env) {
		allowed := true
		authorise := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !allowed {
					http.Error(w, "no", http.StatusForbidden)
					return
				}
				next.ServeHTTP(w, r)
			})
		}
		s := e.siteOf(e.guard(nil), "shop", created, nil, authorise)
		s.must(201, "abc", "order")
		allowed = false
		r := s.must(403, "abc", "order")
		require.NotContains(e, r.body, "created")
	}},
}

// rawRequest sends text, ends the sending half if it is cut off, and returns the answer's head.
func rawRequest(e *env, s *site, text string, cutOff bool) *http.Response {
	e.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(e, err)
	defer conn.Close()
	_, err = conn.Write([]byte(text))
	require.NoError(e, err)
	if cutOff {
		require.NoError(e, conn.(*net.TCPConn).CloseWrite())
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(e, err)
	require.NoError(e, res.Body.Close())
	return res
}

func TestKeyFromElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		key  func(r *http.Request, body []byte) string
		send edit
	}{
		"X-Request-Id": {func(r *http.Request, _ []byte) string { return r.Header.Get("X-Request-Id") }, with("X-Request-Id", "r-1")},
		"a form's field, which reads the body": {
			func(r *http.Request, _ []byte) string { return r.FormValue("request") }, with("Content-Type", "application/x-www-form-urlencoded"),
		},
		"business number and request number": {
			func(r *http.Request, body []byte) string {
				n := r.Header.Get("Request-Number")
				if n == "" {
					return ""
				}
				return string(body[:5]) + "/" + n
			}, with("Request-Number", "7"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := onMemory(t).site(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
			}, &httpdedup.Options{Key: c.key})
			const body = "order=1&request=2"
			require.Equal(t, body, s.must(200, "", body, c.send).body, "the handler still gets the body")
			require.True(t, s.must(200, "", body, c.send).replayed())
			s.must(400, "the header does not count", "no-key")
			s.ran(1)
		})
	}
}

func TestBodyThatWasReadBeforeIsAnErrorOfTheProgram(t *testing.T) {
	e := onMemory(t)
	parse := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			next.ServeHTTP(w, r)
		})
	}
	g := e.guard(&dedup.Options{Logger: quietSlog})
	s := e.siteOf(g, "shop", created, nil, parse)
	s.must(500, "abc", "a=1", with("Content-Type", "application/x-www-form-urlencoded"))
	s.ran(0)
}

func TestFingerprintIsTheSameWhicheverWayARequestCame(t *testing.T) {
	of := func(target, sent string) dedup.Fingerprint {
		r := httptest.NewRequest(http.MethodPost, target, nil)
		r.RequestURI = sent
		return httpdedup.JSONFingerprint(r, nil)
	}
	require.Equal(t, of("/orders?a=1", "/orders?a=1"), of("/orders?a=1", "http://shop.example/orders?a=1"))
	require.NotEqual(t, of("/42", "/orders/42"), of("/42", "http://shop.example/refunds/42"))
	require.Equal(t, of("/", "/"), of("/", "http://shop.example"))
	require.NotEqual(t, of("/42", "/orders/42"), of("/42", "/orders/a://b/42"))
}

func TestJSONFingerprintComparesWhatHasNoCanonicalFormByteByByte(t *testing.T) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "/", nil)
	require.NoError(t, err)
	for _, pair := range [][2]string{
		{`{"a":1,"a":2}`, `{"a":2,"a":1}`},
		{`{"Amount":1,"amount":2}`, `{"amount":2,"Amount":1}`},
		{`{"a":"\ud800"}`, `{"a":"\ud801"}`},
		{"{\"a\":\"\xff\"}", "{\"a\":\"\xfe\"}"},
		{`{"a":1}`, `{"a":1`},
		{`{"a":1}`, `{"a":1}{}`},
		{`{"a":[1,2]}`, `{"a":[2,1]}`},
		{`{"a":[1,[2]]}`, `{"a":[[1],2]}`},
		{`{"a":null}`, `{}`},
		{`1`, `1.0`},
		{`"1"`, `1`},
		{`["a","b"]`, `["a,b"]`},
		{``, ` `},
	} {
		require.NotEqual(t, httpdedup.JSONFingerprint(r, []byte(pair[0])), httpdedup.JSONFingerprint(r, []byte(pair[1])), "%s %s", pair[0], pair[1])
	}
	for _, pair := range [][2]string{
		{`{"a":1,"b":{"c":[true,null],"d":"x"}}`, "{ \"b\" : {\"d\":\"\\u0078\",\t\"c\":[true ,null]}, \"a\":1}\n"},
		{`[]`, ` [ ] `},
	} {
		require.Equal(t, httpdedup.JSONFingerprint(r, []byte(pair[0])), httpdedup.JSONFingerprint(r, []byte(pair[1])), "%s %s", pair[0], pair[1])
	}
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	require.NotEqual(t, httpdedup.JSONFingerprint(r, []byte(deep)), httpdedup.JSONFingerprint(r, []byte(" "+deep)))
}

func TestEndlessBodyIsReadLittleBeyondTheLimit(t *testing.T) {
	e := onMemory(t)
	idempotent, err := httpdedup.Middleware(e.guardOn(untouched(e), nil), "shop", user, &httpdedup.Options{MaxBody: 10_000})
	require.NoError(t, err)
	body := &endless{}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", body)
	r.ContentLength = -1
	r.Header.Set("Idempotency-Key", "abc")
	idempotent(http.HandlerFunc(created)).ServeHTTP(w, r)
	require.Equal(t, 413, w.Code)
	require.Less(t, body.read, 50_000)
}

type endless struct{ read int }

func (b *endless) Read(p []byte) (int, error) {
	if b.read += len(p); b.read > 10<<20 {
		return 0, io.ErrUnexpectedEOF
	}
	return len(p), nil
}
