package rocketmq_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/outbox"
)

func TestMessageIsVisibleIfAndOnlyIfItsTransactionCommits(t *testing.T) {
	eachShop(t, func(t *testing.T, s *shop) {
		w := newWorld(t, 2)
		p := w.newSeller(t, s)
		require.NoError(t, p.Send(t.Context(), w.message("kept"), s.order("kept")))
		require.ErrorIs(t, p.Send(t.Context(), w.message("dropped"), failing(s.order("dropped"))), errOrder)
		require.NoError(t, p.Send(t.Context(), w.message("last"), s.order("last")))
		seen := visible(t, w.source(t), "kept", "last")
		require.Equal(t, map[string]int{"kept": 1, "last": 1}, seen)
		require.True(t, s.has(t, "kept"))
		require.False(t, s.has(t, "dropped"))
		require.Eventually(t, func() bool { return s.marks(t, 2) == 2 }, eventually, step, "confirmed")
		require.NoError(t, p.end())
	})
}

func TestCommittedMessageArrivesAsItWasSent(t *testing.T) {
	eachShop(t, func(t *testing.T, s *shop) {
		w := newWorld(t, 2)
		p := w.newSeller(t, s)
		headers := map[string]string{"h": "v", "empty": "", "odd": "\x00\xff", "DELAY": "no delay", "TRAN_MSG": "no half", "KEYS": "k-1"}
		require.NoError(t, p.Send(t.Context(), outbox.Message{ID: "a", Topic: w.topic, Key: "k\x00", Headers: headers, Body: []byte{0, 255}}, s.order("a")))
		require.NoError(t, p.Send(t.Context(), outbox.Message{Topic: w.topic}, s.order("b")))
		var ids []string
		for _, d := range receive(t, w.source(t), 2) {
			require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
			if ids = append(ids, d.Message.ID); d.Message.ID != "a" {
				require.Empty(t, d.Body)
				require.Equal(t, map[string]string{rocketmq.IDHeader: d.Message.ID}, d.Headers)
				require.Len(t, d.Message.ID, 32, "it was given one")
				continue
			}
			headers[rocketmq.IDHeader] = "a"
			require.Equal(t, headers, d.Headers)
			require.Equal(t, "k\x00", d.Key)
			require.Equal(t, []byte{0, 255}, d.Body)
		}
		require.Contains(t, ids, "a")
	})
}

// A message that is made of another one's headers is neither that one nor a redrive of it.
func TestHeadersThatNameAnotherMessageAreLeftOut(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, 1), openShop(t, sqldialect.SQLite)
	headers := map[string]string{rocketmq.IDHeader: "another", consumer.IDHeader: "another", consumer.RedriveHeader: "7", consumer.OriginHeader: "elsewhere", "h": "v"}
	m := outbox.Message{ID: "a", Topic: w.topic, Headers: maps.Clone(headers)}
	require.NoError(t, w.newSeller(t, s).Send(t.Context(), m, s.order("a")))
	require.Equal(t, headers, m.Headers, "the caller's own")
	d := receive(t, w.source(t), 1)[0]
	require.Equal(t, map[string]string{rocketmq.IDHeader: "a", "h": "v"}, d.Headers)
	require.True(t, d.Identify(consumer.DefaultRules(), d.Made))
	require.Equal(t, "a", d.Message.ID)
}

func TestMessageThatNoBrokerTakesChangesNothing(t *testing.T) {
	w, s := newWorld(t, 1), openShop(t, sqldialect.SQLite)
	p := w.newSeller(t, s)
	for want, m := range map[string]outbox.Message{
		"Message.Topic is empty":       {ID: "1"},
		"refused with code 13: ":       {ID: "2", Topic: w.topic, Body: make([]byte, 4<<20+1)},
		"key and headers take ":        {ID: "3", Topic: w.topic, Headers: map[string]string{"h": strings.Repeat("x", 40_000)}},
		`-nowhere": it does not exist`: {ID: "4", Topic: w.topic + "-nowhere"},
	} {
		begun := time.Now()
		err := p.Send(t.Context(), m, func(context.Context, *sql.Tx) error { panic("there is no half message") })
		require.ErrorContains(t, err, want)
		require.Less(t, time.Since(begun), 5*time.Second, "waiting would not help")
	}
	require.Zero(t, s.marks(t, 1))
}

