package outboxtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/outbox"
)

// inapplicable says why the case of that name has no occasion on a database of dialect d; "" for all others.
func inapplicable(name string, d outbox.Dialect) (why string) {
	if d != outbox.SQLite {
		return ""
	}
	switch name {
	case "LateCommitOfALowerIDIsSent":
		return "one transaction writes at a time, so rows are committed in the order of their numbers"
	case "DuplicateInAnOpenTransactionDelaysNobodyElse":
		return "one transaction writes at a time"
	}
	return ""
}

// TestDB runs outbox and relay against a database: open returns a pool of at least eight connections to the
// same one each time, which the suite closes. It makes tables of its own, and drops them. Those in report
// are told of each case that did not fail, and why it did not apply; "" where it did.
func TestDB(t *testing.T, d outbox.Dialect, open func(tb testing.TB) *sql.DB, report ...func(name, inapplicable string)) {
	for _, c := range dbCases {
		if why := inapplicable(c.name, d); why != "" {
			t.Logf("%s does not apply: %s", c.name, why)
			for _, tell := range report {
				tell(c.name, why)
			}
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, d, open)
			t.Cleanup(func() {
				for _, tell := range report {
					if !t.Failed() {
						tell(c.name, "")
					}
				}
			})
			c.run(e)
		})
	}
}

type dbCase struct {
	name string
	run  func(e *env)
}

var dbCases = []dbCase{
	{"CommittedMessagesArriveAsTheyWereWritten", arrives},
	{"RolledBackMessagesDoNot", rolledBack},
	{"MessagesOfAKeyArriveInOrder", inOrder},
	{"SameIDWithTheSameContentIsIgnored", sameContent},
	{"SameIDWithOtherContentIsAConflict", otherContent},
	{"ConflictsAreFoundAtEveryIsolationLevel", isolation},
	{"WhatCannotBeSentIsRefusedByName", refused},
	{"WhatIsNoTransactionIsRefused", noTransaction},
	{"LateCommitOfALowerIDIsSent", lateCommit},
	{"FailedMessageHoldsItsKeyOnly", failedHolds},
	{"FinalAnswerParksAtOnceAndRequeueSendsInOrder", parks},
	{"ParkedAfterMaxAttemptsAndFollowersLetGo", letGo},
	{"OutageCostsNoAttempts", outage},
	{"RelaysShareTheShards", share},
	{"ShardsOfARelayThatEndsAreTakenOver", takeover},
	{"LateWriteBackIsRefused", lateWriteBack},
	{"CleanStopFinishesTheBatchInFlight", cleanStop},
	{"SentRowsAreSweptAfterTheirRetention", sweeps},
	{"TwoOutboxesInOneDatabase", twoOutboxes},
	{"WokenRelayLooksAtOnce", woken},
	{"MissingTableIsSaid", missingTable},
	{"MigratedByManyAtOnce", migrated},
	{"DuplicateInAnOpenTransactionDelaysNobodyElse", openDuplicate},
}

// env is one case's tables, in the database of all.
type env struct {
	*testing.T
	dialect outbox.Dialect
	open    func(tb testing.TB) *sql.DB
	db      *sql.DB
	table   string
	o       *outbox.Outbox
	b       *broker

	mu     *sync.Mutex
	events map[string]int
}

func newEnv(t *testing.T, d outbox.Dialect, open func(tb testing.TB) *sql.DB) *env {
	e := &env{T: t, dialect: d, open: open, db: pool(t, open), table: newTable(), b: newBroker(), mu: new(sync.Mutex), events: make(map[string]int)}
	e.o = e.outbox(e.db, e.table)
	require.NoError(t, e.o.Migrate(t.Context()))
	t.Cleanup(func() { require.Empty(t, e.b.wrong) })
	return e
}

func newTable() string {
	var b [6]byte
	rand.Read(b[:])
	return "o_" + hex.EncodeToString(b[:])
}

