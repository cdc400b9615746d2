package chaos

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/internal/testenv"
)

// amount is how much a test does to how many messages. With IDEMQ_CHAOS_FULL=1 it is what the
// documentation quotes; else a part of it, since each kill costs a session timeout.
type amount struct{ lanes, messages, harms int }

func full() bool { return os.Getenv("IDEMQ_CHAOS_FULL") == "1" }

func pick(part, whole amount) amount {
	if full() {
		return whole
	}
	return part
}

// once is a run in which effects are rows that commit with their verdicts.
type once struct {
	*cluster
	*ledger
	all    []published
	inside int // kills that hit a transaction
}

// newOnce is one process's run: a topic or queue of its own, and a ledger.
func newOnce(t *testing.T, broker string, dialect sqlstore.Dialect, dsn string, messages int) *once {
	k := kindOf(broker)
	k.work = 20 * time.Millisecond
	o := &once{cluster: newCluster(t, k, topicPartitions, false)}
	o.spec.Dialect, o.spec.DSN = dialect, dsn
	o.spec.Ledger = fmt.Sprintf("ledger_%d", time.Now().UnixNano())
	var err error
	o.ledger, err = newLedger(t.Context(), &o.spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.ledger.drop()) })
	o.all = draw(rand.New(rand.NewPCG(2, uint64(time.Now().UnixNano()))), messages)
	return o
}

// part publishes the n-th of so many parts.
func (o *once) part(n, of int) {
	o.broker.publish(o.t, o.all[n*len(o.all)/of:(n+1)*len(o.all)/of])
}

func (o *once) events(name string) []byte {
	b, err := os.ReadFile(o.spec.Folder + "/" + name + ".events")
	if !os.IsNotExist(err) {
		require.NoError(o.t, err)
	}
	return b
}

// awaitWork returns once the process has begun n more transactions than it had.
func (o *once) awaitWork(had, n int) {
	name := o.ps[0].name
	if !assert.Eventually(o.t, func() bool { return bytes.Count(o.events(name), []byte("in ")) >= had+n }, 2*time.Minute, 10*time.Millisecond) {
		o.t.Fatalf("%s does nothing:\n%s", name, o.tail(o.ps[0]))
	}
}

func (o *once) begun() int { return bytes.Count(o.events(o.ps[0].name), []byte("in ")) }

// kill kills the process at a random moment of its work, and tells whether that was inside a transaction.
func (o *once) killAtWork() {
	o.awaitWork(0, 1)
	<-time.After(rand.N(600 * time.Millisecond))
	name := o.ps[0].name
	o.cluster.kill(0)
	open := make(map[string]bool)
	for line := range strings.Lines(string(o.events(name))) {
		f := strings.Fields(line)
		switch {
		case len(f) < 3:
		case f[0] == "in":
			open[f[1]] = true
		case f[0] == "out":
			delete(open, f[1])
		}
	}
	if len(open) > 0 {
		o.inside++
	}
}

// end lets the process do what is left.
func (o *once) end() {
	left, err := int64(-1), error(nil)
	if !assert.Eventually(o.t, func() bool {
		left, err = o.broker.left()
		return err == nil && left == 0
	}, 10*time.Minute, 100*time.Millisecond) {
		o.t.Fatalf("%s is stuck with %d messages left (%v):\n%s", o.ps[0].name, left, err, o.tail(o.ps[0]))
	}
	o.terminate(0)
	if left, err = o.broker.left(); err != nil || left > 0 { // held by the process, or on its way through a delay
		o.start(0)
		<-time.After(o.kind.later)
		o.end()
	}
}

// answered is how many claims the fronts of all incarnations have answered.
func (o *once) answered() (sum int) {
	for _, p := range o.ended {
		var last int
		for line := range strings.Lines(string(o.events(p.name))) {
			if rest, ok := strings.CutPrefix(line, "front answered "); ok {
				_, err := fmt.Sscan(rest, &last)
				require.NoError(o.t, err)
			}
		}
		sum += last
	}
	return sum
}

// figures add up what several runs came to.
type figures struct {
	sync.Mutex
	deliveries, rows, inside, answered int
}