// It would panic once a half message is at the broker.
func TestSendWithoutWorkIsRefused(t *testing.T) {
	w := world{cluster: somewhere, topic: "t", group: "g"}
	err := w.idleSeller(t, openShop(t, sqldialect.SQLite)).Send(within(t, eventually), w.message("a"), nil)
	require.EqualError(t, err, `rocketmq: send "a": fn is nil; pass the work of the local transaction`)
}

func TestSendWaitsForRun(t *testing.T) {
	w, s := newWorld(t, 1), openShop(t, sqldialect.SQLite)
	p := w.idleSeller(t, s)
	require.NoError(t, p.Migrate(t.Context()))
	require.NoError(t, p.Migrate(t.Context()), "again")
	err := p.Send(within(t, 50*time.Millisecond), w.message("a"), s.order("a"))
	require.ErrorContains(t, err, `rocketmq: send "a": Run has not yet reached a broker: context deadline exceeded`)
	answer := make(chan error, 1)
	go func() { answer <- p.Send(within(t, eventually), w.message("a"), s.order("a")) }()
	p.run()
	require.NoError(t, <-answer)
	require.ErrorContains(t, p.Run(t.Context()), "it was called before")
	require.NoError(t, p.end())
	require.ErrorIs(t, p.Send(t.Context(), w.message("b"), s.order("b")), rocketmq.ErrClosed)
	_, err = p.Resend(t.Context())
	require.ErrorIs(t, err, rocketmq.ErrClosed)
}

// Run ends when its work is done, not in the middle of it.
func TestRunWaitsForTransactionsUnderWay(t *testing.T) {
	w, s := newWorld(t, 1), openShop(t, sqldialect.SQLite)
	p := w.newSeller(t, s)
	in, answer := make(chan struct{}), make(chan error, 1)
	go func() {
		answer <- p.Send(t.Context(), w.message("a"), func(ctx context.Context, tx *sql.Tx) error {
			close(in)
			<-time.After(200 * time.Millisecond)
			return s.order("a")(ctx, tx)
		})
	}()
	<-in
	require.NoError(t, p.end())
	require.NoError(t, <-answer)
	require.Equal(t, 1, s.marks(t, 2), "confirmed at the end")
	require.Equal(t, 1, visible(t, w.source(t), "a")["a"])
}

// A small table, which a server would rather read from end to end, with a marker in it that is locked.
func TestConfirmingWaitsForNoTransaction(t *testing.T) {
	t.Parallel()
	for _, d := range []sqldialect.Dialect{sqldialect.PostgreSQL, sqldialect.MySQL} { // SQLite has one transaction at a time
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			w, s := newWorld(t, 1), openShop(t, d)
			p := w.newSeller(t, s)
			require.NoError(t, p.Send(t.Context(), w.message("slow"), func(ctx context.Context, tx *sql.Tx) error {
				for n, id := range []string{"a", "b", "c"} {
					require.NoError(t, p.Send(t.Context(), w.message(id), s.order(id)))
					require.Eventually(t, func() bool { return s.marks(t, 2) == n+1 }, eventually, step, "it is not confirmed while another transaction runs")
				}
				return s.order("slow")(ctx, tx)
			}))
		})
	}
}

func TestTableThatIsMissingIsSaid(t *testing.T) {
	eachShop(t, func(t *testing.T, s *shop) {
		err := newWorld(t, 1).idleSeller(t, s).Run(t.Context())
		require.ErrorContains(t, err, "rocketmq: run: table "+s.markers+" is missing or of another version: call Migrate at start: ")
	})
}

