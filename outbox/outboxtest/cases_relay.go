package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// errNot is an answer that another attempt may change.
var errNot = errors.New("not now")

func lateCommit(e *env) {
	e.relay(func(ro *outbox.RelayOptions) { ro.Batch = 4 })
	tx := e.begin(nil)
	require.NoError(e, e.o.Write(e.Context(), tx, say("late", 0), outbox.Message{ID: "late", Topic: "t"}))
	for n := range 50 {
		e.write(say("k", n))
	}
	e.arrived(50)
	e.await("written back", func() bool { return e.number("SELECT count(*) FROM %s WHERE state = 1") == 50 })
	require.NoError(e, tx.Commit())
	e.arrived(52)
	e.write(say("late", 1))
	e.arrived(53)
	e.ordered()
}

func failedHolds(e *env) {
	e.b.answer = func(m outbox.Message, asked int) error {
		if (m.ID == "bad-0" || m.ID == "bad-1") && asked < 3 {
			return errNot
		}
		return nil
	}
	for n := range 5 {
		e.write(say("bad", n), say("good", n))
	}
	e.relay()
	e.arrived(10)
	e.ordered()
	_, again := e.b.firsts()
	require.Zero(e, again)
	require.Equal(e, 6, e.event("failed"))
	e.await("written back", func() bool { return e.stats() == outbox.Stats{} })
	require.Equal(e, 3, e.number("SELECT attempts FROM %s WHERE id = 'bad-1'"))
}

// parks: also that a parked message's followers, hundreds of them, are in nobody's way.
func parks(e *env) {
	refusing := true
	e.b.answer = func(m outbox.Message, asked int) error {
		if m.ID == "bad-1" && refusing {
			return fmt.Errorf("broker: publish: %w", outbox.Permanent(errors.New("it is too large")))
		}
		return nil
	}
	e.write(say("bad", 0), say("bad", 1), say("bad", 2))
	var followers []outbox.Message
	for n := range 300 {
		followers = append(followers, say("bad", n+3))
	}
	e.write(followers...)
	e.relay(func(ro *outbox.RelayOptions) { ro.Batch = 8 })
	e.await("parked", func() bool { return e.stats().Parked == 1 })
	for n := range 20 {
		e.write(say("good", n))
	}
	e.arrived(21)
	e.await("followers are held, and nothing else", func() bool { return e.stats().Pending == 301 })
	require.Positive(e, e.stats().Oldest)
	require.Equal(e, 1, e.event("parked"))
	var reason string
	require.NoError(e, e.db.QueryRowContext(e.Context(), fmt.Sprintf("SELECT last_error FROM %s WHERE state = 2", e.table)).Scan(&reason))
	require.Equal(e, "broker: publish: it is too large", reason)
	require.Equal(e, 1, e.b.asked["bad-1"], "a final answer is not asked for twice")

	require.ErrorContains(e, e.o.Requeue(e.Context(), "bad-0"), "0 of 1 messages are requeued")
	require.ErrorContains(e, e.o.Requeue(e.Context(), "nobody"), "0 of 1 messages are requeued")
	e.b.set(func(*broker) { refusing = false })
	require.ErrorContains(e, e.o.Requeue(e.Context(), "bad-1", "bad-1", "not \x00 one"), "1 of 2 messages are requeued")
	e.arrived(303 + 20)
	e.ordered()
	e.await("written back", func() bool { return e.stats() == outbox.Stats{} })
}

func letGo(e *env) {
	e.b.answer = func(m outbox.Message, asked int) error {
		if m.ID == "bad-1" {
			return errNot
		}
		return nil
	}
	for n := range 4 {
		e.write(say("bad", n))
	}
	stop := e.relay(func(ro *outbox.RelayOptions) { ro.MaxAttempts, ro.LetFollowersGo = 3, true })
	e.arrived(3)
	e.await("written back", func() bool { return e.stats() == outbox.Stats{Parked: 1} })
	require.Equal(e, 3, e.b.asked["bad-1"])
	require.Equal(e, 3, e.number("SELECT attempts FROM %s WHERE state = 2"))
	stop()
	e.b.set(func(b *broker) { b.answer = nil })
	require.NoError(e, e.o.Requeue(e.Context(), "bad-1"))
	require.Zero(e, e.number("SELECT attempts FROM %s WHERE state = 0"), "attempts begin anew")
	e.relay()
	e.arrived(4)
}

