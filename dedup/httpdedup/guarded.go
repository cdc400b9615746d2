package httpdedup

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/idemq/idemq/dedup"
)

// guarded is a handler behind the middleware.
type guarded struct {
	next     http.Handler
	guard    *dedup.Guard
	scope    string
	caller   func(*http.Request) string
	opts     Options
	replayed map[string]bool
}

func (h *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.opts.Methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	r, work, refusal, err := h.identify(r)
	switch {
	case refusal != nil:
		h.refuse(w, *refusal)
	case err != nil:
		h.guard.Logger().Error("httpdedup: a request cannot be guarded", "scope", h.scope, "err", err)
		h.refuse(w, misplaced)
	case work.ID == "":
		h.emit("no_key")
		h.next.ServeHTTP(w, r)
	default:
		h.serve(w, r, work)
	}
}

// identify names the request, or says why it is refused. Whoever is refused for a header has not had the
// body read; whoever is not gets it back whole. A work without an ID is let through.
func (h *guarded) identify(r *http.Request) (*http.Request, dedup.Work, *problem, error) {
	var key string
	if h.opts.Key == nil {
		var err error
		if key, err = headerKey(r.Header, h.opts.Strict); err != nil {
			p := keyInvalid(err)
			return nil, dedup.Work{}, &p, nil
		}
		if p := h.withoutKey(key); p != nil || key == "" {
			return r, dedup.Work{}, p, nil
		}
	}
	who := ""
	if key != "" {
		if who = h.caller(r); who == "" {
			return nil, dedup.Work{}, &callerUnknown, nil
		}
	}
	r, body, refusal, err := readBody(r, h.opts.MaxBody)
	if refusal != nil || err != nil {
		return nil, dedup.Work{}, refusal, err
	}
	if h.opts.Key != nil {
		key = h.opts.Key(r, body)
		if p := h.withoutKey(key); p != nil || key == "" {
			return r, dedup.Work{}, p, nil
		}
		if who = h.caller(r); who == "" {
			return nil, dedup.Work{}, &callerUnknown, nil
		}
	}
	work := dedup.Work{
		Scope: h.scope, ID: secretID(who, key), Retention: h.opts.Retention,
		Fingerprint: h.opts.Fingerprint(r, body),
	}
	if b, ok := r.Body.(*bodyReader); ok {
		b.rest = body // Options.Key and Options.Fingerprint may have read it
	}
	return r, work, nil, nil
}

func (h *guarded) withoutKey(key string) *problem {
	if key == "" && !h.opts.Optional {
		return &keyMissing
	}
	return nil
}

var errBodyGone = errors.New("its body was read before: put the middleware in front of what parses forms")

// readBody reads the body to its end, within limit, and puts it back.
func readBody(r *http.Request, limit int64) (*http.Request, []byte, *problem, error) {
	if r.ContentLength > limit {
		return nil, nil, &bodyTooLarge, nil
	}
	var body []byte
	var err error
	if r.Body != nil && r.Body != http.NoBody {
		body, err = readAll(r.Body, r.ContentLength, limit)
	}
	switch {
	case int64(len(body)) > limit:
		return nil, nil, &bodyTooLarge, nil
	case err != nil:
		return nil, nil, unreadable(err), nil
	case len(body) == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil):
		return nil, nil, nil, errBodyGone
	}
	again := &struct {
		http.Request
		body bodyReader
	}{*r, bodyReader{rest: body}}
	again.Body, again.ContentLength, again.TransferEncoding = http.NoBody, int64(len(body)), nil
	if len(body) > 0 {
		again.Body = &again.body
	}
	return &again.Request, body, nil, nil
}

func unreadable(err error) *problem {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) { // a limit set outside
		return &bodyTooLarge
	}
	return &bodyIncomplete
}