// Only what is old and done goes, however much it is; what no broker has confirmed stays.
func TestSweepKeepsWhatIsStillNeeded(t *testing.T) {
	eachShop(t, func(t *testing.T, s *shop) {
		w := world{cluster: somewhere, topic: "t", group: "g"}
		p := w.idleSeller(t, s, func(o *rocketmq.TransactionOptions) { o.Retention = time.Hour })
		require.NoError(t, p.Migrate(t.Context()))
		now := time.Now()
		insert := func(n, state int, age time.Duration) {
			var rows []string
			for i := range n {
				key := fmt.Sprintf("%d-%d-%d", state, age, i)
				rows = append(rows, fmt.Sprintf("(%s, %d, %d, 't')", s.bytes(key), state, now.Add(-age).UnixMicro()))
			}
			s.exec(t, "INSERT INTO "+s.markers+" (k, state, written_at, topic) VALUES "+strings.Join(rows, ", "))
		}
		for state := 1; state <= 3; state++ {
			insert(2100, state, 61*time.Minute)
			insert(10, state, 59*time.Minute)
		}
		require.NoError(t, p.Sweep(t.Context()))
		require.Equal(t, []int{2110, 10, 10}, []int{s.marks(t, 1), s.marks(t, 2), s.marks(t, 3)})
		require.Equal(t, 1, s.count(t, "SELECT COUNT(*) FROM "+s.markers+" WHERE state = 4"), "the table's name")
		require.True(t, p.log.has("committed messages were confirmed by no broker"))
	})
}

func TestTransactionOptionsThatContradictAreRefused(t *testing.T) {
	s := openShop(t, sqldialect.SQLite)
	make := func(c rocketmq.Cluster, group string, db *sql.DB, d sqldialect.Dialect, o rocketmq.TransactionOptions) error {
		_, err := rocketmq.NewTransactionProducer(c, group, db, d, &o)
		return err
	}
	type options = rocketmq.TransactionOptions
	require.NoError(t, make(somewhere, "g", s.DB, sqldialect.SQLite, options{}))
	for want, err := range map[string]error{
		"Cluster.NameServers is empty":                                    make(rocketmq.Cluster{}, "g", s.DB, sqldialect.SQLite, options{}),
		`the producer group "" is no name`:                                make(somewhere, "", s.DB, sqldialect.SQLite, options{}),
		`the producer group "a b" is no name`:                             make(somewhere, "a b", s.DB, sqldialect.SQLite, options{}),
		"db is nil":                                                       make(somewhere, "g", nil, sqldialect.SQLite, options{}),
		`dialect "oracle" is none of`:                                     make(somewhere, "g", s.DB, "oracle", options{}),
		`TransactionOptions.Table: table "a;b"`:                           make(somewhere, "g", s.DB, sqldialect.SQLite, options{Table: "a;b"}),
		"TransactionOptions.Limit -1s is negative":                        make(somewhere, "g", s.DB, sqldialect.SQLite, options{Limit: -time.Second}),
		"TransactionOptions.Retention 1m0s is not longer than Limit 1m0s": make(somewhere, "g", s.DB, sqldialect.SQLite, options{Retention: time.Minute}),
		"TransactionOptions.Tx.ReadOnly is set":                           make(somewhere, "g", s.DB, sqldialect.SQLite, options{Tx: &sql.TxOptions{ReadOnly: true}}),
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestHorizonIsWhatTheBrokerSays(t *testing.T) {
	require.Equal(t, 16*time.Minute+6*time.Second, rocketmq.HorizonOf(nil), "4.x by default")
	require.Equal(t, 8*time.Minute+6*time.Second, rocketmq.HorizonOf(map[string]string{"transactionCheckInterval": "30000", "transactionCheckMax": "15", "transactionTimeOut": "6000"}))
	require.Equal(t, 16*time.Minute+6*time.Second, rocketmq.HorizonOf(map[string]string{"transactionCheckInterval": "soon"}))
}

// MySQL would wait for 50 s, PostgreSQL for ever, and so would all other questions.
func TestQuestionDoesNotWaitLongForATransaction(t *testing.T) {
	eachShop(t, func(t *testing.T, s *shop) {
		w := newWorld(t, 1)
		h, err := w.newSeller(t, s).Prepare(t.Context(), w.message("a"))
		require.NoError(t, err)
		require.NoError(t, h.CarryOut(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			require.Equal(t, sqldialect.LockWait, h.Bury(ctx))
			return nil
		}))
		require.Equal(t, sqldialect.Duplicate, h.Bury(t.Context()))
	})
}
