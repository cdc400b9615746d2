package chaos

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// chain is the way from one database to another: orders in PostgreSQL, an outbox, Kafka, a consumer whose
// rows and messages commit with its verdicts, its outbox, RabbitMQ, and a consumer with a ledger in MariaDB.
// Each stage between the writers and the end is two processes.
type chain struct {
	*testing.T
	db            *sql.DB // PostgreSQL
	orders        string  // the table of the writers' own rows
	first, second *outbox.Outbox
	relays        [2]relays
	middle, last  *cluster
	invoices      *ledger // the rows of the middle
	entries       *ledger // those at the end
	tap           string  // a queue that gets all that RabbitMQ gets
	stages        []*stage
	written       int
}

// stage is one of those that are killed.
type stage struct {
	name        string
	mark        string             // what a process reports when it does something
	events      func(i int) []byte // of the incarnation in place i
	kill, start func(i int)
	kills       int
}

const (
	chainWriters = 4
	chainKeys    = 48 // each is written by one writer, so that its order is that of the commits
	chainEach    = 2  // processes in each stage
)

func newChain(t *testing.T) *chain {
	name := fmt.Sprintf("chain_%d", time.Now().UnixNano())
	dsn := testenv.PostgreSQL(t)
	c := &chain{T: t, orders: name + "_orders"}
	c.middle = newChainCluster(t, "kafka", outbox.PostgreSQL, dsn)
	c.last = newChainCluster(t, "rabbitmq", outbox.MySQL, testenv.MySQL(t))
	c.middle.spec.Outbox, c.middle.spec.Next = name+"_2", c.last.spec.Topic+".copied/order"
	c.tap = c.copied()
	var err error
	c.invoices, err = newLedger(t.Context(), &c.middle.spec)
	require.NoError(t, err)
	c.entries, err = newLedger(t.Context(), &c.last.spec)
	require.NoError(t, err)
	c.relays[0] = c.relaysOf(c.middle, dsn, name+"_1")
	c.relays[1] = c.relaysOf(c.last, dsn, name+"_2")
	c.db, c.first, err = c.relays[0].spec.open()
	require.NoError(t, err)
	c.second, err = outbox.New(c.db, outbox.PostgreSQL, &outbox.Options{Table: name + "_2"})
	require.NoError(t, err)
	require.NoError(t, c.first.Migrate(t.Context()))
	require.NoError(t, c.second.Migrate(t.Context()))
	_, err = c.db.Exec("CREATE TABLE " + c.orders + " (id text NOT NULL)")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.invoices.drop())
		require.NoError(t, c.entries.drop())
		_, _ = c.db.Exec("DROP TABLE " + c.orders)
		for _, table := range []string{name + "_1", name + "_2"} {
			_, _ = c.db.Exec(fmt.Sprintf("DROP TABLE %[1]s, %[1]s_shards, %[1]s_relays", table))
			_, _ = c.db.Exec("DELETE FROM idemq_schema WHERE name = '" + table + "'")
		}
		_ = c.db.Close()
	})
	c.stages = []*stage{c.relaying("first relay", &c.relays[0]), c.consuming("middle consumer", c.middle), c.relaying("second relay", &c.relays[1]), c.consuming("last consumer", c.last)}
	return c
}

// newChainCluster has no processes yet.
func newChainCluster(t *testing.T, broker string, d outbox.Dialect, dsn string) *cluster {
	k := kindOf(broker)
	k.work = 5 * time.Millisecond
	c := newCluster(t, k, topicPartitions, false)
	c.ps = c.ps[:chainEach]
	c.spec.Dialect, c.spec.DSN, c.spec.Ledger = d, dsn, fmt.Sprintf("ledger_%d", time.Now().UnixNano())
	return c
}

// relaysOf publish to the broker from which to reads.
func (c *chain) relaysOf(to *cluster, dsn, table string) relays {
	return newRelays(c.T, relaySpec{Table: table, childSpec: childSpec{
		Broker: to.spec.Broker, Brokers: to.spec.Brokers, Folder: c.TempDir(), Lease: timeouts, Dialect: outbox.PostgreSQL, DSN: dsn,
	}}, chainEach)
}

