package deduptest

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

const (
	long = time.Minute // a lease that no case outlives
	keep = time.Hour   // a retention that no case outlives
)

// outcomes are the states that a Finish may ask for.
var outcomes = []dedup.State{dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned}

// env is one case's Store and what the case does with it. Keys are random, because the Store
// may be a server that others use.
type env struct {
	testing.TB
	ctx   context.Context
	store dedup.Store
	other dedup.Store // on the same data, as another process has it
	conf  Config
}

func newEnv(tb testing.TB, c Config) *env {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	tb.Cleanup(cancel)
	return &env{TB: tb, ctx: ctx, store: c.Open(tb), other: c.Open(tb), conf: c}
}

func newKey() (k dedup.Key) {
	rand.Read(k[:])
	return k
}

func newOwner() (o dedup.Owner) {
	rand.Read(o[:])
	return o
}

// ask is a claim of k by a new owner, with a lease and a retention that no case outlives.
func ask(k dedup.Key) dedup.ClaimRequest {
	return dedup.ClaimRequest{Key: k, Owner: newOwner(), Lease: long, Retention: keep, Holder: "deduptest"}
}

// claim asks for q and returns the answer, which must be one.
func (e *env) claim(q dedup.ClaimRequest) dedup.Verdict {
	e.Helper()
	v := e.claimAll(q)[0]
	require.NoError(e, v.Err, "item of a claim")
	require.NotZero(e, v.State, "a zero verdict is no answer")
	return v
}

func (e *env) claimAll(in ...dedup.ClaimRequest) []dedup.Verdict {
	e.Helper()
	out := make([]dedup.Verdict, len(in))
	require.NoError(e, e.store.Claim(e.ctx, in, out), "Claim")
	return out
}

// acquire claims q, which must be free, and returns the claim as its owner knows it.
func (e *env) acquire(q dedup.ClaimRequest) dedup.Held {
	e.Helper()
	return e.take(q, dedup.Acquired)
}

// take claims q, which must be answered with want: Acquired or Condemned.
func (e *env) take(q dedup.ClaimRequest, want dedup.State) dedup.Held {
	e.Helper()
	v := e.claim(q)
	require.Equal(e, want, v.State, "answer to the claim")
	require.NotZero(e, v.Epoch, "epoch of a claim that acquired")
	return heldOf(q, v)
}

// refuse claims q and requires an answer that does not acquire.
func (e *env) refuse(q dedup.ClaimRequest, want dedup.State) dedup.Verdict {
	e.Helper()
	v := e.claim(q)
	require.Equal(e, want, v.State, "answer to the claim")
	return v
}

// heldOf is what an owner knows of its claim: what it asked and what it was answered.
func heldOf(q dedup.ClaimRequest, v dedup.Verdict) dedup.Held {
	h := dedup.Held{
		ClaimRequest: q, Epoch: v.Epoch, Attempt: v.Attempt, Crashes: v.Crashes,
		Condemned: v.State == dedup.Condemned, LastError: v.LastError,
	}
	h.Redrive = v.Redrive
	return h
}

func (e *env) extend(h dedup.Held) error {
	e.Helper()
	return e.extendAs(dedup.ExtendRequest{Held: h})
}

func (e *env) extendAs(q dedup.ExtendRequest) error {
	e.Helper()
	out := make([]error, 1)
	require.NoError(e, e.store.Extend(e.ctx, []dedup.ExtendRequest{q}, out), "Extend")
	return out[0]
}

// finish ends h as s, with a result and a reason where s has one.
func (e *env) finish(h dedup.Held, s dedup.State) error {
	e.Helper()
	return e.finishAs(finishOf(h, s))
}

func finishOf(h dedup.Held, s dedup.State) dedup.FinishRequest {
	q := dedup.FinishRequest{Held: h, State: s}
	switch s {
	case dedup.Done:
		q.Result = []byte("result")
	case dedup.Retryable, dedup.Failed, dedup.Condemned:
		q.Reason = "reason"
	}
	return q
}

func (e *env) finishAs(q dedup.FinishRequest) error {
	e.Helper()
	out := make([]error, 1)
	require.NoError(e, e.store.Finish(e.ctx, []dedup.FinishRequest{q}, out), "Finish")
	return out[0]
}

// condemn ends h as Condemned and returns it as its owner then knows it.
func (e *env) condemn(h dedup.Held) dedup.Held {
	e.Helper()
	require.NoError(e, e.finish(h, dedup.Condemned), "Finish(Condemned)")
	h.Condemned, h.LastError = true, "reason"
	return h
}

// finished claims k, ends the claim as s and returns it.
func (e *env) finished(k dedup.Key, s dedup.State) dedup.Held {
	e.Helper()
	h := e.acquire(ask(k))
	if s == dedup.Condemned {
		return e.condemn(h)
	}
	require.NoError(e, e.finish(h, s), "Finish(%v)", s)
	return h
}

// lapsed claims q under a lease that is over when lapsed returns.
func (e *env) lapsed(q dedup.ClaimRequest) dedup.Held {
	e.Helper()
	q.Lease = e.conf.Lease
	h := e.acquire(q)
	e.pass()
	return h
}

// letLapse ends the lease of h, which is live, without a word of its owner.
func (e *env) letLapse(h dedup.Held) {
	e.Helper()
	h.Lease = e.conf.Lease
	require.NoError(e, e.extend(h), "Extend by the owner")
	e.pass()
}

// pass lets Config.Lease, and whatever lasts as long, run out.
func (e *env) pass() {
	e.Helper()
	e.conf.Advance(e.TB, e.conf.Lease+max(e.conf.Lease/10, 5*time.Millisecond))
}

func (e *env) superseded(err error, what string, args ...any) {
	e.Helper()
	require.ErrorIs(e, err, dedup.ErrSuperseded, append([]any{what}, args...)...)
}

func (e *env) recordLost(err error, what string, args ...any) {
	e.Helper()
	require.ErrorIs(e, err, dedup.ErrRecordLost, append([]any{what}, args...)...)
}

// record is what the Store remembers of k, where it can be asked; else the zero Record.
func (e *env) record(k dedup.Key) dedup.Record {
	e.Helper()
	a, ok := e.store.(dedup.Admin)
	if !ok {
		return dedup.Record{}
	}
	r, err := a.Inspect(e.ctx, k)
	if errors.Is(err, dedup.ErrNotFound) {
		return dedup.Record{}
	}
	require.NoError(e, err, "Inspect")
	return r
}

// unchanged runs f and requires that what the Store remembers of k stays as it was.
func (e *env) unchanged(k dedup.Key, f func()) {
	e.Helper()
	before := e.record(k)
	f()
	require.Equal(e, before, e.record(k), "what the store remembers of the key changed")
}

// each runs f for every state.
func (e *env) each(states []dedup.State, f func(e *env, s dedup.State)) {
	e.Helper()
	for _, s := range states {
		f(e.note("%v", s), s)
	}
}

// note is e with a prefix to what a failure says: which round of a loop it was.
func (e *env) note(format string, args ...any) *env {
	n := *e
	n.TB = &noted{TB: e.TB, format: format, args: args}
	return &n
}

type noted struct {
	testing.TB
	format string
	args   []any
}

func (n *noted) Errorf(format string, args ...any) {
	n.Helper()
	n.Logf("in the round for "+n.format+":", n.args...)
	n.TB.Errorf(format, args...)
}
