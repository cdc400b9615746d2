package httpdedup_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/httpdedup"
)

var headerCases = []scenario{
	{"OnlyWhatBelongsToTheAnswerIsReplayed", func(e *env) {
		kept := http.Header{
			"Location": {"/orders/1"}, "Etag": {`"v1"`}, "Content-Type": {"application/json"}, "Content-Language": {"de"},
			"Content-Disposition": {"inline"}, "Last-Modified": {"Mon, 30 Nov 2026 10:00:00 GMT"}, "Link": {"</a>", "</b>"}, "X-Order": {"1"},
			"X-Content-Type-Options": {"nosniff"}, "Content-Security-Policy": {"default-src 'none'"},
		}
		dropped := http.Header{
			"Set-Cookie": {"session=secret", "b=c"}, "Www-Authenticate": {"Basic"}, "Authorization": {"x"}, "Date": {"Mon, 01 Jan 2001 00:00:00 GMT"},
			"Keep-Alive": {"timeout=5"}, "X-Request-Id": {"r-1"}, "Ratelimit-Remaining": {"7"}, "X-Ratelimit-Limit": {"9"}, "X-Other": {"1"}, "Age": {"9"},
		}
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			for _, h := range []http.Header{kept, dropped} {
				for n, v := range h {
					w.Header()[n] = v
				}
			}
			w.WriteHeader(201)
		}, &httpdedup.Options{Headers: []string{"x-order"}})
		first := s.must(201, "abc", "")
		require.Len(e, first.header["Set-Cookie"], 2, "the first client gets everything")
		again := s.must(201, "abc", "")
		require.True(e, again.replayed())
		for n, v := range kept {
			require.Equal(e, v, again.header[n], n)
		}
		for n, v := range dropped {
			require.NotEqual(e, v, again.header[n], n)
		}
	}},
	{"SeveralValuesAndCommasAreReplayedUnsplit", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Link"] = []string{"</a>; rel=x, </b>; rel=y", "</c>; rel=z", ""}
			w.WriteHeader(200)
		}, nil)
		first := s.must(200, "abc", "")
		require.Equal(e, []string{"</a>; rel=x, </b>; rel=y", "</c>; rel=z", ""}, first.header["Link"])
		require.Equal(e, first.header["Link"], s.must(200, "abc", "").header["Link"])
	}},
	{"HeadersAreThoseOfTheMomentTheStatusWasSaid", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/early")
			w.Header().Set("Trailer", "X-Sum")
			_, _ = w.Write([]byte("a"))
			w.Header().Set("Location", "/late")
			w.Header().Set("Etag", `"late"`)
			w.Header().Set("X-Sum", "42")
			w.WriteHeader(500) // superfluous: the status was said by Write
			_, _ = w.Write([]byte("b"))
		}, nil)
		for i := range 2 {
			r := s.must(200, "abc", "")
			require.Equal(e, i == 1, r.replayed())
			require.Equal(e, "ab", r.body)
			require.Equal(e, "/early", r.header.Get("Location"))
			require.Empty(e, r.header.Get("Etag"))
			require.Empty(e, r.header.Get("X-Sum"))
		}
	}},
	{"HandlerThatWritesNothingAnswers200", func(e *env) {
		s := e.site(func(http.ResponseWriter, *http.Request) {}, nil)
		s.must(200, "abc", "")
		require.True(e, s.must(200, "abc", "").replayed())
		s.ran(1)
	}},
	{"StatusesWithoutABodyAreKept", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			_, err := w.Write([]byte("x"))
			require.ErrorIs(e, err, http.ErrBodyNotAllowed)
		}, nil)
		s.must(204, "abc", "")
		require.True(e, s.must(204, "abc", "").replayed())
	}},
	{"RedirectsAreReplayed", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/done", http.StatusSeeOther) }, nil)
		s.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		s.must(303, "abc", "")
		again := s.must(303, "abc", "")
		require.True(e, again.replayed())
		require.Equal(e, "/done", again.header.Get("Location"))
	}},
	{"EncodingInsideIsReplayed", func(e *env) {
		s := e.siteOf(e.guard(nil), "shop", zipped(http.HandlerFunc(created)).ServeHTTP, nil, nil)
		first := s.must(201, "abc", "", with("Accept-Encoding", "gzip"))
		again := s.must(201, "abc", "", with("Accept-Encoding", "gzip"))
		require.True(e, again.replayed())
		require.Equal(e, "gzip", again.header.Get("Content-Encoding"))
		require.Equal(e, "Accept-Encoding", again.header.Get("Vary"))
		require.Equal(e, first.body, again.body)
		require.Equal(e, "created", unzip(e, again.body))
	}},
	{"EncodingOutsideFollowsEachRequest", func(e *env) {
		s := e.siteOf(e.guard(nil), "shop", created, nil, zipped)
		require.Equal(e, "created", unzip(e, s.must(201, "abc", "", with("Accept-Encoding", "gzip")).body))
		plain := s.must(201, "abc", "", with("Accept-Encoding", "identity"))
		require.True(e, plain.replayed())
		require.Equal(e, "created", plain.body)
		require.Empty(e, plain.header.Get("Content-Encoding"))
		require.Equal(e, "created", unzip(e, s.must(201, "abc", "", with("Accept-Encoding", "gzip")).body))
		s.ran(1)
	}},
	{"MarkerIsExposedToBrowsersOfOtherOrigins", func(e *env) {
		s := e.site(created, nil)
		s.must(201, "abc", "")
		require.Empty(e, s.must(201, "abc", "").header.Get("Access-Control-Expose-Headers"))
		require.Equal(e, "Idempotent-Replayed", s.must(201, "abc", "", with("Origin", "https://shop.example")).header.Get("Access-Control-Expose-Headers"))
	}},
}

// zipped encodes what its client accepts encoded.
func zipped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Vary", "Accept-Encoding")
		z := gzip.NewWriter(w)
		next.ServeHTTP(&zipWriter{w, z}, r)
		_ = z.Close()
	})
}

type zipWriter struct {
	http.ResponseWriter
	z io.Writer
}

func (w *zipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

func unzip(e *env, s string) string {
	e.Helper()
	z, err := gzip.NewReader(strings.NewReader(s))
	require.NoError(e, err)
	b, err := io.ReadAll(z)
	require.NoError(e, err)
	return string(b)
}

func TestHeadersThatBelongToOneClientCannotBeChosen(t *testing.T) {
	for _, name := range []string{"Set-Cookie", "set-cookie", "WWW-Authenticate", "Date", "Connection", "Transfer-Encoding", "Content-Length", ""} {
		_, err := httpdedup.Middleware(onMemory(t).guard(nil), "shop", user, &httpdedup.Options{Headers: []string{name}})
		require.ErrorContains(t, err, fmt.Sprintf("%q", http.CanonicalHeaderKey(name)))
	}
}

func TestHandlersSeeHeadersThatWereSetOutside(t *testing.T) {
	e := onMemory(t)
	outside := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Origin")
			next.ServeHTTP(w, r)
		})
	}
	s := e.siteOf(e.guard(nil), "shop", func(w http.ResponseWriter, r *http.Request) { w.Header().Add("Vary", "Accept") }, nil, outside)
	for range 2 {
		require.Equal(t, []string{"Origin", "Accept"}, s.must(200, "abc", "").header["Vary"])
	}
}
