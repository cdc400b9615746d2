package httpdedup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Options tune Middleware; nil is the default.
type Options struct {
	// Optional lets requests without a key through, unprotected. Default: 400.
	Optional bool
	// Strict accepts only the quoted form of the header that draft-07 has. Default: the raw form too.
	Strict bool
	// Key finds the key elsewhere: in X-Request-Id, a field of the body, a business number with a request
	// number. Empty: there is none. body is the whole request body. Default: the Idempotency-Key header.
	Key func(r *http.Request, body []byte) string
	// Methods are those guarded; others pass, with a key, too. Default: POST, PATCH.
	Methods []string
	// Retention is how long an answer is remembered. Default: the Guard's.
	Retention time.Duration
	// Wait lets a duplicate wait for the first request's answer. Default: 0, 409 at once.
	Wait time.Duration
	// MaxBody bounds the request's body, in bytes; more is 413. Default: 1 MiB.
	MaxBody int64
	// MaxResponse bounds what is kept of an answer, in bytes, headers included. A larger answer is sent, and
	// duplicates of its request get 409. Default: 1 MiB.
	MaxResponse int64
	// Headers are replayed besides the standard ones. Set-Cookie is refused. Default: none.
	Headers []string
	// Retryable says which statuses are not remembered, so that the next try runs. Default: 5xx, 408, 425, 429.
	Retryable func(status int) bool
	// Fingerprint tells a duplicate from another request that wrongly has the same key, which is 422.
	// Default: method, path, query, content type without parameters, body. See [JSONFingerprint]. Multipart bodies
	// need one of their own, which reads the parts: clients separate those by another random boundary at each try.
	Fingerprint func(r *http.Request, body []byte) dedup.Fingerprint
	// DocsURL is where your clients can read these rules: the "type" of problem+json answers, followed by
	// "#" and the reason. Default: "about:blank".
	DocsURL string
}

const (
	defaultMaxBody     = 1 << 20
	defaultMaxResponse = 1 << 20
)

// Middleware guards the routes of one scope. It belongs behind authentication: caller
// names the authenticated client, and two callers never share a key. An empty name is
// refused with 403; for routes without callers say [Everyone].
func Middleware(g *dedup.Guard, scope string, caller func(*http.Request) string, o *Options) (func(http.Handler) http.Handler, error) {
	switch {
	case g == nil:
		return nil, errors.New("httpdedup: Middleware: the Guard is nil; pass what dedup.New returned")
	case scope == "":
		return nil, errors.New("httpdedup: Middleware: scope is empty; name the group of routes, such as \"payments\"")
	case caller == nil:
		return nil, errors.New("httpdedup: Middleware: caller is nil: clients would be answered with each other's answers; pass a function that names the authenticated client, or Everyone")
	}
	opts := Options{}
	if o != nil {
		opts = *o
	}
	if err := opts.complete(g.Options()); err != nil {
		return nil, err
	}
	replayed, err := replayedHeaders(opts.Headers)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		return &guarded{next: next, guard: g, scope: workScope(scope), caller: caller, opts: opts, replayed: replayed}
	}, nil
}

// complete fills in the defaults and refuses what contradicts itself. g are the Guard's options.
func (o *Options) complete(g dedup.Options) error {
	switch {
	case o.Strict && o.Key != nil:
		return errors.New("httpdedup: Middleware: Options.Strict is about the header, which Options.Key replaces; leave one of them unset")
	case o.Retention < 0 || o.Wait < 0:
		return fmt.Errorf("httpdedup: Middleware: Options.Retention %v or Options.Wait %v is negative", o.Retention, o.Wait)
	case o.MaxBody < 0 || o.MaxResponse < 0:
		return fmt.Errorf("httpdedup: Middleware: Options.MaxBody %d or Options.MaxResponse %d is negative; leave them zero for 1 MiB", o.MaxBody, o.MaxResponse)
	case o.Retention != 0 && o.Retention < g.Lease:
		return fmt.Errorf("httpdedup: Middleware: Options.Retention %v is below the Guard's lease %v: the record of a running request could expire; raise Options.Retention", o.Retention, g.Lease)
	}
	if o.Methods != nil && len(o.Methods) == 0 {
		return errors.New("httpdedup: Middleware: Options.Methods is empty, so nothing would be guarded; leave it nil for POST and PATCH")
	}
	for _, m := range o.Methods {
		if upper := strings.ToUpper(strings.TrimSpace(m)); m != upper {
			return fmt.Errorf("httpdedup: Middleware: Options.Methods has %q, which no request has for a method; write %q", m, upper)
		}
		switch m {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "":
			return fmt.Errorf("httpdedup: Middleware: Options.Methods has %q: a method that changes nothing needs no key, and its answers are not to be remembered; leave it out", m)
		}
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Methods = slices.Clone(o.Methods)
	if o.MaxBody == 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.MaxResponse == 0 {
		o.MaxResponse = defaultMaxResponse
	}
	if o.Retryable == nil {
		o.Retryable = retryable
	}
	if o.Fingerprint == nil {
		o.Fingerprint = fingerprint
	}
	return nil
}

// retryable are the statuses that say "not now": what failed so may succeed when tried again.
func retryable(status int) bool {
	return status >= 500 || status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == http.StatusTooManyRequests
}

// replayedHeaders are the names of what is remembered of an answer, in canonical form. Everything else
// belongs to one connection, one moment or one client: cookies, dates, request IDs, rate limits.
func replayedHeaders(more []string) (map[string]bool, error) {
	names := make(map[string]bool)
	for _, n := range []string{
		"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location",
		"Location", "Etag", "Last-Modified", "Link", "Vary", "X-Content-Type-Options", "Content-Security-Policy",
	} {
		names[n] = true
	}
	for _, n := range more {
		n = http.CanonicalHeaderKey(strings.TrimSpace(n))
		switch n {
		case "Set-Cookie", "Set-Cookie2", "Www-Authenticate", "Proxy-Authenticate", "Connection", "Keep-Alive", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Content-Length", "Date", "":
			return nil, fmt.Errorf("httpdedup: Middleware: Options.Headers has %q, which belongs to one client or one connection and is never replayed; leave it out", n)
		}
		names[n] = true
	}
	return names, nil
}

// Everyone is the caller of routes where all clients share one space of keys.
func Everyone(*http.Request) string { return "*" }

// EffectDone tells the middleware, from inside a handler, that the effect has happened:
// whatever the handler answers from here on is remembered, 5xx and panics included.
// Outside a guarded request it does nothing. It may be called from any goroutine.
func EffectDone(ctx context.Context) {
	if rec, ok := ctx.Value(recorderKey{}).(*recorder); ok {
		rec.effect.Store(true)
	}
}

// WorkOf is the name under which the Guard knows a request, for [dedup.Guard.Inspect] and
// [dedup.Guard.Forget]: scope as given to Middleware, what caller answered, and the key without quotes.
func WorkOf(scope, caller, key string) dedup.Work {
	return dedup.Work{Scope: workScope(scope), ID: secretID(caller, key)}
}

// workScope keeps the routes of an application apart from its other work, consumers' and tokens'.
func workScope(scope string) string { return "http/" + scope }