// copied puts an exchange before the last queue, which gives a second one a copy of everything.
func (c *chain) copied() (tap string) {
	queue := c.last.spec.Topic
	tap = queue + ".tap"
	r := c.last.broker.(*rabbitQueue)
	_, err := r.ask(func(ch *amqp.Channel) (int, error) {
		if err := ch.ExchangeDeclare(queue+".copied", "fanout", true, false, false, false, nil); err != nil {
			return 0, err
		}
		if _, err := ch.QueueDeclare(tap, true, false, false, false, nil); err != nil {
			return 0, err
		}
		if err := ch.QueueBind(tap, "", queue+".copied", false, nil); err != nil {
			return 0, err
		}
		return 0, ch.QueueBind(queue, "", queue+".copied", false, nil)
	})
	require.NoError(c, err)
	c.Cleanup(func() {
		_, _ = r.ask(func(ch *amqp.Channel) (int, error) {
			_ = ch.ExchangeDelete(queue+".copied", false, false)
			return ch.QueueDelete(tap, false, false, false)
		})
	})
	return tap
}

func (c *chain) relaying(name string, r *relays) *stage {
	return &stage{name: name, mark: "sent ", start: r.start, kill: r.kill,
		events: func(i int) []byte { return c.read(r.spec.Folder, r.names[i]) }}
}

func (c *chain) consuming(name string, k *cluster) *stage {
	return &stage{name: name, mark: "in ", start: k.start, kill: k.kill,
		events: func(i int) []byte { return c.read(k.spec.Folder, k.ps[i].name) }}
}

func (c *chain) read(folder, name string) []byte {
	b, err := os.ReadFile(folder + "/" + name + ".events")
	if !os.IsNotExist(err) {
		require.NoError(c, err)
	}
	return b
}

// orderID names the message of an order by its key and its number in it.
func orderID(n int) string { return fmt.Sprintf("%d.%d", n%chainKeys, n/chainKeys) }

// order is one business transaction.
func (c *chain) order(ctx context.Context, n int) error {
	id := orderID(n)
	return c.first.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+c.orders+" (id) VALUES ($1)", id); err != nil {
			return err
		}
		return c.first.Write(ctx, tx, outbox.Message{ID: id, Topic: c.middle.spec.Topic, Key: strconv.Itoa(n % chainKeys), Body: []byte(id)})
	})
}

// feed writes n more orders.
func (c *chain) feed(n int) {
	var writers sync.WaitGroup
	for w := range chainWriters {
		writers.Go(func() {
			for i := c.written; i < c.written+n; i++ {
				if i%chainKeys%chainWriters != w {
					continue
				}
				if err := c.order(c.Context(), i); err != nil {
					c.Error(err)
				}
			}
		})
	}
	writers.Wait()
	c.written += n
}

// harm kills the stages in turn, each of their processes in turn, with each time some more orders on their
// way: the process that is killed has begun with them, and when exactly it dies is chance. No more are fed than
// the end keeps up with, so that there is a kill for each part of them.
func (c *chain) harm(kills, part int) {
	for n := range kills {
		s, i := c.stages[n%len(c.stages)], n/len(c.stages)%chainEach
		marks := func() int { return bytes.Count(s.events(i), []byte(s.mark)) }
		require.Eventually(c, func() bool {
			rows, err := c.entries.count()
			return assert.NoError(c, err) && rows >= c.written-2*part
		}, 5*time.Minute, 50*time.Millisecond, "the end does not keep up")
		had := marks()
		c.feed(part)
		fed := time.Now()
		require.Eventually(c, func() bool {
			if time.Since(fed) > time.Second { // the others have done all that there was
				c.feed(chainKeys)
				fed = time.Now()
			}
			return marks() > had
		}, 2*time.Minute, 10*time.Millisecond, "%s %d does nothing", s.name, i)
		<-time.After(rand.N(200 * time.Millisecond))
		s.kill(i)
		s.kills++
		s.start(i)
	}
}

// finish lets each stage do what is left, one after the other, and ends it.
func (c *chain) finish() {
	c.sent(c.first, &c.relays[0])
	c.middle.finish()
	c.sent(c.second, &c.relays[1])
	c.last.finish()
}

func (c *chain) sent(o *outbox.Outbox, r *relays) {
	var s outbox.Stats
	if !assert.Eventually(c, func() bool {
		var err error
		s, err = o.Stats(context.Background())
		return assert.NoError(c, err) && s.Pending == 0
	}, 2*time.Minute, 50*time.Millisecond) {
		c.Fatalf("%s is stuck: %+v", o.Table(), s)
	}
	require.Zero(c, s.Parked)
	r.await(c.db)
	r.end()
}

// tapped are the IDs of all that RabbitMQ got, in its order.
func (c *chain) tapped() (ids []string) {
	_, err := c.last.broker.(*rabbitQueue).ask(func(ch *amqp.Channel) (int, error) {
		for {
			d, ok, err := ch.Get(c.tap, true)
			if err != nil || !ok {
				return 0, err
			}
			ids = append(ids, d.MessageId)
		}
	})
	require.NoError(c, err)
	return ids
}

