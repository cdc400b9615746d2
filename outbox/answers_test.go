package outbox_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// rabbit is a queue of a test's own on the shared server, as a plain client sees it.
type rabbit struct {
	url, queue string
	ch         *amqp.Channel
}

func newRabbit(t *testing.T, args amqp.Table) *rabbit {
	r := &rabbit{url: testenv.RabbitMQ(t), queue: "outbox-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	conn, err := amqp.Dial(r.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	r.ch, err = conn.Channel()
	require.NoError(t, err)
	r.declare(t, r.queue, args)
	return r
}

func (r *rabbit) declare(t *testing.T, queue string, args amqp.Table) {
	_, err := r.ch.QueueDeclare(queue, true, false, false, false, args)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = r.ch.QueueDelete(queue, false, false, false) })
}

func (r *rabbit) publisher(t *testing.T, url string) *rabbitmq.Publisher {
	p, err := rabbitmq.NewPublisher(rabbitmq.Cluster{URLs: []string{url}}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// take removes the first message; there is none where ok is false.
func (r *rabbit) take(t *testing.T, queue string) (id string, ok bool) {
	d, ok, err := r.ch.Get(queue, true)
	require.NoError(t, err)
	return d.MessageId, ok
}

func (r *rabbit) count(t *testing.T, queue string) int {
	q, err := r.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// TestLostConfirmBringsTheMessageAgainUnderItsID: the broker has the message, and the connection breaks before its word
// arrives. The copy that follows has the same ID, so an inbox runs it once.
func TestLostConfirmBringsTheMessageAgainUnderItsID(t *testing.T) {
	r := newRabbit(t, nil)
	u, err := url.Parse(r.url)
	require.NoError(t, err)
	proxy := testenv.NewProxy(t, u.Host)
	u.Host = proxy.Addr
	b := newBase(t, outbox.PostgreSQL)
	run(t, b.Outbox, r.publisher(t, u.String()), outbox.RelayOptions{MaxAttempts: 3})
	b.write(t, outbox.Message{ID: "first", Topic: r.queue})
	b.awaitSent(t)
	proxy.DropAnswers()
	b.write(t, outbox.Message{ID: "k-0", Topic: r.queue, Key: "k"}, outbox.Message{ID: "k-1", Topic: r.queue, Key: "k"})
	require.Eventually(t, func() bool { return r.count(t, r.queue) == 2 }, eventually, 5*time.Millisecond, "the broker does not get it")
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, s.Pending, "nobody knows")
	proxy.PassAnswers() // which closes the connection
	b.awaitSent(t)

	guard, err := dedup.New("outbox", memstore.New(), nil)
	require.NoError(t, err)
	var ids, ran []string
	for {
		id, ok := r.take(t, r.queue)
		if !ok {
			break
		}
		ids = append(ids, id)
		_, err := guard.Do(t.Context(), dedup.Work{Scope: "s", ID: id}, func(context.Context) error { ran = append(ran, id); return nil })
		require.NoError(t, err)
	}
	require.Greater(t, len(ids), 3, "one came again")
	require.Equal(t, []string{"first", "k-0", "k-1"}, slices.Compact(ids))
	require.Equal(t, []string{"first", "k-0", "k-1"}, ran)
}

// TestMessageThatOneQueueRefusesHoldsItsKeyOnly: one of two queues is full and refuses, with a nack, what the other messages of
// the batch are confirmed for.
func TestMessageThatOneQueueRefusesHoldsItsKeyOnly(t *testing.T) {
	r := newRabbit(t, nil)
	full := r.queue + "-full"
	r.declare(t, full, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	p := r.publisher(t, r.url)
	require.NoError(t, r.ch.PublishWithContext(t.Context(), "", full, false, false, amqp.Publishing{MessageId: "already there"}))
	require.Eventually(t, func() bool { return r.count(t, full) == 1 }, eventually, 5*time.Millisecond)
	b := newBase(t, outbox.PostgreSQL)
	ms := []outbox.Message{
		{ID: "bad-0", Topic: full, Key: "bad"},
		{ID: "bad-1", Topic: r.queue, Key: "bad"}, // a follower, although its queue has room
	}
	for n := range 20 {
		ms = append(ms, outbox.Message{ID: fmt.Sprint("good-", n), Topic: r.queue, Key: fmt.Sprint(n)})
	}
	b.write(t, ms...)
	run(t, b.Outbox, p, outbox.RelayOptions{MaxAttempts: 1000, Backoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond})
	b.awaitStats(t, 2, 0)
	var reason string
	var attempts int
	require.Eventually(t, func() bool {
		err := b.db.QueryRow("SELECT attempts, last_error FROM "+b.table+" WHERE id = 'bad-0'").Scan(&attempts, &reason)
		return err == nil && attempts >= 3
	}, eventually, 5*time.Millisecond, "it is tried again and again")
	require.Contains(t, reason, rabbitmq.ErrRefused.Error())
	require.Equal(t, 20, r.count(t, r.queue), "the others are there")
	require.NoError(t, b.db.QueryRow("SELECT attempts FROM "+b.table+" WHERE id = 'bad-1'").Scan(&attempts))
	require.Zero(t, attempts, "a follower waits, and is charged nothing")
	id, ok := r.take(t, full)
	require.True(t, ok)
	require.Equal(t, "already there", id)
	b.awaitSent(t)
	require.NoError(t, b.db.QueryRow("SELECT max(attempts) FROM "+b.table+" WHERE id <> 'bad-0'").Scan(&attempts))
	require.Zero(t, attempts)
	id, _ = r.take(t, full)
	require.Equal(t, "bad-0", id)
	require.Equal(t, 21, r.count(t, r.queue))
}

// TestProcessesClocksDoNotMatter has a writer a day behind and relays a day ahead share shards with one whose clock is right. The
// database's clock alone says when a row was written and sent, whose a shard is and what is swept.
func TestProcessesClocksDoNotMatter(t *testing.T) {
	t.Parallel()
	for _, d := range []outbox.Dialect{outbox.PostgreSQL, outbox.MySQL} {
		t.Run(string(d), func(t *testing.T) {
			b := newBase(t, d)
			b.SetClock(func() time.Time { return time.Now().AddDate(0, 0, -1) }) // for the IDs of messages that have none
			sent := make(chan string, 1000)
			for n := range 3 {
				o := b.outbox(t, b.db, nil)
				if n > 0 {
					o.SetClock(func() time.Time {
						t.Error("a relay asks the clock of its process")
						return time.Now().AddDate(0, 0, 1)
					})
				}
				run(t, o, publisher(func(ms []outbox.Message, _ []error) error {
					for _, m := range ms {
						sent <- m.ID
					}
					return nil
				}), outbox.RelayOptions{Retention: time.Hour, Sweep: time.Millisecond, Lease: 6 * time.Second})
			}
			shared := func() bool {
				rows, err := b.db.Query("SELECT count(*) FROM " + b.table + "_shards WHERE shard < 64 AND length(token) > 0 GROUP BY token")
				require.NoError(t, err)
				defer rows.Close()
				relays, all := 0, 0
				for rows.Next() {
					var n int
					require.NoError(t, rows.Scan(&n))
					relays, all = relays+1, all+n
				}
				require.NoError(t, rows.Err())
				return relays == 3 && all == 64
			}
			require.Eventually(t, shared, 2*eventually, 20*time.Millisecond, "three relays share the shards")
			for n := range 200 {
				b.write(t, outbox.Message{Topic: "t", Key: fmt.Sprint(n % 50)})
			}
			b.awaitSent(t)
			require.Len(t, sent, 200, "each once")
			require.True(t, shared(), "nobody took another's lease for over")
			var rows, near int
			require.NoError(t, b.db.QueryRow("SELECT count(*), count(CASE WHEN sent_at >= created_at AND created_at > "+
				strconv.FormatInt(time.Now().Add(-time.Hour).UnixMicro(), 10)+" THEN 1 END) FROM "+b.table).Scan(&rows, &near))
			require.Equal(t, []int{200, 200}, []int{rows, near}, "times are the database's, and nothing is swept before its retention is over")
		})
	}
}
