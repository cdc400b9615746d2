package chaos

import (
	"bytes"
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// newWordRun has 40 committed transactions and, to be chosen from them, a message after which the first relay dies.
func newWordRun(t *testing.T, relays int) (r *outboxRun, killer string) {
	r = newOutboxRunOn(t, "rabbitmq", startRabbitMQ, outbox.PostgreSQL, testenv.PostgreSQL(t), outboxAmount{}, relays)
	for range 40 {
		require.NoError(t, r.write(t.Context(), true))
	}
	for killer = range r.expected {
		break
	}
	return r, killer
}

func (r *outboxRun) said(i int, what string) bool {
	b, err := os.ReadFile(r.spec.Folder + "/" + r.names[i] + ".events")
	if !os.IsNotExist(err) {
		require.NoError(r, err)
	}
	return bytes.Contains(b, []byte(what))
}

func (r *outboxRun) awaitSaid(i int, what string) {
	require.Eventually(r, func() bool { return r.said(i, what) }, time.Minute, 10*time.Millisecond, "%s does not say that it is %s", r.names[i], what)
}

func (r *outboxRun) awaitSent() {
	require.Eventually(r, func() bool {
		s, err := r.o.Stats(context.Background())
		require.NoError(r, err)
		return s == outbox.Stats{}
	}, time.Minute, 20*time.Millisecond, "stuck")
}

// noted is how the table has a message.
func (r *outboxRun) noted(id string) (state, attempts int) {
	require.NoError(r, r.db.QueryRow("SELECT state, attempts FROM "+r.spec.Table+" WHERE id = $1", id).Scan(&state, &attempts))
	return state, attempts
}

// checkAgain requires that the broker got the killer again under its ID, and an inbox ran each message once.
func (r *outboxRun) checkAgain(killer string) {
	ids, ran := r.arrivals()
	again, copies := r.check(ids), 0
	for _, id := range ids {
		if id == killer {
			copies++
		}
	}
	require.GreaterOrEqual(r, copies, 2, "%s did not arrive again", killer)
	require.Equal(r, len(r.expected), ran, "an inbox runs each once")
	r.Logf("%d messages, %d arrived, %d of them again; an inbox ran %d", len(r.expected), len(ids), again, ran)
}

// TestRelayKilledBetweenTheBrokersWordAndItsNote: the row is published again, under the same ID.
func TestRelayKilledBetweenTheBrokersWordAndItsNote(t *testing.T) {
	t.Parallel() // most of it is waiting for a lease
	r, killer := newWordRun(t, 1)
	r.spec.Killer = killer
	r.start(0)
	_ = r.relays.all[0].Wait()
	require.Equal(t, syscall.SIGKILL, r.relays.all[0].ProcessState.Sys().(syscall.WaitStatus).Signal())
	require.True(t, r.said(0, "dying "))
	state, attempts := r.noted(killer)
	require.Equal(t, []int{0, 0}, []int{state, attempts}, "the table does not know what the broker has")
	left, err := r.broker.left()
	require.NoError(t, err)
	require.NotZero(t, left, "the broker has it")

	r.spec.Killer = ""
	r.start(0)
	r.awaitSent()
	r.relays.await(r.db)
	r.end()
	r.checkAgain(killer)
}

// TestRelayStoppedBetweenTheBrokersWordAndItsNote stands still beyond its lease while another one takes its shards and
// publishes what follows. Its note comes too late, and it begins nothing with what it had read.
func TestRelayStoppedBetweenTheBrokersWordAndItsNote(t *testing.T) {
	t.Parallel()
	r, killer := newWordRun(t, 2)
	r.spec.Killer, r.spec.Stops = killer, true
	r.start(0)
	r.awaitSaid(0, "dying ")
	r.spec.Killer = ""
	r.start(1)
	r.awaitSent()
	for range 40 {
		require.NoError(t, r.write(t.Context(), true))
	}
	r.awaitSent()
	require.False(t, r.said(0, "superseded "), "it stands still")
	require.NoError(t, r.relays.all[0].Process.Signal(syscall.SIGCONT))
	r.awaitSaid(0, "superseded ")
	for range 40 {
		require.NoError(t, r.write(t.Context(), true))
	}
	r.awaitSent()
	r.end()
	r.checkAgain(killer)
}
