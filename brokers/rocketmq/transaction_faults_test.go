package rocketmq_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// proxied is a shop whose connections pass a proxy.
func proxied(t *testing.T, s *shop) (*shop, *testenv.Proxy) {
	t.Helper()
	far := *s
	require.Equal(t, sqldialect.PostgreSQL, s.dialect)
	proxy := testenv.NewProxy(t, address(t, s.address))
	far.DB = s.open(t, through(t, s.address, proxy.Addr))
	return &far, proxy
}

// The commit takes a while, and the connection breaks meanwhile. What becomes of it the process cannot know, and does not say.
func commitIsNotAnswered(t *testing.T, server *testenv.RocketMQServer) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			w, s := ownWorld(t, server, 1), openShop(t, sqldialect.PostgreSQL)
			s.exec(t, "CREATE FUNCTION "+s.rows+"_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$")
			s.exec(t, "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON "+s.rows+" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION "+s.rows+"_slow()")
			t.Cleanup(func() { _, _ = s.Exec("DROP FUNCTION " + s.rows + "_slow() CASCADE") })
			far, proxy := proxied(t, s)
			p := w.newSeller(t, far)
			answer, process := make(chan error, 1), make(chan int, 1)
			go func() {
				answer <- p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
					var pid int
					if err := tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
						return err
					}
					process <- pid
					return s.order("a")(ctx, tx)
				})
			}()
			pid := <-process
			require.Eventually(t, func() bool {
				return s.count(t, "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid) == 1
			}, eventually, step, "it does not commit")
			proxy.Cut()
			if killed {
				s.count(t, "SELECT COUNT(*) FROM (SELECT pg_terminate_backend($1)) AS t", pid)
			}
			err := <-answer
			require.ErrorIs(t, err, dedup.ErrUnavailable)
			require.ErrorContains(t, err, "it may have happened")
			proxy.Mend()
			if killed {
				buried(t, w, s, 1, "a")
				return
			}
			visible(t, w.source(t), "a")
			require.True(t, s.has(t, "a"))
			require.Zero(t, s.marks(t, 3))
		})
	}
}

func databaseIsDownAtTheCheck(t *testing.T, server *testenv.RocketMQServer) {
	w, s := ownWorld(t, server, 1), openShop(t, sqldialect.PostgreSQL)
	far, proxy := proxied(t, s)
	p := w.newSeller(t, far)
	h, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	done, err := h.Try(t.Context(), s.order("a"))
	require.NoError(t, err)
	require.True(t, done)
	gone, err := p.Prepare(t.Context(), w.message("gone"))
	require.NoError(t, err)
	proxy.Cut()
	require.Eventually(t, func() bool { return p.log.has("could not be answered") }, eventually, step, "nobody asked")
	err = gone.CarryOut(t.Context(), s.order("gone"))
	require.ErrorContains(t, err, "begin: ")
	require.NotErrorIs(t, err, dedup.ErrUnavailable, "nothing can have happened")
	watch := w.source(t)
	nothing(t, watch, 2*time.Second)
	proxy.Mend()
	visible(t, watch, "a")
	require.Eventually(t, func() bool { return s.marks(t, 3) == 1 }, eventually, step)
	require.False(t, s.has(t, "gone"))
}

