package httpdedup

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
)

// recorder is the ResponseWriter of a guarded handler. It holds the answer back until it is stored. Where
// that cannot be (the handler flushes, hijacks, or writes too much) it goes live: what was held
// back is sent, and the rest passes through.
//
// Like any ResponseWriter it is for one goroutine, but for effect.
type recorder struct {
	w      http.ResponseWriter
	limit  int64
	before http.Header // what was set outside: it is set there again for a replay
	effect atomic.Bool // EffectDone was called

	status   int         // 0: not yet said
	header   http.Header // as it was when the status was said: what is set later is not in the answer
	body     []byte
	live     bool
	hijacked bool

	ctx handlerContext
}

// context is what the handler runs in, within parent.
func (r *recorder) context(parent context.Context) context.Context {
	r.ctx = handlerContext{parent, r}
	return &r.ctx
}

type recorderKey struct{}

// handlerContext is a handler's context, in which EffectDone finds the recorder.
type handlerContext struct {
	context.Context
	rec *recorder
}

func (c *handlerContext) Value(key any) any {
	if key == (recorderKey{}) {
		return c.rec
	}
	return c.Context.Value(key)
}

func newRecorder(w http.ResponseWriter, limit int64) *recorder {
	r := &recorder{w: w, limit: limit}
	if h := w.Header(); len(h) > 0 {
		r.before = maps.Clone(h)
	}
	return r
}

// Header is the real one, so that handlers see what was set outside.
func (r *recorder) Header() http.Header { return r.w.Header() }

// Unwrap lets http.ResponseController reach deadlines and full duplex.
func (r *recorder) Unwrap() http.ResponseWriter { return r.w }

func (r *recorder) WriteHeader(status int) {
	switch {
	case r.status != 0 || r.hijacked:
		return
	case status < 100 || status > 999: // as net/http does, and now: later it would be in the record
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case status < 200 && status != http.StatusSwitchingProtocols: // informational: others follow
		r.w.WriteHeader(status)
		return
	}
	r.status, r.header = status, r.w.Header().Clone()
	if status == http.StatusSwitchingProtocols {
		r.goLive()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	if err := r.beginWrite(len(p)); err != nil {
		return 0, err
	}
	if r.live {
		return r.w.Write(p)
	}
	r.body = append(r.body, p...)
	return len(p), nil
}

// WriteString spares the copy that io.WriteString would make.
func (r *recorder) WriteString(s string) (int, error) {
	if err := r.beginWrite(len(s)); err != nil {
		return 0, err
	}
	if r.live {
		return r.w.Write([]byte(s))
	}
	r.body = append(r.body, s...)
	return len(s), nil
}

func (r *recorder) beginWrite(n int) error {
	if r.hijacked {
		return http.ErrHijacked
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.status == http.StatusNoContent || r.status == http.StatusNotModified {
		return http.ErrBodyNotAllowed
	}
	if !r.live && int64(len(r.body))+int64(n) > r.limit {
		r.goLive()
	}
	return nil
}

// Flush implements http.Flusher.
func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError is what http.ResponseController calls: the handler wants its client to see something now.
func (r *recorder) FlushError() error {
	if r.hijacked {
		return http.ErrHijacked
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.goLive()
	return http.NewResponseController(r.w).Flush()
}

// Hijack implements http.Hijacker.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.w).Hijack()
	r.hijacked = r.hijacked || err == nil
	return conn, rw, err
}

// sent reports that the client has seen something of the answer.
func (r *recorder) sent() bool { return r.live || r.hijacked }

func (r *recorder) goLive() {
	if !r.live {
		r.live = true
		r.send()
		r.body = nil
	}
}

// undo takes back the handler's header, for another answer in place of its own. Nothing has been sent yet.
func (r *recorder) undo() {
	h := r.w.Header()
	clear(h)
	maps.Copy(h, r.before)
}

// send writes what was held back, with the header as it was. Fields set since then are put
// back, because net/http looks for trailers among them.
func (r *recorder) send() {
	h := r.w.Header()
	var late http.Header
	if !maps.EqualFunc(h, r.header, slices.Equal) {
		late = maps.Clone(h)
		clear(h)
		maps.Copy(h, r.header)
	}
	r.w.WriteHeader(r.status)
	if len(r.body) > 0 {
		_, _ = r.w.Write(r.body) // an error means that the client has gone
	}
	if late != nil {
		clear(h)
		maps.Copy(h, late)
	}
}