// readAll is io.ReadAll with a first guess, and stops above limit. A client's Content-Length is believed up to
// 64 KiB only. What is left unread net/http reads, if it is little, or closes the connection.
func readAll(r io.Reader, length, limit int64) ([]byte, error) {
	const most = 64 << 10
	b := make([]byte, 0, min(max(length, 511), most)+1)
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF || int64(len(b)) > limit:
			return b, nil
		case err != nil:
			return nil, err
		case len(b) == cap(b):
			b = append(b, 0)[:len(b)]
		}
	}
}

// bodyReader gives a handler the body that was read before it.
type bodyReader struct{ rest []byte }

func (b *bodyReader) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *bodyReader) Close() error {
	b.rest = nil
	return nil
}

// serve asks for the work and does what the answer says.
func (h *guarded) serve(w http.ResponseWriter, r *http.Request, work dedup.Work) {
	c, err := h.claim(r.Context(), work)
	if err != nil {
		if r.Context().Err() == nil {
			h.guard.Logger().Warn("httpdedup: a request is refused, because the store cannot tell whether it is new", "scope", h.scope, "err", err)
		}
		if errors.Is(err, dedup.ErrUnavailable) || r.Context().Err() != nil {
			h.refuse(w, storeDown)
		} else {
			h.refuse(w, recordUnreadable)
		}
		return
	}
	if c.State == dedup.Acquired {
		h.run(w, r, c)
		return
	}
	h.answer(w, r, c)
}

// answer tells the client what is remembered, or why it is refused.
func (h *guarded) answer(w http.ResponseWriter, r *http.Request, c *dedup.Claim) {
	switch c.State {
	case dedup.InProgress:
		h.refuse(w, inProgress)
	case dedup.Mismatch:
		h.refuse(w, otherRequest)
	case dedup.Done:
		a, err := decode(c.Result)
		switch {
		case err != nil:
			h.guard.Logger().Error("httpdedup: a request is refused", "scope", h.scope, "id", c.Work.ID, "err", err)
			h.refuse(w, recordUnreadable)
		case !a.kept:
			h.refuse(w, notKept)
		default:
			h.emit("replayed")
			a.replay(w, r)
		}
	default: // failed for good or on its way there, which is another program's word on this ID
		h.giveBack(r.Context(), c)
		h.refuse(w, notKept)
	}
}

// replay sends the answer again.
func (a *answer) replay(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for n, values := range a.header {
		h[n] = values
	}
	h.Set("Idempotent-Replayed", "true")
	h.Set("Cache-Control", "no-store")
	if r.Header.Get("Origin") != "" {
		h.Add("Access-Control-Expose-Headers", "Idempotent-Replayed")
	}
	w.WriteHeader(a.status)
	if len(a.body) > 0 {
		_, _ = w.Write(a.body) // an error means that the client has gone
	}
}

// Between two questions after a request that is in progress.
const (
	askPause     = 50 * time.Millisecond
	longAskPause = time.Second
)

// claim asks for work, again and again while another request with its key is in progress and
// Options.Wait lasts.
func (h *guarded) claim(ctx context.Context, work dedup.Work) (*dedup.Claim, error) {
	until := time.Now().Add(h.opts.Wait)
	for pause := askPause; ; {
		c, err := h.guard.Claim(ctx, work)
		switch {
		case err != nil:
			return nil, err
		case c.State == dedup.Acquired && !c.Held(): // the answer took longer than the lease
			h.giveBack(ctx, c)
			continue
		case c.State != dedup.InProgress:
			return c, nil
		}
		remaining := time.Until(until)
		if remaining <= 0 || !sleep(ctx, min(pause, remaining, max(c.Left, 10*time.Millisecond))) {
			return c, nil
		}
		pause = min(2*pause, longAskPause)
	}
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (h *guarded) refuse(w http.ResponseWriter, p problem) {
	h.emit(p.reason)
	p.send(w, h.opts.DocsURL)
}

// emit counts one request by what became of it. One that is superseded counts a second time, by the answer it gets instead.
func (h *guarded) emit(cause string) {
	h.guard.Emit(dedup.Event{Name: "request", Scope: h.scope, Cause: cause, N: 1})
}
