package httpdedup

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Tokens are one-time tokens of one scope, for forms and confirmations. They are safe for concurrent use.
type Tokens struct {
	guard *dedup.Guard
	scope string
	opts  TokenOptions

	mu     sync.Mutex
	window time.Time // when issued began to count
	issued int
}

// TokenOptions tune Tokens; nil is the default.
type TokenOptions struct {
	// TTL is how long a token can be redeemed. Default: 1h.
	TTL time.Duration
	// Memory is how long "used" is told from "unknown". Default: 24h.
	Memory time.Duration
	// Wait lets a second Redeem wait for the first, as after a double click. Default: 0, dedup.ErrInProgress at once.
	Wait time.Duration
	// MaxIssued is how many tokens this process issues within one TTL, so that a flood of requests for
	// forms cannot fill the store. Default: 1,000,000.
	MaxIssued int
}

const (
	defaultTTL       = time.Hour
	defaultMemory    = 24 * time.Hour
	defaultMaxIssued = 1_000_000
)

// Branch on these with errors.Is. Others that Redeem returns are fn's own, dedup.ErrInProgress (another Redeem of the
// token runs) and dedup.ErrUnavailable (the store is out of reach).
var (
	ErrTokenUnknown = errors.New("httpdedup: token unknown or expired") // 403
	ErrTokenUsed    = errors.New("httpdedup: token already used")       // 409
	ErrTokenForeign = errors.New("httpdedup: token of another subject") // 403; not consumed
	ErrTokenLimit   = errors.New("httpdedup: too many tokens issued")   // 429
)

// NewTokens returns the tokens of scope. Processes that share a store share them.
func NewTokens(g *dedup.Guard, scope string, o *TokenOptions) (*Tokens, error) {
	t := &Tokens{guard: g, scope: "token/" + scope}
	if o != nil {
		t.opts = *o
	}
	switch {
	case g == nil:
		return nil, errors.New("httpdedup: NewTokens: the Guard is nil; pass what dedup.New returned")
	case scope == "":
		return nil, errors.New("httpdedup: NewTokens: scope is empty; name the form or the confirmation")
	case t.opts.TTL < 0 || t.opts.Memory < 0 || t.opts.Wait < 0 || t.opts.MaxIssued < 0:
		return nil, fmt.Errorf("httpdedup: NewTokens: TokenOptions.TTL %v, TokenOptions.Memory %v, TokenOptions.Wait %v or TokenOptions.MaxIssued %d is negative",
			t.opts.TTL, t.opts.Memory, t.opts.Wait, t.opts.MaxIssued)
	}
	if t.opts.TTL == 0 {
		t.opts.TTL = defaultTTL
	}
	if t.opts.Memory == 0 {
		t.opts.Memory = max(defaultMemory, t.opts.TTL)
	}
	if t.opts.MaxIssued == 0 {
		t.opts.MaxIssued = defaultMaxIssued
	}
	switch {
	case t.opts.TTL < time.Second:
		return nil, fmt.Errorf("httpdedup: NewTokens: TokenOptions.TTL %v is below 1s: nobody fills in a form that fast; raise it", t.opts.TTL)
	case t.opts.Memory < t.opts.TTL:
		return nil, fmt.Errorf("httpdedup: NewTokens: TokenOptions.Memory %v is below TokenOptions.TTL %v: a token that was used could be redeemed again; raise Memory", t.opts.Memory, t.opts.TTL)
	case t.opts.Memory < g.Options().Lease:
		return nil, fmt.Errorf("httpdedup: NewTokens: TokenOptions.Memory %v is below the Guard's lease %v: the record of a running Redeem could expire; raise Memory", t.opts.Memory, g.Options().Lease)
	}
	return t, nil
}

// A token is 16 random bytes and the second after which it cannot be redeemed, as 28 characters of a URL. The
// store knows its hash only, and forgets it by itself when the TTL is over; the second in the token is for those
// whose record was written again since, by a Redeem that failed. Changed, it is another, unknown token.
const (
	randomBytes = 16
	tokenBytes  = randomBytes + 5
)

var tokenText = base64.RawURLEncoding

