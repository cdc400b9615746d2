package httpdedup_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
)

var keyCases = []scenario{
	{"QuotedAndRawFormsNameOneRecord", func(e *env) {
		s := e.site(created, nil)
		s.must(201, `"abc"`, "order")
		require.True(e, s.must(201, "abc", "order").replayed())
		s.ran(1)
	}},
	{"EscapesAreNotPartOfTheKey", func(e *env) {
		s := e.site(created, nil)
		s.must(201, `"a\"b\\c"`, "order")
		r, err := e.record(`a"b\c`)
		require.NoError(e, err)
		require.Equal(e, dedup.Done, r.State)
	}},
	{"WithoutAKeyOptionalRequestsRunUnprotected", func(e *env) {
		s := e.siteOf(e.guardOn(untouched(e), nil), "shop", created, &httpdedup.Options{Optional: true}, nil)
		for range 2 {
			require.False(e, s.must(201, "", "order").replayed())
		}
		s.ran(2)
	}},
	{"KeysOfAnyBytesAndLengthFromElsewhere", func(e *env) {
		s := e.site(created, &httpdedup.Options{
			Key:         func(_ *http.Request, body []byte) string { return string(body) },
			Fingerprint: func(*http.Request, []byte) (f dedup.Fingerprint) { return f },
		})
		long := strings.Repeat("k", 255)
		for i, key := range []string{"\x00", "\xff\xfe", long + strings.Repeat("a", 45), long + strings.Repeat("b", 45), "ключ"} {
			require.False(e, s.must(201, "", key).replayed())
			require.True(e, s.must(201, "", key).replayed())
			s.ran(i + 1)
		}
	}},
	{"ScopesCallersAndKeysDoNotRunTogether", func(e *env) {
		g := e.guard(nil)
		a := e.siteOf(g, "a", created, nil, nil)
		ab := e.siteOf(g, "a:b", created, nil, nil)
		require.False(e, a.must(201, "b:c", "").replayed())
		require.False(e, ab.must(201, "c", "").replayed())
		require.False(e, a.must(201, "2:x", "", with("User", "1")).replayed())
		require.False(e, a.must(201, "x", "", with("User", "1:2")).replayed())
	}},
	{"CallersNeverSeeEachOthersAnswers", func(e *env) {
		s := e.site(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("hello " + user(r))) }, nil)
		for _, u := range []string{"ann", "bob", "ann"} {
			require.Equal(e, "hello "+u, s.must(200, "key-1", "order", with("User", u)).body)
		}
		s.ran(2)
	}},
	{"TwoKeysWithOnePayloadBothRun", func(e *env) {
		s := e.site(created, nil)
		s.must(201, "key-1", "order")
		s.must(201, "key-2", "order")
		s.ran(2)
	}},
}

// untouched fails the test when it is asked anything.
func untouched(e *env) dedup.Store {
	return &deduptest.Faulty{Store: e.store, Before: failing(func(method string) error {
		e.Errorf("the store is asked to %s", method)
		return nil
	})}
}

// problemOf is a problem+json answer taken apart.
func problemOf(t testing.TB, r *reply) map[string]any {
	t.Helper()
	require.Equal(t, "application/problem+json", r.header.Get("Content-Type"))
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	var p map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.body), &p))
	require.EqualValues(t, r.status, p["status"])
	require.NotEmpty(t, p["title"])
	require.NotEmpty(t, p["detail"])
	return p
}

func onMemory(t *testing.T) *env { return &env{T: t, store: memstore.New(), app: "test"} }

func TestMissingKeyIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	e := onMemory(t)
	s := e.siteOf(e.guardOn(untouched(e), nil), "shop", created, &httpdedup.Options{DocsURL: "https://api.example/idempotency"}, nil)
	p := problemOf(t, s.must(400, "", "order"))
	require.Equal(t, "https://api.example/idempotency#key-missing", p["type"])
	require.Equal(t, "Idempotency-Key is missing", p["title"])
	s.ran(0)
}

func TestProblemsWithoutAPageToPointToSayTheStatusOnly(t *testing.T) {
	p := problemOf(t, onMemory(t).site(created, nil).must(400, "", ""))
	require.Equal(t, "about:blank", p["type"])
	require.Equal(t, "Bad Request", p["title"])
	require.Equal(t, "key-missing", p["reason"])
}