func pool(t *testing.T, open func(tb testing.TB) *sql.DB) *sql.DB {
	db := open(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// outbox has a table that goes with the test.
func (e *env) outbox(db *sql.DB, table string) *outbox.Outbox {
	o, err := outbox.New(db, e.dialect, &outbox.Options{Table: table})
	require.NoError(e, err)
	e.Cleanup(func() {
		for _, t := range []string{table, table + "_shards", table + "_relays"} {
			_, _ = e.db.Exec("DROP TABLE IF EXISTS " + t)
		}
		_, _ = e.db.Exec("DELETE FROM idemq_schema WHERE name = '" + table + "'")
	})
	return o
}

// eventually is long enough for a slow machine, and soon over where all is well.
const eventually = 20 * time.Second

func (e *env) await(what string, f func() bool) {
	e.Helper()
	require.Eventually(e, f, eventually, 5*time.Millisecond, what)
}

// arrived waits until so many messages have come.
func (e *env) arrived(n int) {
	e.Helper()
	e.await(fmt.Sprintf("%d messages", n), func() bool { return e.b.count() >= n })
}

// quick are the options of a relay that waits for nothing long.
func quick() outbox.RelayOptions {
	return outbox.RelayOptions{
		Poll: 5 * time.Millisecond, Lease: time.Second, Backoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// relay runs a relay of e's outbox; stop ends it and returns when it has ended.
func (e *env) relay(edit ...func(ro *outbox.RelayOptions)) (stop func()) {
	e.Helper()
	return e.relayOf(e.o, edit...)
}

func (e *env) relayOf(o *outbox.Outbox, edit ...func(ro *outbox.RelayOptions)) (stop func()) {
	e.Helper()
	ro := quick()
	ro.Observe = func(ev dedup.Event) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events[ev.Cause] += ev.N
	}
	for _, f := range edit {
		f(&ro)
	}
	r, err := outbox.NewRelay(o, e.b.at(), &ro)
	require.NoError(e, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(e, <-done)
		})
	}
	e.Cleanup(stop)
	return stop
}

func (e *env) event(cause string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.events[cause]
}

// write commits ms, each call in a transaction of its own.
func (e *env) write(ms ...outbox.Message) {
	e.Helper()
	require.NoError(e, e.tryWrite(nil, ms...))
}

func (e *env) tryWrite(opts *sql.TxOptions, ms ...outbox.Message) error {
	return e.o.InTx(e.Context(), opts, func(ctx context.Context, tx *sql.Tx) error { return e.o.Write(ctx, tx, ms...) })
}

func (e *env) begin(opts *sql.TxOptions) *sql.Tx {
	e.Helper()
	tx, err := e.db.BeginTx(e.Context(), opts)
	require.NoError(e, err)
	e.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func (e *env) stats() outbox.Stats {
	e.Helper()
	s, err := e.o.Stats(e.Context())
	require.NoError(e, err)
	return s
}

func (e *env) exec(format string, args ...any) {
	e.Helper()
	_, err := e.db.ExecContext(e.Context(), fmt.Sprintf(format, e.table), args...)
	require.NoError(e, err)
}

func (e *env) number(format string) (n int) {
	e.Helper()
	require.NoError(e, e.db.QueryRowContext(e.Context(), fmt.Sprintf(format, e.table)).Scan(&n))
	return n
}

// say is a message of a key and a number, with an ID of both.
func say(key string, n int) outbox.Message {
	return outbox.Message{ID: fmt.Sprintf("%s-%d", key, n), Topic: "t", Key: key, Body: fmt.Append(nil, n)}
}

// ordered requires that the first arrivals of each key are 0, 1, 2, …
func (e *env) ordered() {
	e.Helper()
	next := make(map[string]int)
	ms, _ := e.b.firsts()
	for _, m := range ms {
		if m.Key == "" {
			continue
		}
		require.Equal(e, fmt.Sprintf("%s-%d", m.Key, next[m.Key]), m.ID)
		next[m.Key]++
	}
}

// single reports that one connection may write at a time.
func (e *env) single() bool { return e.dialect == outbox.SQLite }
