package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// awaitNote waits until a relay's note has begun, and waits for a row: it comes to no end while somebody else has that.
func (b *base) awaitNote(t *testing.T) {
	t.Helper()
	text := map[outbox.Dialect]string{
		outbox.PostgreSQL: "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'",
		outbox.MySQL:      "SELECT count(*) FROM information_schema.processlist WHERE time_ms >= 20 AND info LIKE CONCAT('%', ?, '%AS t FORCE INDEX (PRIMARY)%')",
	}[b.dialect]
	require.Eventually(t, func() bool {
		n := 0
		require.NoError(t, b.db.QueryRow(text, b.table).Scan(&n))
		return n > 0
	}, eventually, 2*time.Millisecond, "nobody waits")
}

// TestDeadlockWithANoteIsRepeated: a transaction that locks rows in the other order meets a relay's note of a batch. When
// the server ends the note, it is made again, and nothing is published twice.
func TestDeadlockWithANoteIsRepeated(t *testing.T) {
	for _, d := range []outbox.Dialect{outbox.PostgreSQL, outbox.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			b := newBase(t, d)
			published := make(chan int, 100)
			release := make(chan struct{})
			run(t, b.Outbox, publisher(func(ms []outbox.Message, _ []error) error {
				published <- len(ms)
				<-release
				return nil
			}), outbox.RelayOptions{})
			ended := 0 // by the server: our transaction
			const rounds = 2
			for n := range rounds {
				var ms []outbox.Message
				for i := range 10 {
					ms = append(ms, outbox.Message{ID: fmt.Sprintf("%d-%d", n, i), Topic: "t"})
				}
				b.write(t, ms...)
				require.Equal(t, len(ms), <-published)
				tx, err := b.db.BeginTx(t.Context(), nil)
				require.NoError(t, err)
				lock := func(i int) error {
					_, err := tx.Exec(fmt.Sprintf("UPDATE %s SET last_error = 'locked' WHERE id = '%d-%d'", b.table, n, i))
					return err
				}
				many := make([]outbox.Message, 100) // so that it is not this one that costs less to end
				for i := range many {
					many[i].Topic = "never"
				}
				require.NoError(t, b.Write(t.Context(), tx, many...))
				require.NoError(t, lock(9))
				release <- struct{}{}
				b.awaitNote(t)
				if err := lock(0); err != nil {
					ended++
				}
				_ = tx.Rollback()
				b.awaitSent(t)
			}
			require.Empty(t, published, "nothing is published again")
			var marked int
			require.NoError(t, b.db.QueryRow("SELECT count(*) FROM "+b.table+" WHERE state = 1 AND attempts = 0").Scan(&marked))
			require.Equal(t, 10*rounds, marked)
			t.Logf("%d deadlocks ended the note, %d the other transaction", rounds-ended, ended)
		})
	}
}
