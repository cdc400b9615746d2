package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var errReplyLost = errors.New("read tcp: i/o timeout")

// oneLost loses the reply of one call of each batch that takes several.
type oneLost struct{}

func (oneLost) DialHook(next redis.DialHook) redis.DialHook { return next }

func (oneLost) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (oneLost) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, calls []redis.Cmder) error {
		err := next(ctx, calls)
		calls[0].SetErr(errReplyLost)
		return err
	}
}

// What may have been done must say so, or a Guard asks again with another owner's token and waits for its own lease.
func TestItemsWhoseReplyIsLostAreUnavailable(t *testing.T) {
	client := realCluster(t)
	store := open(client)
	known := acquireAll(t, store, asks(256)...) // every node knows the scripts: none is asked twice
	extendAll(t, store, known)
	finishAll(t, store, known, dedup.Done)
	far := closing(t, redis.NewClusterClient(client.Options()))
	far.AddHook(oneLost{})
	broken := open(far)
	in := asks(3)
	for i := range in {
		in[i].Key[0] = byte(i)
	}
	lost := func(err error) int {
		if err == nil {
			return 0
		}
		require.ErrorIs(t, err, dedup.ErrUnavailable)
		require.ErrorIs(t, err, errReplyLost)
		return 1
	}

	out := make([]dedup.Verdict, len(in))
	require.NoError(t, broken.Claim(t.Context(), in, out))
	n := 0
	for i := range out {
		n += lost(out[i].Err)
	}
	require.Equal(t, 1, n, "claim")
	held := acquireAll(t, store, in...) // the same owners

	extends, finishes, errs := make([]dedup.ExtendRequest, len(in)), make([]dedup.FinishRequest, len(in)), make([]error, len(in))
	for i, h := range held {
		extends[i], finishes[i] = dedup.ExtendRequest{Held: h}, dedup.FinishRequest{Held: h, State: dedup.Done}
	}
	require.NoError(t, broken.Extend(t.Context(), extends, errs))
	require.Equal(t, 1, lost(errs[0])+lost(errs[1])+lost(errs[2]), "extend")
	clear(errs)
	require.NoError(t, broken.Finish(t.Context(), finishes, errs))
	require.Equal(t, 1, lost(errs[0])+lost(errs[1])+lost(errs[2]), "finish")
	for _, err := range finishAll(t, store, held, dedup.Done) {
		require.NoError(t, err, "its own word stands")
	}
}
