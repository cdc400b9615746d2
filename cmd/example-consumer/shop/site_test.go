package shop_test

import (
	"context"
	"database/sql"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/cmd/example-consumer/shop"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually is long enough for a slow machine, and soon over where all is well.
const eventually = 30 * time.Second

const topic = "shop-orders"

// site is a shop on an embedded Kafka and a SQLite database, open as long as the test runs.
type site struct {
	*testing.T
	shop      *shop.Shop
	url       string // of its pages, behind sent
	db        *sql.DB
	store     *sqlstore.Store // of its tokens and keys
	publisher *kafka.Publisher
	sent      submissions

	own   string // its own address, which close shuts
	close func() error
}

// openSite opens it with the parts as change makes them.
func openSite(t *testing.T, change ...func(p *shop.Parts)) *site {
	t.Helper()
	s := &site{T: t, sent: submissions{arrived: make(chan string, 100), over: t.Context().Done()}}
	s.openDatabase()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, topic),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	at := kafka.Cluster{Brokers: cluster.ListenAddrs()}
	s.publisher, err = kafka.NewPublisher(at, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.publisher.Close()) })
	quiet := slog.New(slog.DiscardHandler)
	source, err := kafka.NewSource(at, "shop", []string{topic}, &kafka.SourceOptions{Logger: quiet})
	require.NoError(t, err)
	parts := shop.Parts{
		DB: s.db, Dialect: sqlstore.SQLite, Store: s.store, Topic: topic, Publisher: s.publisher, Source: source,
		FormTTL: time.Hour, Logger: quiet,
	}
	for _, f := range change {
		f(&parts)
	}
	s.shop, err = shop.New(t.Context(), parts)
	require.NoError(t, err)
	s.run()
	s.sent.next = s.shop.Handler()
	pages := httptest.NewServer(&s.sent)
	t.Cleanup(pages.Close)
	s.url = pages.URL
	return s
}

func (s *site) openDatabase() {
	s.Helper()
	var err error
	s.db, err = sql.Open("sqlite", "file:"+filepath.Join(s.TempDir(), "shop.db")+
		"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, s.db.Close()) })
	s.store, err = sqlstore.New(s.db, sqlstore.SQLite, nil)
	require.NoError(s, err)
	require.NoError(s, s.store.Migrate(s.Context()))
}

// run opens the shop until the test ends.
func (s *site) run() {
	s.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s, err)
	s.own = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	closed := make(chan error, 1)
	go func() { closed <- s.shop.Run(ctx, l) }()
	s.close = sync.OnceValue(func() error {
		cancel()
		return <-closed
	})
	s.Cleanup(func() { require.NoError(s, s.close()) })
}

// count is how many rows a table has.
func (s *site) count(table string) (n int) {
	s.Helper()
	require.NoError(s, s.db.QueryRow("SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// guard is one on the shop's records.
func (s *site) guard() *dedup.Guard {
	s.Helper()
	g, err := dedup.New(shop.App, s.store, nil)
	require.NoError(s, err)
	return g
}

// submissions tells of each POST that arrives, and can make the shop slow.
type submissions struct {
	next    http.Handler
	arrived chan string // paths
	over    <-chan struct{}

	mu   sync.Mutex
	slow chan struct{} // answers are held back until it is closed; nil: they are not
}

func (s *submissions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		s.next.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	select {
	case s.arrived <- r.URL.Path:
	default: // nobody listens
	}
	s.next.ServeHTTP(w, r) // its answer fits into the server's buffer, which is sent when this returns
	if slow != nil {
		select {
		case <-slow:
		case <-s.over:
		}
	}
}

// slowDown holds back all answers until hurry is called.
func (s *submissions) slowDown() (hurry func()) {
	slow := make(chan struct{})
	set := func(c chan struct{}) {
		s.mu.Lock()
		s.slow = c
		s.mu.Unlock()
	}
	set(slow)
	return sync.OnceFunc(func() {
		set(nil)
		close(slow)
	})
}

// await waits for n submissions.
func (s *site) await(n int) {
	s.Helper()
	for range n {
		select {
		case <-s.sent.arrived:
		case <-time.After(eventually):
			s.Fatal("a submission that was expected does not arrive")
		}
	}
}