func TestMalformedKeysAreRefusedBeforeTheStoreIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string
		strict bool
	}{
		"empty":                       {fields: []string{""}},
		"empty in quotes":             {fields: []string{`""`}},
		"white space only":            {fields: []string{"  "}},
		"control byte":                {fields: []string{"a\x01b"}},
		"control byte in quotes":      {fields: []string{"\"a\x01b\""}},
		"NUL":                         {fields: []string{"a\x00"}},
		"byte beyond ASCII":           {fields: []string{"a\xff"}},
		"byte beyond ASCII in quotes": {fields: []string{"\"a\xff\""}},
		"no closing quote":            {fields: []string{`"abc`}},
		"a quote only":                {fields: []string{`"`}},
		"escaped closing quote":       {fields: []string{`"abc\"`}},
		"bad escape":                  {fields: []string{`"a\b"`}},
		"escape at the end":           {fields: []string{`"a\`}},
		"quote inside":                {fields: []string{`a"b`}},
		"space inside":                {fields: []string{"a b"}},
		"parameter":                   {fields: []string{`"abc";v=1`}},
		"parameter, strict":           {fields: []string{`"abc";v=1`}, strict: true},
		"raw, strict":                 {fields: []string{"abc"}, strict: true},
		"two fields":                  {fields: []string{"abc", "abc"}},
		"two fields joined":           {fields: []string{"abc, abc"}},
		"two fields joined tightly":   {fields: []string{"abc,abc"}},
		"two fields joined, quoted":   {fields: []string{`"abc", "abc"`}},
		"256 bytes":                   {fields: []string{strings.Repeat("k", 256)}},
		"256 bytes in quotes":         {fields: []string{`"` + strings.Repeat("k", 256) + `"`}},
		"10 MB":                       {fields: []string{strings.Repeat("k", 10<<20)}},
	} {
		t.Run(name, func(t *testing.T) {
			e := onMemory(t)
			idempotent, err := httpdedup.Middleware(e.guardOn(untouched(e), nil), "shop", user, &httpdedup.Options{Strict: c.strict})
			require.NoError(t, err)
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader("order"))
			r.Header["Idempotency-Key"] = c.fields
			idempotent(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })).ServeHTTP(w, r)
			p := problemOf(t, &reply{w.Code, w.Header(), w.Body.String()})
			require.Equal(t, 400, w.Code)
			require.Equal(t, "key-invalid", p["reason"])
			require.NotContains(t, w.Body.String(), "kkk", "the key is not repeated")
		})
	}
}

func TestLongestAndStrictKeysAreAccepted(t *testing.T) {
	e := onMemory(t)
	s := e.site(created, nil)
	s.must(201, strings.Repeat("k", 255), "")
	s.must(201, `"`+strings.Repeat("q", 255)+`"`, "")
	s.must(201, `"with space, comma"`, "")
	strict := e.site(created, &httpdedup.Options{Strict: true})
	strict.must(201, `"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "")
}

func TestKeyThatAProxyAddsOnceMoreIsRefused(t *testing.T) {
	e := onMemory(t)
	s := e.site(created, nil)
	target, err := url.Parse(s.URL)
	require.NoError(t, err)
	proxy := &site{e: e, Server: httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Add("Idempotency-Key", r.In.Header.Get("Idempotency-Key"))
	}})}
	t.Cleanup(proxy.Close)
	proxy.must(400, "abc", "order")
	s.ran(0)
}

func TestUnknownCallersAreRefused(t *testing.T) {
	e := onMemory(t)
	idempotent, err := httpdedup.Middleware(e.guardOn(untouched(e), nil), "shop", func(*http.Request) string { return "" }, nil)
	require.NoError(t, err)
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Idempotency-Key", "abc")
	idempotent(http.HandlerFunc(created)).ServeHTTP(w, r)
	require.Equal(t, 403, w.Code)
	require.Equal(t, "caller-unknown", problemOf(t, &reply{w.Code, w.Header(), w.Body.String()})["reason"])
}

func FuzzKeysAreNeverAServerError(f *testing.F) {
	for _, s := range []string{"", `"a"`, `"a\"`, "\x00", "\xff", `"a";b`, "a,b"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	g, err := dedup.New("fuzz", memstore.New(), nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, value string, strict bool) {
		idempotent, err := httpdedup.Middleware(g, "shop", httpdedup.Everyone, &httpdedup.Options{Strict: strict})
		require.NoError(t, err)
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header["Idempotency-Key"] = []string{value}
		idempotent(http.HandlerFunc(created)).ServeHTTP(w, r)
		require.Contains(t, []int{201, 400}, w.Code)
	})
}