func severalProcessesOfOneGroup(t *testing.T, server *testenv.RocketMQServer) {
	w, s := ownWorld(t, server, 2), openShop(t, sqldialect.PostgreSQL)
	var sellers []*seller
	var ids []string
	for range 3 {
		sellers = append(sellers, w.newSeller(t, s))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, p := range sellers {
		for n := range 10 {
			id := fmt.Sprintf("%d-%d", i, n)
			wg.Go(func() {
				h, err := p.Prepare(t.Context(), w.message(id))
				assert.NoError(t, err)
				if n%2 == 0 {
					err = h.CarryOut(t.Context(), s.order(id))
				} else {
					_, err = h.Try(t.Context(), s.order(id)) // the others, or itself, will say how it ended
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					ids = append(ids, id)
				} // else the machine is so slow that it was asked before it began
			})
		}
	}
	wg.Wait()
	require.Greater(t, len(ids), 10)
	require.NoError(t, sellers[0].end(), "the others answer for it")
	seen := visible(t, w.source(t), ids...)
	require.Len(t, seen, len(ids))
	require.Equal(t, len(ids), s.count(t, "SELECT COUNT(*) FROM "+s.rows))
}

// A broker that was told twice makes it visible twice.
func copyThatComesTwiceIsDropped(t *testing.T, server *testenv.RocketMQServer) {
	w, s := ownWorld(t, server, 1), openShop(t, sqldialect.SQLite)
	p := w.newSeller(t, s)
	h, err := p.Prepare(t.Context(), w.message("a"))
	require.NoError(t, err)
	require.NoError(t, h.CarryOut(t.Context(), s.order("a")))
	h.Commit(t.Context())
	require.NoError(t, p.Send(t.Context(), w.message("end"), s.order("end")))

	guard, err := dedup.New("test", memstore.New(), nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	runs := make(map[string]int)
	c, err := consumer.New(w.source(t), guard, func(_ context.Context, m *consumer.Message) error {
		if runs[m.ID]++; m.ID == "end" {
			stop()
		}
		return nil
	}, &consumer.Options{Policy: consumer.Policy{Concurrency: 1}})
	require.NoError(t, err)
	require.NoError(t, c.Run(ctx))
	require.Equal(t, map[string]int{"a": 1, "end": 1}, runs)
	seen := visible(t, w.sourceOf(t, w.group+"-raw", []string{w.topic}), "end")
	require.GreaterOrEqual(t, seen["a"], 2, "it did come twice")
}

func brokerIsKilledInTheMiddle(t *testing.T, server *testenv.RocketMQServer) {
	w, s := ownWorld(t, server, 1), openShop(t, sqldialect.PostgreSQL)
	p := w.newSeller(t, s)
	require.NoError(t, p.Send(t.Context(), w.message("before"), func(ctx context.Context, tx *sql.Tx) error {
		server.Broker.Kill() // what it has written the machine still has
		return s.order("before")(ctx, tx)
	}), "committed, although nobody could be told")
	err := p.Send(within(t, 2*time.Second), w.message("meanwhile"), s.order("meanwhile"))
	require.Error(t, err, "no broker takes a half message")
	require.False(t, s.has(t, "meanwhile"))
	server.Broker.Start()
	require.NoError(t, p.Send(within(t, eventually), w.message("after"), s.order("after")))
	visible(t, w.source(t), "before", "after")
}

// Two transactions lock two rows in opposite order. One of them is ended by the server, and begins anew.
func TestDeadlockBeginsTheTransactionAnew(t *testing.T) {
	for _, d := range []sqldialect.Dialect{sqldialect.PostgreSQL, sqldialect.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			w, s := newWorld(t, 1), openShop(t, d)
			s.exec(t, "INSERT INTO "+s.rows+" (id) VALUES ('x'), ('y')")
			p := w.newSeller(t, s)
			var meet sync.WaitGroup
			meet.Add(2)
			var mu sync.Mutex
			runs := 0
			sell := func(id, first, second string) error {
				once := sync.OnceFunc(func() { meet.Done(); meet.Wait() })
				return p.Send(t.Context(), w.message(id), func(ctx context.Context, tx *sql.Tx) error {
					mu.Lock()
					runs++
					mu.Unlock()
					for _, row := range []string{first, second} {
						if _, err := tx.ExecContext(ctx, "UPDATE "+s.rows+" SET id = id WHERE id = '"+row+"'"); err != nil {
							return err
						}
						if _, err := tx.ExecContext(ctx, "SELECT id FROM "+s.rows+" WHERE id = '"+row+"' FOR UPDATE"); err != nil {
							return err
						}
						once()
					}
					return s.order(id)(ctx, tx)
				})
			}
			other := make(chan error, 1)
			go func() { other <- sell("b", "y", "x") }()
			require.NoError(t, sell("a", "x", "y"))
			require.NoError(t, <-other)
			require.GreaterOrEqual(t, runs, 3, "there was no deadlock")
			visible(t, w.source(t), "a", "b")
			require.Equal(t, 4, s.count(t, "SELECT COUNT(*) FROM "+s.rows))
		})
	}
}

