package deduptest

import (
	"bytes"
	"strings"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

var contentCases = []testCase{
	{"Results", func(e *env) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for name, result := range map[string][]byte{
			"nil": nil, "empty": {}, "a zero byte": {0}, "every byte": every, "1 MiB": bytes.Repeat([]byte("idemq-\x00\xff"), 1<<17),
		} {
			h := e.acquire(ask(newKey()))
			require.NoError(e, e.finishAs(dedup.FinishRequest{Held: h, State: dedup.Done, Result: result}))
			got := e.refuse(ask(h.Key), dedup.Done).Result
			require.True(e, bytes.Equal(result, got), "result of %s came back as %d bytes", name, len(got))
		}
	}},
	{"ResultsAreCopies", func(e *env) {
		h, result := e.acquire(ask(newKey())), []byte("result")
		require.NoError(e, e.finishAs(dedup.FinishRequest{Held: h, State: dedup.Done, Result: result}))
		result[0] = 'X'
		got := e.refuse(ask(h.Key), dedup.Done).Result
		require.Equal(e, []byte("result"), got, "the store kept the caller's slice")
		got[0] = 'Y'
		require.Equal(e, []byte("result"), e.refuse(ask(h.Key), dedup.Done).Result, "the store handed out its own slice")
	}},
	{"ReasonsAreKept", func(e *env) {
		for _, reason := range []string{"", "no such account", "päivää ☂", strings.Repeat("x", 512)} {
			k := newKey()
			fail := func(h dedup.Held, s dedup.State) {
				require.NoError(e, e.finishAs(dedup.FinishRequest{Held: h, State: s, Reason: reason}))
			}
			fail(e.acquire(ask(k)), dedup.Retryable)
			h := e.acquire(ask(k))
			require.Equal(e, reason, h.LastError, "why the attempt before failed")
			fail(h, dedup.Condemned)
			require.NoError(e, e.finish(h, dedup.Released))
			h = e.take(ask(k), dedup.Condemned)
			require.Equal(e, reason, h.LastError, "why it was condemned")
			fail(h, dedup.Failed)
			require.Equal(e, reason, e.refuse(ask(k), dedup.Failed).LastError, "why it failed")
		}
	}},
	{"ReasonSurvivesReleaseAndCrash", func(e *env) {
		k := newKey()
		e.finished(k, dedup.Retryable)
		e.lapsed(ask(k))
		h := e.acquire(ask(k))
		require.Equal(e, "reason", h.LastError)
		require.NoError(e, e.finish(h, dedup.Released))
		require.Equal(e, "reason", e.acquire(ask(k)).LastError)
	}},
}

var adminCases = []testCase{
	{"InspectFindsNothing", func(e *env) {
		_, err := e.admin().Inspect(e.ctx, newKey())
		require.ErrorIs(e, err, dedup.ErrNotFound)
	}},
	{"InspectTellsOfALiveClaim", func(e *env) {
		a, q := e.admin(), ask(newKey())
		q.Redrive, q.Holder = 2, "host-7/4711"
		h := e.acquire(q)
		r, err := a.Inspect(e.ctx, q.Key)
		require.NoError(e, err)
		require.Equal(e, q.Key, r.Key)
		require.Equal(e, dedup.InProgress, r.State)
		require.Equal(e, h.Epoch, r.Epoch)
		require.Equal(e, []int{1, 0, 2}, []int{r.Attempt, r.Crashes, r.Redrive}, "attempt, crashes, redrive")
		require.Equal(e, "host-7/4711", r.Holder)
		require.False(e, r.LeaseUntil.IsZero())
		require.True(e, r.Expires.IsZero() || r.Expires.After(r.LeaseUntil), "expiry %v, lease until %v", r.Expires, r.LeaseUntil)
	}},
	{"InspectTellsOfAnEnd", func(e *env) {
		a := e.admin()
		e.each(outcomes, func(e *env, s dedup.State) {
			h := e.finished(newKey(), s)
			r, err := a.Inspect(e.ctx, h.Key)
			require.NoError(e, err)
			require.Equal(e, s, r.State)
			require.Equal(e, h.Epoch, r.Epoch)
			if s != dedup.Condemned {
				require.Empty(e, r.Holder, "holder, when nobody holds it")
			}
			want := finishOf(h, s)
			require.Equal(e, string(want.Result), string(r.Result))
			require.Equal(e, want.Reason, r.LastError)
		})
	}},
	{"InspectShowsNoHolderOfWhatWasGivenBack", func(e *env) {
		a, h := e.admin(), e.finished(newKey(), dedup.Condemned)
		require.NoError(e, e.finish(h, dedup.Released))
		r, err := a.Inspect(e.ctx, h.Key)
		require.NoError(e, err)
		require.Equal(e, dedup.Condemned, r.State)
		require.Empty(e, r.Holder)
	}},
	{"InspectForgetsWithRetention", func(e *env) {
		a, q := e.admin(), e.brief(newKey())
		e.acquire(q)
		e.pass()
		_, err := a.Inspect(e.ctx, q.Key)
		require.ErrorIs(e, err, dedup.ErrNotFound)
	}},
	{"ForgetMakesTheKeyNew", func(e *env) {
		a := e.admin()
		e.each([]dedup.State{dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released}, func(e *env, s dedup.State) {
			h := e.finished(newKey(), s)
			require.NoError(e, a.Forget(e.ctx, h.Key))
			v := e.claim(ask(h.Key))
			require.Equal(e, dedup.Verdict{State: dedup.Acquired, Epoch: v.Epoch, Attempt: 1}, v)
			e.refusedAll(h)
		})
	}},
	{"ForgetNothing", func(e *env) {
		require.NoError(e, e.admin().Forget(e.ctx, newKey()))
	}},
	{"ForgetRefusesWhileALeaseRuns", func(e *env) {
		a, h := e.admin(), e.acquire(ask(newKey()))
		require.ErrorIs(e, a.Forget(e.ctx, h.Key), dedup.ErrInProgress)
		e.condemn(h)
		require.ErrorIs(e, a.Forget(e.ctx, h.Key), dedup.ErrInProgress)
		e.letLapse(h)
		require.NoError(e, a.Forget(e.ctx, h.Key))
		e.acquire(ask(h.Key))
	}},
}

func (e *env) admin() dedup.Admin {
	return e.store.(dedup.Admin)
}

var pingerCases = []testCase{
	{"Ping", func(e *env) {
		require.NoError(e, e.store.(dedup.Pinger).Ping(e.ctx))
	}},
}