func outage(e *env) {
	e.b.down = true
	for n := range 5 {
		e.write(say("a", n), say("b", n))
	}
	e.relay(func(ro *outbox.RelayOptions) { ro.MaxAttempts = 2 })
	e.await("several calls", func() bool { e.b.mu.Lock(); defer e.b.mu.Unlock(); return e.b.calls >= 6 })
	require.Zero(e, e.number("SELECT coalesce(sum(attempts), 0) FROM %s"))
	require.Positive(e, e.event("outage"))
	e.b.set(func(b *broker) { b.down = false })
	e.arrived(10)
	e.ordered()
	e.await("written back", func() bool { return e.stats() == outbox.Stats{} })
}

// owners counts the shards of each relay.
func (e *env) owners() (counts []int) {
	e.Helper()
	rows, err := e.db.QueryContext(e.Context(), fmt.Sprintf("SELECT count(*) FROM %s_shards WHERE shard < 64 AND length(token) > 0 GROUP BY token", e.table))
	require.NoError(e, err)
	defer rows.Close()
	for rows.Next() {
		var n int
		require.NoError(e, rows.Scan(&n))
		counts = append(counts, n)
	}
	require.NoError(e, rows.Err())
	return counts
}

func (e *env) awaitOwners(relays, most int) {
	e.Helper()
	e.await("the shards are shared", func() bool {
		counts, sum := e.owners(), 0
		for _, n := range counts {
			if n > most {
				return false
			}
			sum += n
		}
		return len(counts) == relays && sum == 64
	})
}

func share(e *env) {
	long := func(ro *outbox.RelayOptions) { ro.Lease = 3 * time.Second } // also on a machine that is busy
	e.relay(long)
	e.awaitOwners(1, 64)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
				if err := e.tryWrite(nil, say(fmt.Sprint("k", k), n)); err != nil {
					e.Error(err)
					return
				}
			}
		})
	}
	e.relay(long)
	e.awaitOwners(2, 32)
	stop := e.relay(long)
	e.awaitOwners(3, 22)
	stop()
	e.awaitOwners(2, 32)
	close(done)
	wg.Wait()
	e.await("all sent", func() bool { return e.stats() == outbox.Stats{} })
	e.ordered()
	_, again := e.b.firsts()
	require.Zero(e, again, "shards that are given away are given away whole")
}

func takeover(e *env) {
	own := pool(e.T, e.open) // the first relay's, which is taken away as by a crash
	own.SetMaxOpenConns(3)   // so few that the relay keeps none of its own, which would outlive the pool
	dying := e.relayOf(e.outbox(own, e.table), func(ro *outbox.RelayOptions) { ro.Lease = 500 * time.Millisecond })
	e.awaitOwners(1, 64)
	require.NoError(e, own.Close())
	for n := range 5 {
		e.write(say("k", n))
	}
	e.relay(func(ro *outbox.RelayOptions) { ro.Lease = 500 * time.Millisecond })
	e.arrived(5)
	e.ordered()
	dying()
	require.Equal(e, 5, e.b.count())
}

// lateWriteBack: while the broker's answer is on its way, another relay takes the shards.
func lateWriteBack(e *env) {
	for name, answer := range map[string]error{"sent": nil, "failed": errNot, "parked": outbox.Permanent(errNot)} {
		e.Run(name, func(t *testing.T) {
			inner := *e
			e := &inner
			e.T = t
			e.b = newBroker()
			e.b.answer = func(outbox.Message, int) error { return answer }
			e.b.enter, e.b.gate = make(chan struct{}, 9), make(chan struct{})
			gate := e.b.gate
			before := e.event("superseded")
			stop := e.relay(func(ro *outbox.RelayOptions) { ro.Lease = time.Minute })
			m := say(name, 0)
			require.NoError(e, e.o.InTx(context.Background(), nil, func(ctx context.Context, tx *sql.Tx) error { return e.o.Write(ctx, tx, m) }))
			<-e.b.enter
			e.exec("UPDATE %s_shards SET token = 'somebody else', lease_until = 9000000000000000")
			close(gate)
			e.await("the write-back was refused", func() bool { return e.event("superseded") > before })
			stop()
			require.Equal(e, 1, e.number("SELECT count(*) FROM %s WHERE state = 0 AND attempts = 0 AND last_error = '' AND id = '"+m.ID+"'"))
			e.exec("UPDATE %s_shards SET token = '', lease_until = 0")
			e.exec("DELETE FROM %s")
		})
	}
}

