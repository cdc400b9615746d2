package check

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/outbox"
)

// PostgreSQL returns the DSN of a schema of the test's own.
func PostgreSQL(t *testing.T) string {
	t.Helper()
	dsn := os.Getenv("IDEMQ_POSTGRES_DSN")
	if dsn == "" {
		const missing = `IDEMQ_POSTGRES_DSN is not set: scripts/services.sh start postgres; eval "$(scripts/services.sh env)"`
		if os.Getenv("IDEMQ_REQUIRE_SERVICES") == "1" {
			t.Fatal("a required server is missing: " + missing)
		}
		t.Skip("no server: " + missing)
	}
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	schema := "example_" + strings.ToLower(rand.Text())
	_, err = db.Exec("CREATE SCHEMA " + schema)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Exec("DROP SCHEMA " + schema + " CASCADE")
		require.NoError(t, err)
		require.NoError(t, db.Close())
	})
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// Shop is an example that takes orders and writes invoices.
type Shop struct {
	DB     *sql.DB
	Outbox *outbox.Outbox
	Place  func(ctx context.Context, id string, cents int) error
	Biller func(ctx context.Context, source consumer.Source) (*consumer.Consumer, error)
	Pools  []outbox.Tx // what a transaction is easily mistaken for
}

// Orders requires that an order and its message are there together, or neither; that a pool is no transaction; and that the
// message, however often it comes, makes one invoice and one message about it.
func Orders(t *testing.T, s Shop) {
	t.Helper()
	require.NoError(t, s.Place(t.Context(), "order-1", 1999))
	require.NoError(t, s.Place(t.Context(), "order-2", 500))
	require.Error(t, s.Place(t.Context(), "order-1", 3), "which rolls back")
	s.require(t, 2, "orders")
	s.require(t, 2, "idemq_outbox WHERE topic = 'orders'")

	for _, pool := range s.Pools {
		err := s.Outbox.Write(t.Context(), pool, outbox.Message{Topic: "orders"})
		require.ErrorIs(t, err, outbox.ErrNoTransaction, "%T", pool)
		require.ErrorContains(t, err, "pass what BeginTx returned", "%T", pool)
	}
	s.require(t, 2, "idemq_outbox")

	b := consumertest.NewBroker()
	s.relay(t, b)
	for range 2 {
		c, err := s.Biller(t.Context(), b)
		require.NoError(t, err)
		b.Drain(t, c)
		require.Empty(t, b.DeadLetters())
		s.require(t, 2, "invoices JOIN orders ON order_id = id AND orders.cents = invoices.cents")
		s.require(t, 2, "invoices")
		s.require(t, 2, "idemq_outbox WHERE topic = 'invoices'")
		b.Redeliver()
	}
}

// require counts rows.
func (s Shop) require(t *testing.T, want int, from string) {
	t.Helper()
	var n int
	require.NoError(t, s.DB.QueryRow("SELECT count(*) FROM "+from).Scan(&n))
	require.Equal(t, want, n, from)
}

// relay publishes what is in the outbox to b.
func (s Shop) relay(t *testing.T, b *consumertest.Broker) {
	t.Helper()
	r, err := outbox.NewRelay(s.Outbox, publisher{b}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	require.Eventually(t, func() bool {
		stats, err := r.Stats(t.Context())
		return err == nil && stats.Pending == 0
	}, time.Minute, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

// publisher stands for a broker's.
type publisher struct{ b *consumertest.Broker }

func (p publisher) Publish(_ context.Context, ms []outbox.Message, _ []error) error {
	for _, m := range ms {
		p.b.Publish(consumer.Message{ID: m.ID, Topic: m.Topic, Key: m.Key, Headers: m.Headers, Body: m.Body})
	}
	return nil
}
