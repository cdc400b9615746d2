package bench

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// bodySize is that of a message, in bytes.
const bodySize = 256

// statements counts what a pool sends to the server, BEGIN and COMMIT included.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// pool is one whose statements are counted. name is what the server knows its connections by.
type pool struct {
	*sql.DB
	*statements
	name string
}

func newPool(tb testing.TB) *pool {
	tb.Helper()
	config, err := pgx.ParseConfig(testenv.PostgreSQL(tb))
	require.NoError(tb, err)
	p := &pool{statements: new(statements), name: newName()}
	config.Tracer = p.statements
	config.RuntimeParams["application_name"] = p.name
	p.DB = stdlib.OpenDB(*config)
	p.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

// outboxTable is an outbox of its own. Its statements are counted by the pool; admin is another, for looking on.
type outboxTable struct {
	*outbox.Outbox
	pool, admin *pool
}

func newOutbox(tb testing.TB) *outboxTable {
	tb.Helper()
	t := &outboxTable{pool: newPool(tb), admin: newPool(tb)}
	name := newName()
	var err error
	t.Outbox, err = outbox.New(t.pool.DB, outbox.PostgreSQL, &outbox.Options{Table: name})
	require.NoError(tb, err)
	require.NoError(tb, t.Migrate(context.Background()))
	tb.Cleanup(func() {
		for _, s := range []string{"DROP TABLE " + name, "DROP TABLE " + name + "_shards", "DROP TABLE " + name + "_relays", "DELETE FROM idemq_schema WHERE name = '" + name + "'"} {
			_, err := t.admin.Exec(s)
			require.NoError(tb, err)
		}
	})
	return t
}

func newMessage(topic string, i int) outbox.Message {
	return outbox.Message{Topic: topic, Key: fmt.Sprint("customer-", i), Body: make([]byte, bodySize)}
}

// fill commits n messages, a thousand a transaction, and wakes nobody.
func (t *outboxTable) fill(tb testing.TB, topic string, n int) {
	tb.Helper()
	for at := 0; at < n; {
		ms := make([]outbox.Message, 0, 1000)
		for ; at < n && len(ms) < cap(ms); at++ {
			ms = append(ms, newMessage(topic, at))
		}
		tx, err := t.admin.Begin()
		require.NoError(tb, err)
		require.NoError(tb, t.Write(context.Background(), tx, ms...))
		require.NoError(tb, tx.Commit())
	}
	_, err := t.admin.Exec("VACUUM ANALYZE " + t.Table())
	require.NoError(tb, err)
}

// start runs a relay for each publisher until the function that it returns is called. It returns when each
// of them has its even part of the shards, which takes them a third of a lease or two.
func (t *outboxTable) start(tb testing.TB, poll, lease time.Duration, publishers ...outbox.Publisher) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, len(publishers))
	for _, p := range publishers {
		r, err := outbox.NewRelay(t.Outbox, p, &outbox.RelayOptions{Poll: poll, Lease: lease, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(tb, err)
		go func() { ended <- r.Run(ctx) }()
	}
	part := 64 / len(publishers)
	await(tb, t.admin, fmt.Sprintf("SELECT %d = (SELECT count(*) FROM (SELECT token FROM %s_shards WHERE shard < 64 AND token <> '' GROUP BY token HAVING count(*) = %d) AS even)",
		len(publishers), t.Table(), part), func() {})
	return func() {
		cancel()
		for range publishers {
			require.NoError(tb, <-ended)
		}
	}
}

// await asks until the answer is true, and calls meanwhile now and then.
func await(tb testing.TB, admin *pool, question string, meanwhile func()) {
	tb.Helper()
	const limit = 10 * time.Minute
	for begun, n := time.Now(), 1; ; n++ {
		var yes bool
		require.NoError(tb, admin.QueryRow(question).Scan(&yes))
		if yes {
			return
		}
		require.Less(tb, time.Since(begun), limit, "%s", question)
		if n%20 == 0 {
			meanwhile()
		}
		<-time.After(5 * time.Millisecond)
	}
}

// serverCPU is what the server's processes have used for the pool's connections that are open, in hundredths
// of a second; 0 where they cannot be seen from here, as in a container.
func (p *pool) serverCPU(tb testing.TB, admin *pool) time.Duration {
	tb.Helper()
	rows, err := admin.Query("SELECT pid FROM pg_stat_activity WHERE application_name = $1", p.name)
	require.NoError(tb, err)
	defer rows.Close()
	var sum time.Duration
	for rows.Next() {
		var pid int
		require.NoError(tb, rows.Scan(&pid))
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(raw), ") ") // the name before it may hold anything
		if f := strings.Fields(after); len(f) > 12 {
			user, _ := strconv.Atoi(f[11])
			system, _ := strconv.Atoi(f[12])
			sum += time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	require.NoError(tb, rows.Err())
	return sum
}
