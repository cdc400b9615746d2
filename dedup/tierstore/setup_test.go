package tierstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/tierstore"
)

func TestTierThatIsSetUpWronglyRefusesEveryCall(t *testing.T) {
	for want, s := range map[string]*tierstore.Store{
		"decider is nil":       tierstore.New(nil, &front{}),
		"front is nil":         tierstore.New(newMemory(), nil),
		"Options.Timeout -1ns": tierstore.NewWithOptions(newMemory(), &front{}, &tierstore.Options{Timeout: -1}),
		"Options.Pause -1ns":   tierstore.NewWithOptions(newMemory(), &front{}, &tierstore.Options{Pause: -1}),
		"Options.MaxResult -1": tierstore.NewWithOptions(newMemory(), &front{}, &tierstore.Options{MaxResult: -1}),
	} {
		ctx, q := t.Context(), ask(newKey())
		h := dedup.Held{ClaimRequest: q, Epoch: 1, Attempt: 1}
		require.ErrorContains(t, s.Claim(ctx, []dedup.ClaimRequest{q}, make([]dedup.Verdict, 1)), want)
		require.ErrorContains(t, s.Extend(ctx, []dedup.ExtendRequest{{Held: h}}, make([]error, 1)), want)
		f := dedup.FinishRequest{Held: h, State: dedup.Done}
		require.ErrorContains(t, s.Finish(ctx, []dedup.FinishRequest{f}, make([]error, 1)), want)
		require.ErrorContains(t, s.InTx(ctx, f, nil), want)
		_, err := s.Inspect(ctx, q.Key)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, s.Forget(ctx, q.Key), want)
		_, err = s.SweepBatch(ctx)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, s.Ping(ctx), want)
		require.ErrorIs(t, s.Ping(ctx), dedup.ErrUnsafeStore)
		require.Zero(t, s.RecordBytes())
	}
}

// sized is a front that knows what a copy costs.
type sized struct{ front }

func (*sized) RecordBytes() int { return 193 }

// sizedDecider knows what a row costs.
type sizedDecider struct{ tierstore.Decider }

func (sizedDecider) RecordBytes() int { return 490 }

func TestTierTellsWhatBothLevelsKeep(t *testing.T) {
	require.Equal(t, 683, tierstore.New(sizedDecider{newMemory()}, &sized{}).RecordBytes())
	require.Equal(t, 490, tierstore.New(sizedDecider{newMemory()}, &front{}).RecordBytes())
}
