package tierstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
)

// The rows of the table in the package's documentation, by their numbers.
func TestRowsOnPostgreSQL(t *testing.T) { everyRow(t, sqlstore.PostgreSQL) }
func TestRowsOnMariaDB(t *testing.T)    { everyRow(t, sqlstore.MySQL) }

func everyRow(t *testing.T, d sqlstore.Dialect) {
	w := newWorld(t, d)
	for i, row := range rows {
		t.Run(fmt.Sprintf("%02d", i+1), func(t *testing.T) {
			inner := *w
			inner.T = t
			row(&inner)
		})
	}
}

var rows = []func(w *world){
	0: func(w *world) {
		a, b := w.open(), w.open()
		h := done(w, a, newKey())
		v := w.answered(b, ask(h.Key), dedup.Done, true)
		require.Equal(w, []byte("result"), v.Result)
		w.stats(tierstore.Stats{Asked: 1, Kept: 1}, a)
		w.stats(tierstore.Stats{Answered: 1}, b)
	},
	1: func(w *world) {
		a, b := w.open(), w.open()
		h := acquire(w, a, withPrint(ask(newKey()), "a"))
		finish(w, a, h, dedup.Done)
		w.answered(b, withPrint(ask(h.Key), "b"), dedup.Mismatch, true)
		w.stats(tierstore.Stats{Answered: 1}, b)
	},
	2: func(w *world) {
		a, b := w.open(), w.open()
		h := acquire(w, a, withPrint(ask(newKey()), "a"))
		finish(w, a, h, dedup.Done)
		w.flush()
		w.answered(b, ask(h.Key), dedup.Done, false) // leaves a copy without a fingerprint
		w.answered(b, withPrint(ask(h.Key), "b"), dedup.Mismatch, false)
		w.answered(b, withPrint(ask(h.Key), "a"), dedup.Done, false)
		w.answered(b, withPrint(ask(h.Key), "a"), dedup.Done, true)
		w.stats(tierstore.Stats{Answered: 1, Asked: 3, Kept: 2}, b)
	},
	3: func(w *world) {
		a, b := w.open(), w.open()
		h := done(w, a, newKey()) // without a fingerprint, and so for good
		w.flush()
		w.answered(b, withPrint(ask(h.Key), "b"), dedup.Done, false)
		w.answered(b, withPrint(ask(h.Key), "c"), dedup.Done, false)
		w.answered(b, withPrint(ask(h.Key), "b"), dedup.Done, true)
		w.stats(tierstore.Stats{Answered: 1, Asked: 2, Kept: 1}, b)
	},
	4: func(w *world) {
		a, b := w.open(), w.open()
		h := done(w, a, newKey())
		for name, lose := range map[string]func(){"flushed": w.flush, "restarted": w.redis.Restart, "evicted": func() { w.evict(h.Key) }} {
			lose()
			w.reconnected()
			v := w.answered(b, ask(h.Key), dedup.Done, false)
			again := w.answered(b, ask(h.Key), dedup.Done, true)
			require.LessOrEqual(w, again.Left, v.Left, name)
			require.Greater(w, again.Left, v.Left-10*time.Second, name)
			again.Left, v.Left = 0, 0
			require.Equal(w, v, again, name)
		}
		s := b.Stats()
		require.Equal(w, []uint64{3, 3}, []uint64{s.Answered, s.Kept})
	},
	5: func(w *world) {
		a := w.open()
		for _, free := range []dedup.State{0, dedup.Retryable, dedup.Released} {
			k := newKey()
			if free != 0 {
				finish(w, a, acquire(w, a, ask(k)), free)
			}
			h := acquire(w, a, ask(k))
			require.NoError(w, a.InTx(w.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, func(*sql.Tx) error { return nil }))
			w.answered(a, ask(k), dedup.Done, true)
		}
		w.stats(tierstore.Stats{Answered: 3, Asked: 5, Kept: 3}, a)
	},
	6: func(w *world) {
		a, b := w.open(), w.open()
		running := acquire(w, a, ask(newKey()))
		w.answered(b, ask(running.Key), dedup.InProgress, false)
		failed := acquire(w, a, ask(newKey()))
		finish(w, a, failed, dedup.Failed)
		w.answered(b, ask(failed.Key), dedup.Failed, false)
		condemned := acquire(w, a, ask(newKey()))
		finish(w, a, condemned, dedup.Condemned)
		w.answered(b, ask(condemned.Key), dedup.InProgress, false)
		absent := ask(newKey())
		absent.MustExist = true
		w.answered(b, absent, dedup.Absent, false)
		w.stats(tierstore.Stats{Asked: 4}, b)
		require.Zero(w, a.Stats().Kept)
	},
	7: func(w *world) {
		a, b := w.open(), w.open()
		h := acquire(w, a, ask(newKey()))
		w.answered(b, ask(h.Key), dedup.InProgress, false)
		finish(w, a, h, dedup.Done)
		w.stats(tierstore.Stats{Asked: 1, Refused: 1}, a)
		w.answered(b, ask(h.Key), dedup.Done, false)
		w.answered(a, ask(h.Key), dedup.Done, true)
	},
	8: func(w *world) {
		a := w.openWith(tierstore.Options{Timeout: 5 * time.Second, Pause: 50 * time.Millisecond})
		h := done(w, a, newKey())
		w.redis.Stop()
		for range 3 {
			w.answered(a, ask(h.Key), dedup.Done, false)
		}
		require.Equal(w, uint64(3), a.Stats().Faults)
		done(w, a, newKey())
		require.NotZero(w, a.Stats().Skipped)
		w.redis.Start()
		w.healed(a, h.Key)
	},
	9: func(w *world) {
		a := w.openWith(tierstore.Options{Timeout: 50 * time.Millisecond, Pause: 100 * time.Millisecond})
		h := done(w, a, newKey())
		w.toRedis.Delay(2 * time.Second)
		begun := time.Now()
		for range 20 {
			w.answered(a, ask(h.Key), dedup.Done, false)
		}
		require.Less(w, time.Since(begun), 30*time.Second, "twenty times two seconds it is not")
		require.GreaterOrEqual(w, a.Stats().Faults, uint64(3))
		require.NotZero(w, a.Stats().Skipped)
		w.toRedis.Delay(0)
		w.healed(a, h.Key)
	},
	10: func(w *world) {
		a, b := w.open(), w.open()
		h := acquire(w, a, ask(newKey()))
		w.toRedis.Cut()
		finish(w, a, h, dedup.Done)
		w.stats(tierstore.Stats{Asked: 1, Faults: 1}, a)
		w.toRedis.Mend()
		w.healed(b, h.Key)
	},
	11: func(w *world) {
		for _, lose := range []func(){w.flush, w.redis.Restart} {
			a, b := w.open(), w.open()
			h := acquire(w, a, ask(newKey()))
			lose()
			w.reconnected()
			finish(w, a, h, dedup.Done)
			w.stats(tierstore.Stats{Asked: 1, Refused: 1}, a)
			w.answered(b, ask(h.Key), dedup.Done, false)
			w.answered(b, ask(h.Key), dedup.Done, true)
		}
	},
	12: func(w *world) {
		a, b := w.open(), w.open()
		older, running := done(w, a, newKey()), acquire(w, a, ask(newKey()))
		back := w.snapshot()
		newer := done(w, a, newKey())
		finish(w, a, running, dedup.Done)
		back()
		w.answered(b, ask(older.Key), dedup.Done, true)
		w.answered(b, ask(newer.Key), dedup.Done, false)
		w.answered(b, ask(newer.Key), dedup.Done, true)
		w.answered(b, ask(running.Key), dedup.Done, false)
		w.answered(b, ask(running.Key), dedup.Done, true)
		w.stats(tierstore.Stats{Answered: 3, Asked: 2, Kept: 2}, b)
	},
	13: func(w *world) {
		a := w.open()
		h := done(w, a, newKey())
		back := w.snapshot()
		require.NoError(w, a.Forget(w.Context(), h.Key))
		back()
		w.answered(a, ask(h.Key), dedup.Done, true)
		require.NoError(w, a.Forget(w.Context(), h.Key))
		w.answered(a, ask(h.Key), dedup.Acquired, false)
	},
	14: func(w *world) {
		a := w.open()
		h := done(w, a, newKey())
		require.NoError(w, w.direct.Set(w.Context(), frontName(h.Key), "something else", time.Minute).Err())
		w.answered(a, ask(h.Key), dedup.Done, false)
		w.answered(a, ask(h.Key), dedup.Done, false)
		require.Equal(w, uint64(2), a.Stats().Faults)
		require.Equal(w, "something else", w.direct.Get(w.Context(), frontName(h.Key)).Val())
		require.NoError(w, a.Forget(w.Context(), h.Key))
		done(w, a, h.Key)
		w.answered(a, ask(h.Key), dedup.Done, true)
	},
	15: func(w *world) {
		a := w.open()
		h := done(w, a, newKey())
		in, out := []dedup.ClaimRequest{ask(h.Key), ask(newKey())}, make([]dedup.Verdict, 2)
		ask := func() {
			clear(out)
			ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
			defer cancel()
			require.NoError(w, a.Claim(ctx, in, out))
			require.Equal(w, dedup.Done, out[0].State)
			require.ErrorIs(w, out[1].Err, dedup.ErrUnavailable)
			require.Zero(w, out[1].State)
		}
		w.toSQL.Delay(time.Minute)
		ask()
		w.toSQL.Delay(0)
		w.sql.Stop()
		ask()
		w.sql.Start()
		w.returns()
		w.answered(a, in[0], dedup.Done, true)
		w.mayBeHeldBy(a, in[1])
	},
	16: func(w *world) {
		a, q := w.open(), ask(newKey())
		fails := func() {
			ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
			defer cancel()
			require.Error(w, a.Claim(ctx, []dedup.ClaimRequest{q}, make([]dedup.Verdict, 1)))
		}
		w.toSQL.Delay(time.Minute)
		fails()
		w.toSQL.Delay(0)
		w.sql.Stop()
		fails()
		w.sql.Start()
		w.returns()
		w.mayBeHeldBy(a, q)
		require.Zero(w, a.Stats().Answered)
	},
	17: func(w *world) {
		a, q := w.open(), ask(newKey())
		w.redis.Stop()
		w.sql.Stop()
		require.Error(w, a.Claim(w.Context(), []dedup.ClaimRequest{q}, make([]dedup.Verdict, 1)))
		require.Equal(w, uint64(1), a.Stats().Faults)
		w.redis.Start()
		w.sql.Start()
		w.returns()
		w.reconnected()
		w.mayBeHeldBy(a, q)
	},
	18: func(w *world) {
		a := w.open()
		h := acquire(w, a, ask(newKey()))
		w.toSQL.DropAnswers()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		f, out := []dedup.FinishRequest{{Held: h, State: dedup.Done}}, make([]error, 1)
		require.Error(w, a.Finish(ctx, f, out))
		require.Zero(w, a.Stats().Kept)
		w.toSQL.PassAnswers()
		w.returns()
		require.NoError(w, a.Finish(w.Context(), f, out))
		require.NoError(w, out[0])
		require.Equal(w, uint64(1), a.Stats().Kept)
		w.answered(a, ask(h.Key), dedup.Done, true)
	},
	19: func(w *world) {
		a := w.open()
		h := acquire(w, a, ask(newKey()))
		a.decider.setAfter(func(string) error { return dedup.ErrUnavailable })
		err := a.InTx(w.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, func(*sql.Tx) error { return nil })
		require.ErrorIs(w, err, dedup.ErrUnavailable)
		a.decider.setAfter(nil)
		require.Zero(w, a.Stats().Kept)
		w.answered(a, h.ClaimRequest, dedup.Done, false)
		require.Equal(w, uint64(1), a.Stats().Kept)
		w.answered(a, ask(h.Key), dedup.Done, true)
	},
	20: func(w *world) {
		a, b := w.open(), w.open()
		h := acquire(w, a, ask(newKey()))
		require.ErrorIs(w, a.InTx(w.Context(), dedup.FinishRequest{Held: h, State: dedup.Done}, func(*sql.Tx) error { return errDown }), errDown)
		require.Zero(w, a.Stats().Kept)
		w.answered(b, ask(h.Key), dedup.InProgress, false)
	},
	21: func(w *world) {
		a, q := w.open(), ask(newKey())
		q.Retention = 2 * time.Second
		q.Lease = time.Second
		h := acquire(w, a, q)
		finish(w, a, h, dedup.Done)
		left := w.answered(a, ask(q.Key), dedup.Done, true).Left
		require.LessOrEqual(w, left, 2*time.Second)
		require.Eventually(w, func() bool { return w.direct.Exists(w.Context(), frontName(q.Key)).Val() == 0 }, 10*time.Second, 5*time.Millisecond)
		require.Eventually(w, func() bool { return claim(w, a, ask(q.Key)).State == dedup.Acquired }, time.Second, time.Millisecond,
			"when the copy is gone, SQL's row is about to")
	},
	22: func(w *world) {
		a, b := w.open(), w.open()
		h := done(w, a, newKey())
		w.flush()
		a.front.set(func(f *hooked) { f.remember = once(func() { require.NoError(w, b.Forget(w.Context(), h.Key)) }) })
		w.answered(a, ask(h.Key), dedup.Done, false)
		require.Equal(w, uint64(1), a.Stats().Refused)
		h = acquire(w, b, ask(h.Key))
		finish(w, b, h, dedup.Done)
		require.NoError(w, a.Forget(w.Context(), h.Key))
		w.answered(b, ask(h.Key), dedup.Acquired, false)
	},
	23: func(w *world) {
		a, b := w.open(), w.open()
		h := done(w, a, newKey())
		w.toRedis.Cut()
		require.ErrorContains(w, a.Forget(w.Context(), h.Key), "repeat")
		w.toRedis.Mend()
		w.reconnected()
		w.answered(b, ask(h.Key), dedup.Done, true)
		require.NoError(w, a.Forget(w.Context(), h.Key))
		w.answered(b, ask(h.Key), dedup.Acquired, false)
	},
	24: func(w *world) {
		a, b := w.open(), w.open()
		h, late := done(w, a, newKey()), acquire(w, a, ask(newKey()))
		require.NoError(w, w.database.Forget(w.Context(), h.Key)) // what a restore does to a row
		w.answered(b, ask(h.Key), dedup.Done, true)
		n, err := w.front.FlushFront(w.Context())
		require.NoError(w, err)
		require.GreaterOrEqual(w, n, 2, "a copy and a token")
		w.answered(b, ask(h.Key), dedup.Acquired, false)
		finish(w, a, late, dedup.Done)
		require.Equal(w, uint64(1), a.Stats().Refused)
	},
	25: func(w *world) {
		a := w.openWith(tierstore.Options{Timeout: 10 * time.Second, MaxResult: 3})
		h := done(w, a, newKey())
		for range 2 {
			require.Equal(w, []byte("result"), w.answered(a, ask(h.Key), dedup.Done, false).Result)
		}
		require.Zero(w, a.Stats().Kept)
	},
}
