package httpdedup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/idemq/idemq/dedup"
)

// settleTimeout bounds the tries to store an answer, which the client waits for meanwhile.
const settleTimeout = 3 * time.Second

// run lets the handler answer, stores what is to be remembered of that, then sends it.
func (h *guarded) run(w http.ResponseWriter, r *http.Request, c *dedup.Claim) {
	rec := newRecorder(w, h.opts.MaxResponse)
	ctx, cancel := c.Context(r.Context())
	defer cancel()
	defer c.Abandon() // where even writing a verdict panicked, the lease ends
	returned := false
	defer func() {
		if !returned { // a panic, http.ErrAbortHandler too, or runtime.Goexit: it goes on
			h.panicked(ctx, c, rec)
		}
	}()
	h.next.ServeHTTP(rec, r.WithContext(rec.context(ctx)))
	if rec.status == 0 && !rec.hijacked {
		rec.WriteHeader(http.StatusOK) // as net/http says for a handler that writes nothing
	}
	o := h.outcome(rec) // whose Options.Retryable may panic like a handler
	returned = true
	instead := h.remember(ctx, c, o)
	switch {
	case rec.sent():
	case instead != nil:
		rec.undo()
		h.answer(w, r, instead)
	default:
		rec.send()
	}
}

// outcome is what to remember of a handler that has returned.
func (h *guarded) outcome(rec *recorder) dedup.Outcome {
	if !rec.hijacked && !rec.effect.Load() && h.opts.Retryable(rec.status) {
		return dedup.Outcome{State: dedup.Retryable, Cause: fmt.Errorf("status %d", rec.status)}
	}
	a := answer{status: rec.status, header: rec.header, body: rec.body, kept: !rec.sent()}
	result := a.encode(func(name string) bool {
		was, outside := rec.before[name]
		return h.replayed[name] && !(outside && slices.Equal(was, rec.header[name]))
	})
	if int64(len(result)) > h.opts.MaxResponse {
		result = a.tombstone()
	}
	return dedup.Outcome{State: dedup.Done, Result: result}
}

func (a *answer) tombstone() []byte { return (&answer{status: a.status}).encode(nil) }

// panicked writes what becomes of a request whose handler did not return. What was only held back
// is forgotten; where the client has seen the beginning of an answer that would be remembered, the
// effect may have happened, and it is not tried again.
func (h *guarded) panicked(ctx context.Context, c *dedup.Claim, rec *recorder) {
	o := dedup.Outcome{State: dedup.Retryable, Cause: errors.New("panic")}
	switch {
	case rec.hijacked, rec.live && !h.opts.Retryable(rec.status):
		o = dedup.Outcome{State: dedup.Done, Result: (&answer{status: rec.status}).encode(nil)}
	case rec.effect.Load():
		a := answer{
			status: effectDone.status, kept: true, body: effectDone.body(h.opts.DocsURL),
			header: http.Header{"Content-Type": {problemType}},
		}
		o = dedup.Outcome{State: dedup.Done, Result: a.encode(func(string) bool { return true })}
	}
	h.remember(ctx, c, o)
}

// remember stores o, though the client may have gone. Where another owner's word counts, it returns
// that claim, to be answered from; in all other cases this run's own answer is the answer.
func (h *guarded) remember(ctx context.Context, c *dedup.Claim, o dedup.Outcome) (instead *dedup.Claim) {
	ctx = context.WithoutCancel(ctx)
	begun := time.Now()
	err := finish(ctx, c, o) // bounded by the Guard
	if err == nil {
		h.settled(c, o)
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, begun.Add(settleTimeout))
	defer cancel()
	if !errors.Is(err, dedup.ErrSuperseded) {
		err = settle(ctx, c, o, err)
	}
	if errors.Is(err, dedup.ErrSuperseded) {
		c, err = h.guard.Claim(ctx, c.Work)
		switch {
		case err != nil:
		case c.State != dedup.Acquired:
			h.emit("superseded")
			h.giveBack(ctx, c) // nothing to give, unless it is condemned
			return c
		default: // whoever followed has given up, so this word can still count
			err = settle(ctx, c, o, nil)
		}
	}
	if err != nil {
		h.forgo(c, o, err)
		return nil
	}
	h.settled(c, o)
	return nil
}

// settled counts what was stored.
func (h *guarded) settled(c *dedup.Claim, o dedup.Outcome) {
	switch {
	case c.Unprotected():
		h.emit("unprotected")
	case o.State != dedup.Done:
		h.emit("not_remembered")
	case len(o.Result) > 1 && o.Result[1] == tombstone:
		h.emit("answer_not_kept")
	default:
		h.emit("remembered")
	}
}

// forgo leaves a record to its lease, because its verdict could not be stored. The client still gets its answer.
func (h *guarded) forgo(c *dedup.Claim, o dedup.Outcome, err error) {
	if c != nil {
		c.Abandon()
	}
	h.emit("unsettled")
	h.guard.Logger().Error("httpdedup: an answer could not be stored; its key is in progress until the lease ends, and then the request can run again",
		"scope", h.scope, "outcome", o.State.String(), "err", err)
}

// settle writes o, again and again while the store is out of reach, the lease runs and ctx lasts. err is what a
// first try brought. An answer that the store does not take becomes a tombstone: what must not be repeated
// matters more than what was said.
func settle(ctx context.Context, c *dedup.Claim, o dedup.Outcome, err error) error {
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		switch {
		case err == nil || errors.Is(err, dedup.ErrUnavailable) || ctx.Err() != nil:
		case o.State == dedup.Done:
			if a, bad := decode(o.Result); bad == nil {
				o.Result = a.tombstone()
			}
		}
		if err != nil && (!c.Held() || !sleep(ctx, pause)) {
			return err
		}
		if err = finish(ctx, c, o); err == nil || errors.Is(err, dedup.ErrSuperseded) {
			return err
		}
	}
}

func finish(ctx context.Context, c *dedup.Claim, o dedup.Outcome) error {
	if o.State == dedup.Done {
		return c.Complete(ctx, o.Result)
	}
	return c.Fail(ctx, o.Cause)
}

// giveBack releases a claim whose work was not begun; where that fails, its lease ends.
func (h *guarded) giveBack(ctx context.Context, c *dedup.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := c.Release(ctx); err != nil {
		c.Abandon()
		h.guard.Logger().Warn("httpdedup: a claim could not be given back and ends with its lease", "scope", h.scope, "err", err)
	}
}
