package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// outboxAmount is how many transactions are committed and rolled back, over what time, and what is
// done to relays and broker meanwhile.
type outboxAmount struct {
	committed, rolledBack int
	lasting, every        time.Duration // a relay is killed, or stopped for longer than its lease, in turn
	restarts              int           // of the broker
}

const (
	outboxWriters = 8
	outboxKeys    = 48
)

// outboxRun is eight writers, four relays, a broker and a database.
type outboxRun struct {
	*testing.T
	outboxAmount
	relays
	db     *sql.DB
	o      *outbox.Outbox
	keys   string // the table of the writers' own rows
	broker broker

	mu       sync.Mutex
	expected map[string]bool // committed
}

// startOwnKafka is a broker of the test's own.
func startOwnKafka(t *testing.T, s *childSpec, partitions int) broker {
	server := testenv.StartKafka(t)
	s.Brokers = []string{server.Addr}
	k := &kafkaTopic{client: &kafkago.Client{Addr: kafkago.TCP(s.Brokers...)}, topic: s.Topic, group: s.Group, partitions: partitions}
	_, err := k.client.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: k.topic, NumPartitions: partitions, ReplicationFactor: 1}}})
	require.NoError(t, err)
	return &ownKafka{k, server}
}

type ownKafka struct {
	*kafkaTopic
	server *testenv.KafkaServer
}

func (k *ownKafka) restart() { k.server.Restart() }

func newOutboxRun(t *testing.T, kind string, d outbox.Dialect, dsn string, a outboxAmount) *outboxRun {
	own := map[string]startBroker{"kafka": startOwnKafka, "rabbitmq": startOwnRabbitMQ, "rocketmq": startOwnRocketMQ}[kind]
	return newOutboxRunOn(t, kind, own, d, dsn, a, 4)
}

type startBroker func(t *testing.T, s *childSpec, partitions int) broker

func newOutboxRunOn(t *testing.T, kind string, start startBroker, d outbox.Dialect, dsn string, a outboxAmount, relays int) *outboxRun {
	name := fmt.Sprintf("outbox_%d", time.Now().UnixNano())
	r := &outboxRun{T: t, outboxAmount: a, keys: name + "_keys", expected: make(map[string]bool, a.committed)}
	r.relays = newRelays(t, relaySpec{Table: name, childSpec: childSpec{
		Broker: kind, Topic: name, Group: name, Folder: t.TempDir(), Lease: 2 * time.Second, Session: timeouts, Dialect: d, DSN: dsn,
	}}, relays)
	r.broker = start(t, &r.spec.childSpec, 4)
	var err error
	r.db, r.o, err = r.spec.open()
	require.NoError(t, err)
	require.NoError(t, r.o.Migrate(t.Context()))
	t.Cleanup(func() {
		for _, table := range []string{name, name + "_shards", name + "_relays", r.keys} {
			_, _ = r.db.Exec("DROP TABLE IF EXISTS " + table)
		}
		_, _ = r.db.Exec("DELETE FROM idemq_schema WHERE name = '" + name + "'")
		_ = r.db.Close()
	})
	_, err = r.db.Exec("CREATE TABLE " + r.keys + " (k int PRIMARY KEY, n int NOT NULL)")
	require.NoError(t, err)
	for k := range outboxKeys {
		_, err = r.db.Exec(fmt.Sprintf("INSERT INTO %s (k, n) VALUES (%d, 0)", r.keys, k))
		require.NoError(t, err)
	}
	return r
}

// write is one transaction: it locks its key, writes a message with the key's next number, and sometimes
// two, and counts the key's row on.
func (r *outboxRun) write(ctx context.Context, commit bool) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	k, n := rand.N(outboxKeys), 0
	if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT n FROM %s WHERE k = %d FOR UPDATE", r.keys, k)).Scan(&n); err != nil {
		return err
	}
	var ms []outbox.Message
	for range 1 + rand.N(2) {
		m := outbox.Message{ID: fmt.Sprintf("%d.%d", k, n), Topic: r.spec.Topic, Key: strconv.Itoa(k), Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, Body: []byte(`{"an":"order"}`)}
		if !commit {
			m.ID += ".rolled back"
		}
		ms = append(ms, m)
		n++
	}
	if err := r.o.Write(ctx, tx, ms...); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET n = %d WHERE k = %d", r.keys, n, k)); err != nil || !commit {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range ms {
		r.expected[m.ID] = true
	}
	return nil
}

// writeAll has all transactions begin evenly over the time they are to last.
func (r *outboxRun) writeAll(ctx context.Context) {
	all := r.committed + r.rolledBack
	work := make(chan bool)
	var wg sync.WaitGroup
	for range outboxWriters {
		wg.Go(func() {
			for commit := range work {
				if err := r.write(ctx, commit); err != nil {
					r.Error(err)
				}
			}
		})
	}
	began := time.Now()
	for i := range all {
		<-time.After(time.Until(began.Add(r.lasting * time.Duration(i) / time.Duration(all))))
		work <- (i+1)*r.rolledBack/all == i*r.rolledBack/all
	}
	close(work)
	wg.Wait()
}

