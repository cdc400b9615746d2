package httpdedup_test

import (
	"context"
	"encoding/base64"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/memstore"
)

var errCard = errors.New("card refused")

func (e *env) tokens(g *dedup.Guard, o *httpdedup.TokenOptions) *httpdedup.Tokens {
	e.Helper()
	t, err := httpdedup.NewTokens(g, "checkout", o)
	require.NoError(e, err)
	return t
}

func issue(tb testing.TB, t *httpdedup.Tokens, subject string) string {
	tb.Helper()
	token, err := t.Issue(tb.Context(), subject)
	require.NoError(tb, err)
	return token
}

// redeem redeems with a fn that succeeds, and reports whether it ran.
func redeem(tb testing.TB, t *httpdedup.Tokens, subject, token string) (ran bool, err error) {
	tb.Helper()
	err = t.Redeem(tb.Context(), subject, token, func(context.Context) error { ran = true; return nil })
	return ran, err
}

var tokenCases = []scenario{
	{"TokenIsRedeemedOnce", func(e *env) {
		t := e.tokens(e.guard(nil), nil)
		token := issue(e, t, "ann")
		ran, err := redeem(e, t, "ann", token)
		require.NoError(e, err)
		require.True(e, ran)
		for range 2 {
			ran, err = redeem(e, t, "ann", token)
			require.ErrorIs(e, err, httpdedup.ErrTokenUsed)
			require.False(e, ran)
		}
	}},
	{"OfManyAtOnceOneWins", func(e *env) {
		for _, o := range []*httpdedup.TokenOptions{nil, {Wait: time.Minute}} {
			a, b := e.tokens(e.guard(nil), o), e.tokens(e.guard(nil), o)
			token := issue(e, a, "ann")
			var won, lost atomic.Int64
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					err := []*httpdedup.Tokens{a, b}[i%2].Redeem(e.Context(), "ann", token, func(context.Context) error { won.Add(1); return nil })
					if errors.Is(err, httpdedup.ErrTokenUsed) || o == nil && errors.Is(err, dedup.ErrInProgress) {
						lost.Add(1)
					}
				})
			}
			all.Wait()
			require.Equal(e, int64(1), won.Load())
			require.Equal(e, int64(7), lost.Load())
		}
	}},
	{"UnknownTokensAreToldApartAndStayUnknown", func(e *env) {
		t := e.tokens(e.guard(nil), nil)
		other, err := httpdedup.NewTokens(e.guard(nil), "another form", nil)
		require.NoError(e, err)
		token := issue(e, other, "ann")
		for range 3 {
			for _, unknown := range []string{token, "", "abc", token + "A", token[1:], "_" + token[1:]} {
				ran, err := redeem(e, t, "ann", unknown)
				require.ErrorIs(e, err, httpdedup.ErrTokenUnknown)
				require.NotErrorIs(e, err, httpdedup.ErrTokenUsed)
				require.False(e, ran)
			}
		}
		ran, err := redeem(e, other, "ann", token)
		require.NoError(e, err)
		require.True(e, ran)
	}},
	{"ForeignTokensAreToldApartAndNotConsumed", func(e *env) {
		t := e.tokens(e.guard(nil), nil)
		token := issue(e, t, "ann")
		for _, subject := range []string{"bob", ""} {
			ran, err := redeem(e, t, subject, token)
			require.ErrorIs(e, err, httpdedup.ErrTokenForeign)
			require.False(e, ran)
		}
		ran, err := redeem(e, t, "ann", token)
		require.NoError(e, err)
		require.True(e, ran)
		_, err = redeem(e, t, "bob", token)
		require.ErrorIs(e, err, httpdedup.ErrTokenForeign, "used or not is not for others to know")
	}},
	{"TwoTabsHaveTwoTokens", func(e *env) {
		t := e.tokens(e.guard(nil), nil)
		first, second := issue(e, t, "ann"), issue(e, t, "ann")
		require.NotEqual(e, first, second)
		for _, token := range []string{second, first} {
			ran, err := redeem(e, t, "ann", token)
			require.NoError(e, err)
			require.True(e, ran)
		}
	}},
	{"FailedRedeemLeavesTheTokenGood", func(e *env) {
		t := e.tokens(e.guard(nil), nil)
		token := issue(e, t, "ann")
		for range 2 {
			require.ErrorIs(e, t.Redeem(e.Context(), "ann", token, func(context.Context) error { return errCard }), errCard)
		}
		require.PanicsWithValue(e, "boom", func() {
			_ = t.Redeem(e.Context(), "ann", token, func(context.Context) error { panic("boom") })
		})
		_, err := redeem(e, t, "bob", token)
		require.ErrorIs(e, err, httpdedup.ErrTokenForeign)
		ran, err := redeem(e, t, "ann", token)
		require.NoError(e, err)
		require.True(e, ran)
	}},
	{"TokensExpireByTheStoreAlone", func(e *env) {
		g := e.guard(nil)
		t := e.tokens(g, &httpdedup.TokenOptions{TTL: time.Second})
		token := issue(e, t, "ann")
		require.Eventually(e, func() bool {
			_, err := redeem(e, t, "bob", token)
			return errors.Is(err, httpdedup.ErrTokenUnknown)
		}, 20*time.Second, 50*time.Millisecond, "bob's tries change nothing")
		ran, err := redeem(e, t, "ann", token)
		require.ErrorIs(e, err, httpdedup.ErrTokenUnknown)
		require.False(e, ran)
	}},
	{"SecondRedeemIsToldThatTheFirstRuns", func(e *env) {
		t := e.tokens(e.guard(nil), nil)
		token := issue(e, t, "ann")
		require.NoError(e, t.Redeem(e.Context(), "ann", token, func(context.Context) error {
			ran, err := redeem(e, t, "ann", token)
			require.ErrorIs(e, err, dedup.ErrInProgress)
			require.False(e, ran)
			_, err = redeem(e, t, "bob", token)
			require.ErrorIs(e, err, httpdedup.ErrTokenForeign)
			return nil
		}))
	}},
	{"TokenOfAVanishedProcessIsGoodAgainAfterItsLease", func(e *env) {
		store, _ := e.stalled()
		dead := e.tokens(e.guardOn(store, e.short()), nil)
		t := e.tokens(e.guardOn(e.store, e.short()), nil)
		token := issue(e, t, "ann")
		begun, kill := make(chan struct{}), make(chan struct{})
		var gone sync.WaitGroup
		gone.Go(func() {
			_ = dead.Redeem(e.Context(), "ann", token, func(ctx context.Context) error {
				close(begun)
				<-kill
				return nil
			})
		})
		<-begun
		_, err := redeem(e, t, "ann", token)
		require.ErrorIs(e, err, dedup.ErrInProgress)
		require.Eventually(e, func() bool { ran, err := redeem(e, t, "ann", token); return ran && err == nil }, 20*time.Second, 100*time.Millisecond)
		close(kill)
		gone.Wait()
	}},
	{"StoreDownNoTokenIsIssuedOrRedeemed", func(e *env) {
		for _, open := range []bool{false, true} {
			o := e.outage("", false)
			t := e.tokens(e.guardOn(o, &dedup.Options{FailOpen: open, Logger: quietSlog}), nil)
			token := issue(e, t, "ann")
			o.down.Store(true)
			_, err := t.Issue(e.Context(), "ann")
			require.ErrorIs(e, err, dedup.ErrUnavailable)
			ran, err := redeem(e, t, "ann", token)
			require.ErrorIs(e, err, dedup.ErrUnavailable, "FailOpen is not for tokens: anything would be one")
			require.False(e, ran)
			o.down.Store(false)
			ran, err = redeem(e, t, "ann", token)
			require.NoError(e, err)
			require.True(e, ran)
		}
	}},
}