// With a rollback journal a reader keeps SQLite from committing, and the transaction stays open.
func TestRefusedCommitLeavesNothingBehind(t *testing.T) {
	w := newWorld(t, 1)
	s := openShopAt(t, sqldialect.SQLite, "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=journal_mode(DELETE)&_pragma=busy_timeout(100)")
	s.SetMaxOpenConns(2)
	p := w.newSeller(t, s)
	s.exec(t, "INSERT INTO "+s.rows+" (id) VALUES ('x'), ('y')")
	reader, err := s.open(t, s.address).Query("SELECT id FROM " + s.rows)
	require.NoError(t, err)
	require.True(t, reader.Next())
	err = p.Send(t.Context(), w.message("a"), s.order("a"))
	require.ErrorContains(t, err, "commit: ")
	require.NoError(t, reader.Close())
	for _, id := range []string{"b", "c", "d"} {
		require.NoError(t, p.Send(t.Context(), w.message(id), s.order(id)), "a connection is in an old transaction")
	}
	require.NotContains(t, visible(t, w.source(t), "b", "c", "d"), "a")
	require.False(t, s.has(t, "a"))
}

// The broker asks three times, then never again.
func messagesThatNobodyAnsweredForAreSentAgain(t *testing.T, server *testenv.RocketMQServer) {
	eachShop(t, func(t *testing.T, s *shop) {
		t.Parallel()
		w := ownWorld(t, server, 1)
		p := w.newSeller(t, s)
		sent := outbox.Message{ID: "a", Topic: w.topic, Key: "k\x00", Headers: map[string]string{"h": "v", "odd": "\x00\xff"}, Body: []byte{0, 1}}
		h, err := p.Prepare(t.Context(), sent)
		require.NoError(t, err)
		require.Equal(t, 1200*time.Millisecond, p.GivenUpAfter(), "as the broker says")
		done, err := h.Try(t.Context(), s.order("a"))
		require.NoError(t, err)
		require.True(t, done)
		require.NoError(t, p.end())
		watch := w.source(t)
		nothing(t, watch, 4*time.Second)

		p = w.newSeller(t, s)
		require.NoError(t, p.Send(t.Context(), outbox.Message{ID: "b", Topic: w.topic}, s.order("b")))
		visible(t, watch, "b")
		require.Eventually(t, func() bool { return s.marks(t, 2) == 1 }, eventually, step)
		left, err := p.Unconfirmed(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, []outbox.Message{sent}, left)
		n, err := p.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		for d := range deliveries(t, watch) {
			require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
			if d.Message.ID == "b" { // a broker that asks so soon may make it visible twice
				continue
			}
			require.Equal(t, sent, outbox.Message{ID: d.Message.ID, Topic: d.Topic, Key: d.Key, Body: d.Body,
				Headers: map[string]string{"h": d.Headers["h"], "odd": d.Headers["odd"]}})
			break
		}
		n, err = p.Resend(t.Context())
		require.NoError(t, err)
		require.Zero(t, n, "it is confirmed")
	})
}

func retentionBelowWhatTheBrokerAsksIsRefused(t *testing.T, server *testenv.RocketMQServer) {
	s := openShop(t, sqldialect.SQLite)
	p := ownWorld(t, server, 1).idleSeller(t, s, func(o *rocketmq.TransactionOptions) { o.Limit, o.Retention = time.Second, 1100*time.Millisecond })
	require.NoError(t, p.Migrate(t.Context()))
	err := p.Run(within(t, eventually))
	require.ErrorContains(t, err, "TransactionOptions.Retention 1.1s is not longer than the 1.2s for which the broker asks about a half message")
	require.ErrorContains(t, err, "raise Retention")
}