// harm does what is to be done to relays and broker while the writers write, and returns how often.
func (r *outboxRun) harm(done <-chan struct{}) (kills, freezes, restarts int) {
	again := time.NewTicker(r.every)
	defer again.Stop()
	began := time.Now()
	for n := 0; ; n++ {
		select {
		case <-done:
			return kills, freezes, restarts
		case <-again.C:
		}
		if restarts < r.outboxAmount.restarts && time.Since(began) > r.lasting*time.Duration(restarts+1)/time.Duration(r.outboxAmount.restarts+1) {
			r.broker.restart()
			restarts++
		}
		i := rand.N(len(r.relays.all))
		if n%4 == 3 {
			r.freeze(i)
			freezes++
			continue
		}
		r.kill(i)
		kills++
		r.start(i)
	}
}

// arrivals are what is on the broker, in its order, with how many of them an inbox runs.
func (r *outboxRun) arrivals() (ids []string, ran int) {
	guard, err := dedup.New("chaos", memstore.New(), nil)
	require.NoError(r, err)
	ids = received(r.T, &r.spec.childSpec, len(r.expected))
	for _, id := range ids {
		done, err := guard.Do(context.Background(), dedup.Work{Scope: r.spec.Topic, ID: id}, func(context.Context) error { return nil })
		require.NoError(r, err)
		if done {
			ran++
		}
	}
	return ids, ran
}

// received are the IDs of all that is on a topic or queue, in the broker's order; so many distinct ones are expected.
func received(t *testing.T, s *childSpec, expected int) (ids []string) {
	source, err := kindOf(s.Broker).open(s, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, err = source.Plan(consumer.Policy{})
	require.NoError(t, err)
	quiet, seen := time.Minute, make(map[string]bool) // the first may take as long as a group takes to form
	for {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		ds, err := source.Receive(ctx, 256)
		cancel()
		if err != nil {
			break
		}
		for _, d := range ds {
			require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
			ids = append(ids, d.ID)
			seen[d.ID] = true
			require.NoError(t, d.Ack(context.Background()))
		}
		if len(seen) >= expected {
			quiet = time.Second // what comes again is nearly all behind it
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, source.Close(ctx))
	return ids
}

// check requires that what was committed arrived, what was rolled back did not, and that the first arrivals
// of each key are in order. It returns how many came again.
func (r *outboxRun) check(ids []string) (again int) {
	seen, next := make(map[string]bool, len(ids)), make(map[string]int)
	for _, id := range ids {
		if seen[id] {
			again++
			continue
		}
		seen[id] = true
		require.True(r, r.expected[id], "%s arrived and was not committed", id)
		key, n, _ := strings.Cut(id, ".")
		require.Equal(r, strconv.Itoa(next[key]), n, "first arrivals of key %s", key)
		next[key]++
	}
	require.Len(r, seen, len(r.expected), "committed messages did not arrive")
	return again
}

// TestCommittedMessagesArriveWhateverIsKilled writes in transactions, some of them rolled back, while relays are
// killed and stopped and the broker is killed and started.
func TestCommittedMessagesArriveWhateverIsKilled(t *testing.T) {
	a := outboxAmount{committed: 1600, rolledBack: 400, lasting: 8 * time.Second, every: 1200 * time.Millisecond, restarts: 1}
	if full() {
		a = outboxAmount{committed: 20_000, rolledBack: 5000, lasting: 60 * time.Second, every: 5 * time.Second, restarts: 2}
	}
	for _, k := range []struct {
		broker  string
		dialect outbox.Dialect
		dsn     func(testing.TB) string
	}{
		{"kafka", outbox.PostgreSQL, testenv.PostgreSQL},
		{"rabbitmq", outbox.PostgreSQL, testenv.PostgreSQL},
		{"rocketmq", outbox.MySQL, testenv.MySQL},
	} {
		t.Run(fmt.Sprintf("%s to %s", k.dialect, k.broker), func(t *testing.T) {
			r := newOutboxRun(t, k.broker, k.dialect, k.dsn(t), a)
			for i := range r.relays.all {
				r.start(i)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.writeAll(context.Background())
			}()
			kills, freezes, restarts := r.harm(done)
			require.Eventually(t, func() bool {
				s, err := r.o.Stats(context.Background())
				require.NoError(t, err)
				require.Zero(t, s.Parked)
				return s.Pending == 0
			}, 2*time.Minute, 50*time.Millisecond, "stuck")
			r.relays.await(r.db)
			r.end()
			ids, ran := r.arrivals()
			again := r.check(ids)
			require.Equal(t, len(r.expected), ran, "an inbox runs each once")
			t.Logf("%d transactions committed, %d rolled back, %d messages; %d relays killed, %d stopped beyond their lease, the broker killed %d times: %d arrived, %d of them again; each key's first arrivals in order, an inbox ran %d",
				r.committed, r.rolledBack, len(r.expected), kills, freezes, restarts, len(ids), again, ran)
		})
	}
}