// lanes runs so many processes side by side, each with messages and rows of its own, and holds
// their rows against their messages.
func lanes(t *testing.T, a amount, run func(*testing.T) *once) *figures {
	f := new(figures)
	t.Run("lanes", func(t *testing.T) {
		for lane := range a.lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				o := run(t)
				require.NoError(t, o.check(o.all))
				effects, _, err := o.rows()
				require.NoError(t, err)
				f.Lock()
				defer f.Unlock()
				f.deliveries, f.rows, f.inside, f.answered = f.deliveries+len(o.all), f.rows+len(effects), f.inside+o.inside, f.answered+o.answered()
			})
		}
	})
	require.GreaterOrEqual(t, f.inside, a.lanes*a.harms/4, "too few kills hit a transaction")
	return f
}

// TestRowsAreTheMessagesWhateverIsKilled is the one promise without exceptions: where effect and
// verdict commit as one, there are exactly as many rows as messages.
func TestRowsAreTheMessagesWhateverIsKilled(t *testing.T) {
	for _, k := range []struct {
		broker  string
		dialect sqlstore.Dialect
		dsn     func(testing.TB) string
	}{
		{"kafka", sqlstore.PostgreSQL, testenv.PostgreSQL},
		{"rabbitmq", sqlstore.MySQL, testenv.MySQL},
	} {
		t.Run(fmt.Sprintf("%s into %s", k.broker, k.dialect), func(t *testing.T) {
			a := pick(amount{2, 600, 6}, amount{4, 5000, 50})
			dsn := k.dsn(t)
			f := lanes(t, a, func(t *testing.T) *once {
				o := newOnce(t, k.broker, k.dialect, dsn, a.messages)
				for n := range a.harms {
					o.part(n, a.harms)
					o.start(0)
					o.killAtWork()
				}
				o.start(0)
				o.end()
				return o
			})
			t.Logf("%d deliveries, %d kills -9, %d of them inside a transaction: %d rows, one for each message; failed attempts counted as injected",
				f.deliveries, a.lanes*a.harms, f.inside, f.rows)
		})
	}
}

// TestRowsAreTheMessagesWhileTheDatabaseDies kills the server under the transactions. What had
// no chance to end costs no attempt.
func TestRowsAreTheMessagesWhileTheDatabaseDies(t *testing.T) {
	a := pick(amount{1, 1000, 3}, amount{1, 20_000, 10})
	server := testenv.StartPostgreSQL(t)
	o := newOnce(t, "kafka", sqlstore.PostgreSQL, server.DSN, a.messages)
	o.start(0)
	for n := range a.harms {
		had := o.begun()
		o.part(n, a.harms)
		o.awaitWork(had, 5)
		<-time.After(rand.N(200 * time.Millisecond))
		server.Kill()
		server.Start()
	}
	o.end()
	broken := bytes.Count(o.events(o.ended[0].name), []byte("broken "))
	require.NoError(t, o.check(o.all))
	effects, _, err := o.rows()
	require.NoError(t, err)
	require.NotZero(t, broken, "no transaction was cut off")
	t.Logf("%d deliveries, the server killed %d times, %d transactions cut off: %d rows, one for each message; failed attempts counted as injected",
		len(o.all), a.harms, broken, len(effects))
}

// TestRowsAreTheMessagesOnTwoLevels does to Redis what can be done to it, while processes die.
func TestRowsAreTheMessagesOnTwoLevels(t *testing.T) {
	a := pick(amount{1, 600, 6}, amount{4, 5000, 50})
	dsn := testenv.PostgreSQL(t)
	f := lanes(t, a, func(t *testing.T) *once {
		server := testenv.StartRedis(t)
		o := newOnce(t, "kafka", sqlstore.PostgreSQL, dsn, a.messages)
		o.spec.Tier, o.spec.Redis = true, server.Addr
		for n := range a.harms {
			o.part(n, a.harms)
			disturb(t, server, n)
			o.start(0)
			o.killAtWork()
		}
		if !server.Running() {
			server.Start()
		}
		o.start(0)
		o.end()
		again := o.all[:len(o.all)/10]
		o.broker.publish(t, again) // once more, to a Redis that lives
		o.start(0)
		o.end()
		o.all = append(o.all, again...)
		return o
	})
	require.NotZero(t, f.answered, "Redis alone answered nothing")
	t.Logf("%d deliveries, %d kills -9, %d of them inside a transaction, Redis flushed, killed and started in turn: %d rows, one for each message; Redis alone answered %d claims",
		f.deliveries, a.lanes*a.harms, f.inside, f.rows, f.answered)
}

// disturb flushes Redis, kills it, and starts it again, in turn.
func disturb(t *testing.T, server *testenv.RedisServer, n int) {
	switch n % 3 {
	case 0:
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer rdb.Close()
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	case 1:
		server.Kill()
	case 2:
		server.Start()
	}
}
