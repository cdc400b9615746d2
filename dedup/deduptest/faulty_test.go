package deduptest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/stretchr/testify/require"
)

var errCut = errors.New("connection cut")

func cut(method string) func(context.Context, string) error {
	return func(_ context.Context, m string) error {
		if m == method {
			return errCut
		}
		return nil
	}
}

func request() []dedup.ClaimRequest {
	return []dedup.ClaimRequest{{Key: dedup.Key{1}, Owner: dedup.Owner{1}, Lease: 1 << 40, Retention: 1 << 41}}
}

func held(in []dedup.ClaimRequest, v dedup.Verdict) dedup.Held {
	return dedup.Held{ClaimRequest: in[0], Epoch: v.Epoch, Attempt: v.Attempt}
}

func TestFaultyWithoutFaultsIsTheStore(t *testing.T) {
	mem := memstore.New()
	deduptest.TestStore(t, deduptest.Config{
		Open:  func(testing.TB) dedup.Store { return &deduptest.Faulty{Store: mem} },
		Lease: 20 * time.Millisecond,
	})
}

func TestFaultBeforeACallKeepsItFromTheStore(t *testing.T) {
	mem, in, out := memstore.New(), request(), make([]dedup.Verdict, 1)
	f := &deduptest.Faulty{Store: mem, Before: cut("Claim")}
	require.ErrorIs(t, f.Claim(t.Context(), in, out), errCut)
	require.Zero(t, out[0])
	_, err := mem.Inspect(t.Context(), in[0].Key)
	require.ErrorIs(t, err, dedup.ErrNotFound)
}

func TestLostReplyOfAClaimIsFoundByItsOwner(t *testing.T) {
	mem, in, out := memstore.New(), request(), make([]dedup.Verdict, 1)
	f := &deduptest.Faulty{Store: mem, After: cut("Claim")}
	require.ErrorIs(t, f.Claim(t.Context(), in, out), errCut)
	require.Zero(t, out[0], "the answer is lost with the reply")
	f.After = nil
	require.NoError(t, f.Claim(t.Context(), in, out))
	require.Equal(t, dedup.Acquired, out[0].State)
}

func TestLostRepliesOfWordsTakeEffect(t *testing.T) {
	mem, in, out, errs := memstore.New(), request(), make([]dedup.Verdict, 1), make([]error, 1)
	require.NoError(t, mem.Claim(t.Context(), in, out))
	beat := []dedup.ExtendRequest{{Held: held(in, out[0])}}
	word := []dedup.FinishRequest{{Held: held(in, out[0]), State: dedup.Done}}

	f := &deduptest.Faulty{Store: mem, After: cut("Extend")}
	beat[0].Owner = dedup.Owner{2}
	require.ErrorIs(t, f.Extend(t.Context(), beat, errs), errCut)
	require.NoError(t, errs[0], "the answer, superseded, is lost with the reply")

	f.After = cut("Finish")
	require.ErrorIs(t, f.Finish(t.Context(), word, errs), errCut)
	r, err := mem.Inspect(t.Context(), in[0].Key)
	require.NoError(t, err)
	require.Equal(t, dedup.Done, r.State)
}

func TestFaultsBeforeWordsKeepThemFromTheStore(t *testing.T) {
	mem, in, out, errs := memstore.New(), request(), make([]dedup.Verdict, 1), make([]error, 1)
	require.NoError(t, mem.Claim(t.Context(), in, out))
	f := &deduptest.Faulty{Store: mem, Before: cut("Finish")}
	require.ErrorIs(t, f.Finish(t.Context(), []dedup.FinishRequest{{Held: held(in, out[0]), State: dedup.Done}}, errs), errCut)
	f.Before = cut("Extend")
	require.ErrorIs(t, f.Extend(t.Context(), []dedup.ExtendRequest{{Held: held(in, out[0])}}, errs), errCut)
	r, err := mem.Inspect(t.Context(), in[0].Key)
	require.NoError(t, err)
	require.Equal(t, dedup.InProgress, r.State)
}

func TestStoresOwnErrorOutranksAfter(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &deduptest.Faulty{Store: memstore.New(), After: cut("Claim")}
	require.ErrorIs(t, f.Claim(ctx, request(), make([]dedup.Verdict, 1)), context.Canceled)
}
