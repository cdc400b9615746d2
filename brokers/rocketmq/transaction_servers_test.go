package rocketmq_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// shop is a database with a table of business rows and one of markers.
type shop struct {
	*sql.DB
	dialect         sqldialect.Dialect
	rows, markers   string
	driver, address string
}

var drivers = map[sqldialect.Dialect]string{sqldialect.PostgreSQL: "pgx", sqldialect.MySQL: "mysql", sqldialect.SQLite: "sqlite"}

func openShop(t testing.TB, d sqldialect.Dialect) *shop {
	t.Helper()
	dsn := ""
	switch d {
	case sqldialect.PostgreSQL:
		dsn = testenv.PostgreSQL(t)
	case sqldialect.MySQL:
		dsn = testenv.MySQL(t)
	default:
		dsn = "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(1000)&_pragma=synchronous(normal)"
	}
	return openShopAt(t, d, dsn)
}

func openShopAt(t testing.TB, d sqldialect.Dialect, dsn string) *shop {
	t.Helper()
	var b [6]byte
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	s := &shop{dialect: d, rows: "orders_" + hex.EncodeToString(b[:]), markers: "markers_" + hex.EncodeToString(b[:]), driver: drivers[d], address: dsn}
	s.DB = s.open(t, dsn)
	s.exec(t, "CREATE TABLE "+s.rows+" (id varchar(64) NOT NULL PRIMARY KEY)")
	t.Cleanup(func() {
		_, _ = s.Exec("DROP TABLE IF EXISTS " + s.rows)
		_, _ = s.Exec("DROP TABLE IF EXISTS " + s.markers)
		_, _ = s.Exec("DELETE FROM idemq_schema WHERE name = '" + s.markers + "'")
	})
	return s
}

// open is a pool of its own, as another process has.
func (s *shop) open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(s.driver, dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (s *shop) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	_, err := s.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

func (s *shop) count(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, s.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}

// has reports whether the business row of id is committed.
func (s *shop) has(t testing.TB, id string) bool {
	t.Helper()
	return s.count(t, "SELECT COUNT(*) FROM "+s.rows+" WHERE id = '"+id+"'") == 1
}

// marks is how many rows of that state the table of markers has: 1 committed, 2 confirmed, 3 tombstone.
func (s *shop) marks(t testing.TB, state int) int {
	t.Helper()
	return s.count(t, fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE state = %d", s.markers, state))
}

// bytes is a literal of the dialect.
func (s *shop) bytes(v string) string {
	if s.dialect == sqldialect.PostgreSQL {
		return `'\x` + hex.EncodeToString([]byte(v)) + "'"
	}
	return "x'" + hex.EncodeToString([]byte(v)) + "'"
}

// order is the local transaction of id.
func (s *shop) order(id string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO "+s.rows+" (id) VALUES ('"+id+"')")
		return err
	}
}

// eachShop runs f on every dialect that can be had.
func eachShop(t *testing.T, f func(t *testing.T, s *shop)) {
	for _, d := range []sqldialect.Dialect{sqldialect.SQLite, sqldialect.PostgreSQL, sqldialect.MySQL} {
		t.Run(string(d), func(t *testing.T) { f(t, openShop(t, d)) })
	}
}

// seller is a running TransactionProducer.
type seller struct {
	*rocketmq.TransactionProducer
	t     testing.TB
	log   *log
	stop  context.CancelFunc
	ended chan error
	once  sync.Once
	err   error
}

func (w world) newSeller(t testing.TB, s *shop, edit ...func(*rocketmq.TransactionOptions)) *seller {
	t.Helper()
	x := w.idleSeller(t, s, edit...)
	require.NoError(t, x.Migrate(t.Context()))
	x.run()
	return x
}

func (w world) idleSeller(t testing.TB, s *shop, edit ...func(*rocketmq.TransactionOptions)) *seller {
	t.Helper()
	x := &seller{t: t, log: new(log), ended: make(chan error, 1)}
	o := rocketmq.TransactionOptions{Table: s.markers, Logger: x.log.logger()}
	for _, e := range edit {
		e(&o)
	}
	p, err := rocketmq.NewTransactionProducer(w.cluster, w.group+"-tx", s.DB, s.dialect, &o)
	require.NoError(t, err)
	x.TransactionProducer = p
	return x
}

func (x *seller) run() {
	ctx, stop := context.WithCancel(context.Background())
	x.stop = stop
	go func() { x.ended <- x.Run(ctx) }()
	x.t.Cleanup(func() { _ = x.end() })
}

// end ends Run and returns its answer.
func (x *seller) end() error {
	x.once.Do(func() {
		x.stop()
		select {
		case x.err = <-x.ended:
		case <-time.After(eventually):
			x.t.Errorf("Run does not end")
		}
	})
	return x.err
}

func (w world) message(id string) outbox.Message {
	return outbox.Message{ID: id, Topic: w.topic, Body: []byte(id)}
}

// visible receives until every one of ids has come; what else comes is in the answer, too. It is how
// often each came.
func visible(t testing.TB, s *rocketmq.Source, ids ...string) map[string]int {
	t.Helper()
	ctx := within(t, time.Minute)
	seen := make(map[string]int)
	missing := func() bool {
		for _, id := range ids {
			if seen[id] == 0 {
				return true
			}
		}
		return false
	}
	for missing() {
		ds, err := s.Receive(ctx, 100)
		require.NoError(t, err, "seen %v of %v", seen, ids)
		countAll(t, seen, ds)
	}
	return seen
}

// deliveries are those that come, one by one.
func deliveries(t testing.TB, s *rocketmq.Source) iter.Seq[consumer.Delivery] {
	return func(yield func(consumer.Delivery) bool) {
		for {
			d := receive(t, s, 1)[0]
			ack(t, d)
			if !yield(d) {
				return
			}
		}
	}
}

func countAll(t testing.TB, seen map[string]int, ds []consumer.Delivery) {
	t.Helper()
	for _, d := range ds {
		require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
		seen[d.Message.ID]++
	}
	ack(t, ds...)
}

var errOrder = errors.New("no such article")

// failing is fn with an error at its end.
func failing(fn func(context.Context, *sql.Tx) error) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(fn(ctx, tx), errOrder)
	}
}

const step = 20 * time.Millisecond

// address is where the server of a PostgreSQL DSN is.
func address(t testing.TB, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	return u.Host
}

// through is the DSN with another address.
func through(t testing.TB, dsn, addr string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Host = addr
	return u.String()
}