// distinct requires that the IDs in got are those in want, and returns how many of them came again.
func (c *chain) distinct(got, want []string, where string) (again int) {
	wanted, seen := make(map[string]bool, len(want)), make(map[string]bool, len(want))
	for _, id := range want {
		wanted[id] = true
	}
	for _, id := range got {
		if !wanted[id] {
			c.Errorf("%s has %s, which nobody wrote", where, id)
		}
		if seen[id] {
			again++
		}
		seen[id] = true
	}
	require.Len(c, seen, len(want), "distinct IDs: %s", where)
	return again
}

// inKeys requires that the first arrivals of each key are in the order of the commits.
func (c *chain) inKeys(ids []string) {
	seen, next := make(map[string]bool, len(ids)), make(map[string]int)
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		key, n, _ := strings.Cut(id, ".")
		require.Equal(c, strconv.Itoa(next[key]), n, "first arrivals of key %s", key)
		next[key]++
	}
}

// repeated is how often the processes of k began a message again whose attempt was cut off, and how many deliveries they dropped.
func (c *chain) repeated(k *cluster, ids []string) (again, dropped int) {
	for _, p := range k.ended {
		events := c.read(k.spec.Folder, p.name)
		again += bytes.Count(events, []byte("in "))
		dropped += bytes.Count(events, []byte("dropped "))
	}
	for _, id := range ids {
		again--
		if failsOnce(id) {
			again-- // as was injected
		}
	}
	return again, dropped
}

func (c *chain) check() {
	ids, children, all, last := make([]string, c.written), make([]string, c.written), make([]published, c.written), make([]published, c.written)
	parentOf := make(map[string]string, c.written)
	for n := range ids {
		ids[n] = orderID(n)
		children[n] = (&consumer.Message{Scope: "kafka/" + c.middle.spec.Group, ID: ids[n]}).ChildID(0)
		parentOf[children[n]] = ids[n]
		all[n].id, last[n].id = ids[n], children[n]
	}
	var rows, distinct int
	require.NoError(c, c.db.QueryRow("SELECT count(*), count(DISTINCT id) FROM "+c.orders).Scan(&rows, &distinct))
	require.Equal(c, []int{c.written, c.written}, []int{rows, distinct}, "orders")
	reading := c.middle.spec
	reading.Group += "-reads"
	log, tap := received(c.T, &reading, c.written), c.tapped()
	relayed := []int{c.distinct(log, ids, "Kafka"), c.distinct(tap, children, "RabbitMQ")}
	require.NoError(c, c.invoices.check(all))
	require.NoError(c, c.entries.check(last))
	c.inKeys(log)
	parents := make([]string, len(tap))
	for i, id := range tap {
		parents[i] = parentOf[id]
	}
	c.inKeys(parents)
	kills, total := "", 0
	for _, s := range c.stages {
		kills += fmt.Sprintf(", %d of the %s", s.kills, s.name)
		total += s.kills
	}
	c.Logf("%d kills -9%s", total, kills)
	again, dropped := c.repeated(c.middle, ids)
	c.Logf("%d orders committed; Kafka has %d IDs, %d of them again; the middle began %d again, dropped %d duplicates, and has a row for each ID, one",
		c.written, len(log)-relayed[0], relayed[0], again, dropped)
	again, dropped = c.repeated(c.last, children)
	c.Logf("RabbitMQ has %d IDs, %d of them again; the last began %d again, dropped %d duplicates, and has a row for each ID, one; per key all first arrivals in the order of the commits",
		len(tap)-relayed[1], relayed[1], again, dropped)
}

// TestOneDatabasesRowsAreTheOthersWhateverIsKilled goes all the way: outbox, relay, broker, inbox with outbox, relay, the
// other broker, inbox.
func TestOneDatabasesRowsAreTheOthersWhateverIsKilled(t *testing.T) {
	a := pick(amount{messages: 480, harms: 8}, amount{messages: 10_000, harms: 56})
	c := newChain(t)
	for _, s := range c.stages {
		for i := range chainEach {
			s.start(i)
		}
	}
	begun := time.Now()
	c.harm(a.harms, a.messages*3/4/a.harms)
	t.Logf("%v: the last kill", time.Since(begun).Round(time.Second))
	c.feed(max(a.messages-c.written, chainKeys))
	c.finish()
	t.Logf("%v: everything is done", time.Since(begun).Round(time.Second))
	c.check()
}