// Issue makes a token for subject (a user or session). It takes two round trips.
func (t *Tokens) Issue(ctx context.Context, subject string) (token string, err error) {
	if subject == "" {
		return "", errors.New("httpdedup: issue: subject is empty: anybody could redeem the token; pass the user or the session")
	}
	now := time.Now()
	if !t.mayIssue(now) {
		return "", fmt.Errorf("httpdedup: issue: %w: %d within %v", ErrTokenLimit, t.opts.MaxIssued, t.opts.TTL)
	}
	var b [tokenBytes]byte
	rand.Read(b[:randomBytes])
	var ends [8]byte
	binary.BigEndian.PutUint64(ends[:], uint64(now.Add(t.opts.TTL).Unix()+1))
	copy(b[randomBytes:], ends[3:])
	token = tokenText.EncodeToString(b[:])

	w := t.work(subject, token)
	w.Retention = t.opts.TTL
	w.Lease = min(t.opts.TTL, t.guard.Options().Lease)
	c, err := t.guard.Claim(ctx, w)
	switch {
	case err != nil:
		return "", fmt.Errorf("httpdedup: issue: %w", err)
	case c.Unprotected(): // FailOpen is about work; a token that nobody knows is none
		return "", fmt.Errorf("httpdedup: issue: %w", dedup.ErrUnavailable)
	}
	if err := c.Release(ctx); err != nil {
		c.Abandon()
		return "", fmt.Errorf("httpdedup: issue: %w", err)
	}
	return token, nil
}

// mayIssue counts by windows of one TTL, so at most twice MaxIssued tokens of this process are alive.
func (t *Tokens) mayIssue(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.window) >= t.opts.TTL {
		t.window, t.issued = now, 0
	}
	t.issued++
	return t.issued <= t.opts.MaxIssued
}

// Redeem runs fn if token is subject's and unused. If fn fails or panics the token stays good, for what
// is left of its TTL. If the process dies in fn the token is good again when its lease is over.
//
// fn's ctx ends with cause dedup.ErrLeaseLost when the claim could not be kept.
func (t *Tokens) Redeem(ctx context.Context, subject, token string, fn func(ctx context.Context) error) error {
	ends, ok := expiry(token)
	switch {
	case fn == nil:
		return errors.New("httpdedup: redeem: fn is nil; pass what the token is for")
	case !ok:
		return ErrTokenUnknown
	case subject == "":
		return ErrTokenForeign
	}
	w := t.work(subject, token)
	w.Retention, w.Wait, w.MustExist = t.opts.Memory, t.opts.Wait, true
	ran, err := t.guard.Do(ctx, w, func(ctx context.Context) error {
		switch {
		case dedup.ClaimFrom(ctx).Unprotected(): // nobody knows whether the token is one
			return fmt.Errorf("httpdedup: redeem: %w", dedup.ErrUnavailable)
		case !time.Now().Before(ends):
			return ErrTokenUnknown
		}
		return fn(ctx)
	})
	switch {
	case err == nil && !ran:
		return ErrTokenUsed
	case ran:
		return err
	}
	var refused *dedup.RefusedError
	if errors.As(err, &refused) {
		switch refused.Verdict.State {
		case dedup.Absent:
			return ErrTokenUnknown
		case dedup.Mismatch:
			return ErrTokenForeign
		}
	}
	return fmt.Errorf("httpdedup: redeem: %w", err)
}

// work binds the token to its subject by the fingerprint: another subject's is a mismatch, which consumes nothing.
func (t *Tokens) work(subject, token string) dedup.Work {
	return dedup.Work{
		Scope: t.scope, ID: secretID(token),
		Fingerprint: dedup.FingerprintOf([]byte("token"), []byte(subject)),
	}
}

// expiry reports whether token has the form of one, and when it ends.
func expiry(token string) (time.Time, bool) {
	b, err := tokenText.Strict().DecodeString(token)
	if err != nil || len(b) != tokenBytes {
		return time.Time{}, false
	}
	var ends [8]byte
	copy(ends[3:], b[randomBytes:])
	return time.Unix(int64(binary.BigEndian.Uint64(ends[:])), 0), true
}