func TestTokensAreLongRandomAndFitIntoAForm(t *testing.T) {
	tokens := onMemory(t).tokens(onMemory(t).guard(nil), nil)
	seen := map[string]bool{}
	for range 1000 {
		token := issue(t, tokens, "ann")
		b, err := base64.RawURLEncoding.DecodeString(token)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(b), 16)
		require.False(t, seen[string(b[:16])])
		seen[string(b[:16])] = true
	}
}

func TestStoreNeverSeesTheTokenItself(t *testing.T) {
	e := onMemory(t)
	token := issue(t, e.tokens(e.guard(nil), nil), "ann")
	_, err := e.guard(nil).Inspect(t.Context(), dedup.Work{Scope: "token/checkout", ID: token})
	require.ErrorIs(t, err, dedup.ErrNotFound)
}

func TestTokenTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{T: t, store: memstore.New(), app: "test"}
		tokens := e.tokens(e.guard(nil), nil)
		fail := func(token string) error {
			return tokens.Redeem(t.Context(), "ann", token, func(context.Context) error { return errCard })
		}
		used, failed, forgotten := issue(t, tokens, "ann"), issue(t, tokens, "ann"), issue(t, tokens, "ann")
		_, err := redeem(t, tokens, "ann", used)
		require.NoError(t, err)
		time.Sleep(59 * time.Minute)
		require.ErrorIs(t, fail(failed), errCard)
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, fail(failed), httpdedup.ErrTokenUnknown, "a failure does not make it live longer")
		require.ErrorIs(t, fail(forgotten), httpdedup.ErrTokenUnknown)
		require.ErrorIs(t, fail(used), httpdedup.ErrTokenUsed, "that is told for longer")
		time.Sleep(24 * time.Hour)
		require.ErrorIs(t, fail(used), httpdedup.ErrTokenUnknown)
	})
}

func TestFloodOfTokensIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{T: t, store: memstore.New(), app: "test"}
		tokens := e.tokens(e.guard(nil), &httpdedup.TokenOptions{MaxIssued: 100})
		for range 100 {
			issue(t, tokens, "ann")
		}
		_, err := tokens.Issue(t.Context(), "ann")
		require.ErrorIs(t, err, httpdedup.ErrTokenLimit)
		time.Sleep(time.Hour)
		issue(t, tokens, "ann")
	})
}

func TestTokensRefuseWhatCannotBeMeant(t *testing.T) {
	e := onMemory(t)
	g := e.guard(nil)
	for wanted, make := range map[string]func() error{
		"Guard is nil":               func() error { _, err := httpdedup.NewTokens(nil, "form", nil); return err },
		"scope is empty":             func() error { _, err := httpdedup.NewTokens(g, "", nil); return err },
		"TokenOptions.TTL -1s":       func() error { return tokenOptions(g, httpdedup.TokenOptions{TTL: -1e9}) },
		"TokenOptions.TTL 1ms":       func() error { return tokenOptions(g, httpdedup.TokenOptions{TTL: 1e6}) },
		"Memory 1m0s is below Token": func() error { return tokenOptions(g, httpdedup.TokenOptions{Memory: time.Minute}) },
		"the Guard's lease 30s":      func() error { return tokenOptions(g, httpdedup.TokenOptions{TTL: 1e9, Memory: 2e9}) },
		"MaxIssued -1":               func() error { return tokenOptions(g, httpdedup.TokenOptions{MaxIssued: -1}) },
		"fn is nil":                  func() error { return e.tokens(g, nil).Redeem(t.Context(), "ann", "x", nil) },
		"subject is empty":           func() error { _, err := e.tokens(g, nil).Issue(t.Context(), ""); return err },
	} {
		require.ErrorContains(t, make(), wanted)
	}
	require.NoError(t, tokenOptions(g, httpdedup.TokenOptions{TTL: 48 * time.Hour}))
}

func tokenOptions(g *dedup.Guard, o httpdedup.TokenOptions) error {
	_, err := httpdedup.NewTokens(g, "form", &o)
	return err
}