func cleanStop(e *env) {
	e.b.enter, e.b.gate = make(chan struct{}, 9), make(chan struct{})
	gate := e.b.gate
	e.write(say("k", 0), say("k", 1))
	stop := e.relay()
	<-e.b.enter
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	select {
	case <-ended:
		require.Fail(e, "it ended with a batch in flight")
	case <-time.After(50 * time.Millisecond):
	}
	close(gate)
	<-ended
	require.True(e, e.b.has("k-0"))
	require.False(e, e.b.has("k-1"), "nothing new is begun")
	require.Equal(e, 1, e.number("SELECT count(*) FROM %s WHERE state = 1 AND id = 'k-0'"))
	require.Empty(e, e.owners(), "the shards are given back")
	require.Zero(e, e.number("SELECT count(*) FROM %s_relays"))
	e.b.set(func(b *broker) { b.gate, b.enter = nil, nil })
	e.relay()
	e.arrived(2)
	e.ordered()
}

func sweeps(e *env) {
	e.b.answer = func(m outbox.Message, _ int) error {
		if m.Key == "bad" {
			return outbox.Permanent(errNot)
		}
		return nil
	}
	ms := []outbox.Message{say("bad", 0), say("bad", 1)}
	for n := range 900 {
		ms = append(ms, outbox.Message{ID: fmt.Sprint(n), Topic: "t"})
	}
	e.write(ms...)
	for n := range ms {
		ms[n].ID = fmt.Sprint("more-", n)
	}
	e.write(ms[2:]...)
	e.exec("INSERT INTO %s_relays (token, name, alive_until) VALUES ('dead', 'dead', 1)")
	stops := []func(){e.relay(), e.relay()}
	e.await("sent", func() bool { s := e.stats(); return s.Pending == 1 && s.Parked == 1 })
	require.Equal(e, 1800, e.number("SELECT count(*) FROM %s WHERE state = 1"), "retention is not over")
	e.exec("UPDATE %s SET sent_at = sent_at - 7200000000 WHERE state = 1 AND id <> '7'")
	for _, stop := range stops {
		stop()
	}
	e.relay(func(ro *outbox.RelayOptions) { ro.Retention = time.Hour; ro.Sweep = 10 * time.Millisecond })
	e.await("swept", func() bool { return e.number("SELECT count(*) FROM %s WHERE state = 1") == 1 })
	e.await("dead relays are forgotten", func() bool { return e.number("SELECT count(*) FROM %s_relays WHERE name = 'dead'") == 0 })
	require.Equal(e, 2, e.number("SELECT count(*) FROM %s WHERE state <> 1"), "what is not sent is never swept")
	require.Equal(e, 1799, e.event("swept"))
}

func twoOutboxes(e *env) {
	second := *e
	second.table, second.b = newTable(), newBroker()
	second.o = e.outbox(e.db, second.table)
	require.NoError(e, second.o.Migrate(e.Context()))
	e.write(say("k", 0))
	same := say("k", 0)
	same.Body = []byte("another message, in the other outbox")
	second.write(same)
	e.relay()
	e.arrived(1)
	require.Zero(e, second.b.count())
	second.relay()
	second.arrived(1)
	require.Equal(e, same.Body, second.b.log[0].Body)
	require.Equal(e, 1, e.b.count())
}

func woken(e *env) {
	e.relay(func(ro *outbox.RelayOptions) { ro.Poll = time.Hour; ro.Lease = time.Minute })
	e.awaitOwners(1, 64)
	for n := range 3 {
		e.write(say("k", n))
		e.arrived(n + 1)
	}
	tx := e.begin(nil)
	require.NoError(e, e.o.Write(e.Context(), tx, say("k", 3)))
	require.NoError(e, tx.Commit())
	e.o.Wake()
	e.arrived(4)
}

// openDuplicate: a handler that runs again writes an ID whose row a relay is about to send, and stays in its transaction.
func openDuplicate(e *env) {
	e.b.enter, e.b.gate = make(chan struct{}, 9), make(chan struct{})
	gate := e.b.gate
	e.write(say("k", 0))
	e.relay()
	<-e.b.enter
	tx := e.begin(nil)
	require.NoError(e, e.o.Write(e.Context(), tx, say("k", 0), say("l", 0)))
	e.b.set(func(b *broker) { b.gate, b.enter = nil, nil })
	close(gate)
	e.arrived(1)
	e.write(say("m", 0))
	e.arrived(2)
	require.NoError(e, tx.Commit())
	e.arrived(3)
	e.await("written back", func() bool { return e.stats() == outbox.Stats{} })
}
