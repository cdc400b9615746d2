package deduptest

import (
	"context"
	"fmt"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

const fullBatch = 1000

var rule10 = []testCase{
	{"EveryItemHasItsOwnAnswer", mixedBatch},
	{"ThousandClaimsBeatsAndFinishes", fullBatches},
	{"FinishAsWhatIsNoOutcome", func(e *env) {
		for _, bad := range []dedup.State{0, dedup.Acquired, dedup.InProgress, dedup.Absent, dedup.Mismatch, 200} {
			in := make([]dedup.FinishRequest, 3)
			for i := range in {
				in[i] = finishOf(e.acquire(ask(newKey())), dedup.Done)
			}
			in[1].State = bad
			e.oneBadFinish(in, 1)
			require.NoError(e, e.finish(in[1].Held, dedup.Done), "the claim of the bad item is as it was")
		}
	}},
	{"SupersededItemsAmongOthers", func(e *env) {
		fin, ext := make([]dedup.FinishRequest, 5), make([]dedup.ExtendRequest, 5)
		for i := range fin {
			h := e.acquire(ask(newKey()))
			switch i {
			case 1:
				h = strangerTo(h)
			case 3:
				h = e.unknownHeld()
			}
			fin[i], ext[i] = finishOf(h, dedup.Done), dedup.ExtendRequest{Held: h}
		}
		out := make([]error, 5)
		require.NoError(e, e.store.Extend(e.ctx, ext, out))
		e.answers(out, nil, dedup.ErrSuperseded, nil, dedup.ErrRecordLost, nil)
		fin[3].Held = e.unknownHeld()
		clear(out)
		require.NoError(e, e.store.Finish(e.ctx, fin, out))
		e.answers(out, nil, dedup.ErrSuperseded, nil, dedup.ErrRecordLost, nil)
	}},
	{"OneUndecodableRecordAmongOthers", func(e *env) {
		in, ext, fin := make([]dedup.ClaimRequest, 3), make([]dedup.ExtendRequest, 3), make([]dedup.FinishRequest, 3)
		for i := range in {
			in[i] = ask(newKey())
			ext[i].Held = e.acquire(in[i])
			fin[i] = finishOf(ext[i].Held, dedup.Done)
		}
		e.conf.Corrupt(e.TB, in[1].Key)
		for i, v := range e.claimAll(in...) {
			if i == 1 {
				require.Error(e, v.Err)
			} else {
				require.NoError(e, v.Err)
				require.Equal(e, dedup.Acquired, v.State)
			}
		}
		out := make([]error, 3)
		require.NoError(e, e.store.Extend(e.ctx, ext, out))
		require.NoError(e, out[0])
		require.Error(e, out[1])
		require.NoError(e, out[2])
		e.oneBadFinish(fin, 1)
	}},
	{"EndedContextIsAnError", func(e *env) {
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		q := ask(newKey())
		require.Error(e, e.store.Claim(ctx, []dedup.ClaimRequest{q}, make([]dedup.Verdict, 1)), "Claim under an ended context")
		h := e.acquire(q) // whatever became of it: the same owner asks again
		require.Error(e, e.store.Extend(ctx, []dedup.ExtendRequest{{Held: h}}, make([]error, 1)), "Extend under an ended context")
		require.Error(e, e.store.Finish(ctx, []dedup.FinishRequest{finishOf(h, dedup.Done)}, make([]error, 1)), "Finish under an ended context")
		require.NoError(e, e.finish(h, dedup.Done))
	}},
}

// oneBadFinish requires that of in only the item at bad is answered with a fault.
func (e *env) oneBadFinish(in []dedup.FinishRequest, bad int) {
	e.Helper()
	out := make([]error, len(in))
	require.NoError(e, e.store.Finish(e.ctx, in, out), "Finish of a batch with one bad item")
	for i := range in {
		if i != bad {
			require.NoError(e, out[i], "item %d, beside the bad one", i)
			e.refuse(ask(in[i].Key), dedup.Done)
			continue
		}
		require.Error(e, out[i], "the bad item, %v", in[i].State)
		require.NotErrorIs(e, out[i], dedup.ErrSuperseded, "a fault, not a verdict")
		require.NotErrorIs(e, out[i], dedup.ErrRecordLost, "a fault, not a success")
	}
}

func (e *env) answers(got []error, want ...error) {
	e.Helper()
	for i := range want {
		if want[i] == nil {
			require.NoError(e, got[i], "item %d", i)
		} else {
			require.ErrorIs(e, got[i], want[i], "item %d", i)
		}
	}
}

// mixedBatch puts a key of every kind into one batch.
func mixedBatch(e *env) {
	var in []dedup.ClaimRequest
	var want []dedup.State
	add := func(q dedup.ClaimRequest, s dedup.State) { in, want = append(in, q), append(want, s) }
	for range 3 {
		add(ask(newKey()), dedup.Acquired)
		for s, answer := range map[dedup.State]dedup.State{
			dedup.Done: dedup.Done, dedup.Failed: dedup.Failed, dedup.Retryable: dedup.Acquired, dedup.Released: dedup.Acquired, dedup.Condemned: dedup.InProgress,
		} {
			add(ask(e.finished(newKey(), s).Key), answer)
		}
		add(ask(e.acquire(ask(newKey())).Key), dedup.InProgress)
		absent, twin := ask(newKey()), ask(newKey())
		absent.MustExist = true
		add(absent, dedup.Absent)
		twin.Fingerprint = dedup.FingerprintOf([]byte("first"))
		e.acquire(twin)
		twin.Owner, twin.Fingerprint = newOwner(), dedup.FingerprintOf([]byte("twin"))
		add(twin, dedup.Mismatch)
		given := e.finished(newKey(), dedup.Condemned)
		require.NoError(e, e.finish(given, dedup.Released))
		add(ask(given.Key), dedup.Condemned)
	}
	for i, v := range e.claimAll(in...) {
		require.NoError(e, v.Err, "item %d", i)
		require.Equal(e, want[i], v.State, "item %d", i)
	}
}

// fullBatches takes a thousand keys through claim, beat and finish, each item with a content of
// its own, and then asks again in reverse order.
func fullBatches(e *env) {
	in := make([]dedup.ClaimRequest, fullBatch)
	for i := range in {
		in[i] = ask(newKey())
	}
	ext, fin := make([]dedup.ExtendRequest, fullBatch), make([]dedup.FinishRequest, fullBatch)
	for i, v := range e.claimAll(in...) {
		require.Equal(e, dedup.Acquired, v.State, "item %d", i)
		ext[i].Held = heldOf(in[i], v)
		fin[i] = dedup.FinishRequest{Held: ext[i].Held, State: dedup.Done, Result: fmt.Appendf(nil, "result %d", i)}
	}
	out := make([]error, fullBatch)
	require.NoError(e, e.store.Extend(e.ctx, ext, out))
	e.answers(out, make([]error, fullBatch)...)
	require.NoError(e, e.store.Finish(e.ctx, fin, out))
	e.answers(out, make([]error, fullBatch)...)
	again := make([]dedup.ClaimRequest, fullBatch)
	for i := range again {
		again[fullBatch-1-i] = ask(in[i].Key)
	}
	for i, v := range e.claimAll(again...) {
		require.Equal(e, dedup.Done, v.State, "item %d of the second round", i)
		require.Equal(e, fin[fullBatch-1-i].Result, v.Result, "item %d of the second round", i)
	}
}
