package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// arrived is a broker that takes what is not bad, and remembers it.
type arrived struct {
	mu  sync.Mutex
	ids []string
}

func (a *arrived) Publish(_ context.Context, ms []outbox.Message, errs []error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, m := range ms {
		if m.Key == "bad" {
			errs[i] = outbox.Permanent(errors.New("never"))
			continue
		}
		a.ids = append(a.ids, m.ID)
	}
	return nil
}

func (a *arrived) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, a.ids...)
}

// dump copies the tables of b into another database with the server's own tools.
func (b *base) dump(t *testing.T, dsn string) {
	for _, tool := range []string{"pg_dump", "psql"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Missing(t, tool+" is not installed: it comes with PostgreSQL's client")
		}
	}
	args := []string{"--no-owner", "--dbname", b.dsn}
	for _, table := range []string{b.table, b.table + "_shards", b.table + "_relays", "idemq_schema"} {
		args = append(args, "--table", table)
	}
	text, err := exec.CommandContext(t.Context(), "pg_dump", args...).Output()
	require.NoError(t, err)
	restore := exec.CommandContext(t.Context(), "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", dsn)
	in, err := restore.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, restore.Start())
	_, err = in.Write(text)
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, restore.Wait())
}

// TestDumpRestoredIntoAnotherDatabaseGoesOn is taken while a relay has the shards, which the other database's relays wait for. From
// then on each goes its own way; what both publish has the same IDs.
func TestDumpRestoredIntoAnotherDatabaseGoesOn(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	server := testenv.StartPostgreSQL(t)
	first := &arrived{}
	stop := run(t, b.Outbox, first, outbox.RelayOptions{Lease: 3 * time.Second})
	b.write(t, outbox.Message{ID: "k-0", Topic: "t", Key: "k"}, outbox.Message{ID: "bad-0", Topic: "t", Key: "bad"})
	b.write(t, outbox.Message{ID: "bad-1", Topic: "t", Key: "bad"})
	b.awaitStats(t, 1, 1)
	tx, err := b.db.BeginTx(t.Context(), nil) // open while the dump is taken, so it is no part of it
	require.NoError(t, err)
	require.NoError(t, b.Write(t.Context(), tx, outbox.Message{ID: "open", Topic: "t"}))
	b.dump(t, server.DSN)
	require.NoError(t, tx.Commit())

	restored := &base{dialect: b.dialect, db: open(t, b.driver, server.DSN), driver: b.driver, dsn: server.DSN, table: b.table}
	t.Cleanup(func() { _ = restored.db.Close() })
	restored.Outbox = restored.outbox(t, restored.db, nil)
	require.NoError(t, restored.Migrate(t.Context()))
	second := &arrived{}
	run(t, restored.Outbox, second, outbox.RelayOptions{Lease: 3 * time.Second})
	restored.write(t, outbox.Message{ID: "k-0", Topic: "t", Key: "k"}, outbox.Message{ID: "k-1", Topic: "t", Key: "k"}) // the first is there
	err = restored.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		return restored.Write(ctx, tx, outbox.Message{ID: "k-0", Topic: "t", Key: "k", Body: []byte("another")})
	})
	require.ErrorIs(t, err, outbox.ErrConflict)
	restored.awaitStats(t, 1, 1)
	require.Equal(t, []string{"k-1"}, second.all())
	for table, want := range map[*base]int{b: 4, restored: 4} { // k-0, bad-0, bad-1, and open or k-1
		var rows, distinct int
		require.NoError(t, table.db.QueryRow("SELECT count(*), count(DISTINCT seq) FROM "+table.table).Scan(&rows, &distinct))
		require.Equal(t, []int{want, want}, []int{rows, distinct}, "numbers go on")
	}
	b.awaitStats(t, 1, 1)
	require.Equal(t, []string{"k-0", "open"}, first.all())
	stop()
}
