package outboxtest

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

var uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func arrives(e *env) {
	binary := make([]byte, 70_000)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	ms := []outbox.Message{
		{ID: "plain", Topic: "orders", Key: "k-1", Headers: map[string]string{"traceparent": "00-0af7-b7ad-01", "x": "y"}, Body: []byte(`{"a":1}`)},
		{ID: "nil", Topic: "orders", Key: "k-2"},
		{ID: "empty", Topic: "orders", Body: []byte{}},
		{ID: "binary", Topic: "orders", Body: binary},
		{ID: `odd "\ ' {},%;$1 ?`, Topic: "größe/日本", Key: "ключ \"\\'", Headers: map[string]string{"ü\"": "\\' \u2028 <&>", "empty": ""}, Body: []byte("\x00\xff")},
		{Topic: "orders"},
		{Topic: "orders"},
	}
	e.write(ms...)
	e.relay()
	e.arrived(len(ms))
	got := make(map[string]outbox.Message)
	all, again := e.b.firsts()
	require.Zero(e, again)
	made := 0
	for _, m := range all {
		got[m.ID] = m
		if uuidV7.MatchString(m.ID) {
			made++
		}
	}
	require.Equal(e, 2, made, "IDs are UUIDv7 where none was given")
	for _, m := range ms[:5] {
		require.Equal(e, m, got[m.ID])
	}
	require.Nil(e, got["nil"].Body)
	require.NotNil(e, got["empty"].Body)
	e.await("written back", func() bool { return e.stats() == outbox.Stats{} })
	require.Equal(e, len(ms), e.number("SELECT count(*) FROM %s WHERE state = 1 AND sent_at >= created_at"))
}

func rolledBack(e *env) {
	e.relay()
	tx := e.begin(nil)
	require.NoError(e, e.o.Write(e.Context(), tx, say("k", 0)))
	if !e.single() {
		require.Zero(e, e.stats().Pending, "an open transaction shows nothing")
	}
	require.NoError(e, tx.Rollback())
	e.write(say("k", 1))
	e.arrived(1)
	require.False(e, e.b.has("k-0"))
}

func inOrder(e *env) {
	const keys, each = 5, 40
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for n := 0; n < each; n += 2 { // two in one statement: their order counts, too
				if err := e.tryWrite(nil, say(fmt.Sprint("k", k), n), say(fmt.Sprint("k", k), n+1)); err != nil {
					e.Error(err)
				}
			}
		})
	}
	e.relay(func(ro *outbox.RelayOptions) { ro.Batch = 16 })
	wg.Wait()
	e.arrived(keys * each)
	e.ordered()
	_, again := e.b.firsts()
	require.Zero(e, again, "nothing fails, so nothing comes twice")
}

func sameContent(e *env) {
	m := outbox.Message{ID: "child", Topic: "t", Key: "k", Headers: map[string]string{"kind": "paid", "traceparent": "00-1-1-01"}, Body: []byte("b")}
	traced := m
	traced.Headers = map[string]string{"kind": "paid", "traceparent": "00-2-2-01", "baggage": "a=b"}
	e.write(m, traced, say("other", 0))
	e.write(m)
	tx := e.begin(nil)
	require.NoError(e, e.o.Write(e.Context(), tx, traced))
	require.NoError(e, e.o.Write(e.Context(), tx, m, say("other", 1)))
	require.NoError(e, tx.Commit())
	require.Equal(e, 3, e.number("SELECT count(*) FROM %s"))
	e.relay()
	e.arrived(3)
	e.write(m) // which is sent already
	e.write(say("other", 2))
	e.arrived(4)
	_, again := e.b.firsts()
	require.Zero(e, again)
}

func otherContent(e *env) {
	m := outbox.Message{ID: "id", Topic: "t", Key: "k", Headers: map[string]string{"h": "1"}, Body: []byte("b")}
	e.write(m)
	for name, edit := range map[string]func(m *outbox.Message){
		"topic":   func(m *outbox.Message) { m.Topic = "other" },
		"key":     func(m *outbox.Message) { m.Key = "other" },
		"headers": func(m *outbox.Message) { m.Headers = map[string]string{"h": "2"} },
		"body":    func(m *outbox.Message) { m.Body = []byte("c") },
		"no body": func(m *outbox.Message) { m.Body = nil },
	} {
		other := m
		edit(&other)
		require.ErrorIs(e, e.tryWrite(nil, other), outbox.ErrConflict, name)
		require.ErrorContains(e, e.tryWrite(nil, other), `"id"`, name)
		require.ErrorIs(e, e.tryWrite(nil, say("new", 0), other, say("new", 1)), outbox.ErrConflict, "%s, among others", name)
		require.ErrorIs(e, e.tryWrite(nil, say("new", 0), m, other), outbox.ErrConflict, "%s, in one call", name)
		tx := e.begin(nil)
		fresh := other
		fresh.ID, m.ID = "fresh", "fresh"
		require.NoError(e, e.o.Write(e.Context(), tx, m))
		require.ErrorIs(e, e.o.Write(e.Context(), tx, fresh), outbox.ErrConflict, "%s, in one transaction", name)
		require.NoError(e, tx.Rollback())
		m.ID = "id"
	}
	require.Equal(e, 1, e.number("SELECT count(*) FROM %s"), "the rest was rolled back")
	if e.dialect == outbox.PostgreSQL {
		tx := e.begin(nil)
		other := m
		other.Body = []byte("c")
		require.ErrorIs(e, e.o.Write(e.Context(), tx, say("new", 0), other), outbox.ErrConflict)
		require.Error(e, tx.Commit(), "the transaction cannot be committed")
	}
}

func isolation(e *env) {
	if e.single() {
		e.isolated(nil)
		return
	}
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		e.isolated(&sql.TxOptions{Isolation: level})
	}
}

// isolated writes an ID while another transaction writes it, too, and commits first.
func (e *env) isolated(opts *sql.TxOptions) {
	id := newTable()
	old := outbox.Message{ID: id, Topic: "t", Body: []byte("b")}
	other := outbox.Message{ID: id, Topic: "t", Body: []byte("c")}
	e.write(old)
	require.NoError(e, e.tryWrite(opts, old))
	require.ErrorIs(e, e.tryWrite(opts, other), outbox.ErrConflict)
	if e.single() {
		return
	}
	for _, m := range []outbox.Message{{ID: id + "-2", Topic: "t", Body: []byte("b")}, {ID: id + "-3", Topic: "t", Body: []byte("c")}} {
		first := e.begin(opts)
		require.NoError(e, e.o.Write(e.Context(), first, outbox.Message{ID: m.ID, Topic: "t", Body: []byte("b")}))
		second := e.begin(opts)
		if e.dialect != outbox.MySQL || opts.Isolation != sql.LevelSerializable { // which locks what it reads
			_, err := second.ExecContext(e.Context(), fmt.Sprintf("SELECT * FROM %s", e.table)) // takes its snapshot
			require.NoError(e, err)
		}
		answer := make(chan error, 1)
		go func() { answer <- e.o.Write(e.Context(), second, m) }()
		select { // it waits for the first
		case err := <-answer:
			require.Error(e, err, "the other transaction is open")
			answer <- err
		case <-time.After(50 * time.Millisecond):
		}
		if err := first.Commit(); err != nil {
			require.NoError(e, second.Rollback())
			<-answer
			continue // the server has chosen the other one to go on
		}
		err := <-answer
		if err == nil {
			err = second.Commit()
		}
		if err == nil {
			require.Equal(e, "b", string(m.Body), "other content was taken for the same")
		}
		_ = second.Rollback()
	}
	require.Zero(e, e.number("SELECT count(*) FROM %s WHERE other <> 0"))
}

func refused(e *env) {
	ok := outbox.Message{Topic: "t"}
	for want, m := range map[string]outbox.Message{
		"Message.Topic is empty":             {ID: "x"},
		"Message.Topic has a NUL byte":       {Topic: "a\x00"},
		"Message.Topic has 513 bytes":        {Topic: strings.Repeat("t", 513)},
		"Message.ID has 256 bytes":           {ID: strings.Repeat("i", 256), Topic: "t"},
		"Message.ID has a NUL byte":          {ID: "\x00", Topic: "t"},
		"Message.ID is not valid UTF-8":      {ID: "\xff", Topic: "t"},
		"Message.Key is not valid UTF-8":     {Key: "\xff", Topic: "t"},
		"Message.Key has 1025 bytes":         {Key: strings.Repeat("k", 1025), Topic: "t"},
		`Message.Headers["h"] has a NUL`:     {Topic: "t", Headers: map[string]string{"h": "a\x00b"}},
		`Message.Headers["h\x00"] has a NUL`: {Topic: "t", Headers: map[string]string{"h\x00": "a"}},
		"Message.Headers has an empty name":  {Topic: "t", Headers: map[string]string{"": "a"}},
		"more than 6291456 bytes at once":    {Topic: "t", Body: make([]byte, 6<<20)},
	} {
		err := e.tryWrite(nil, ok, m)
		require.ErrorContains(e, err, want)
		require.ErrorContains(e, err, "outbox: write: message 1, ID ")
	}
	require.ErrorContains(e, e.tryWrite(nil, make([]outbox.Message, 1001)...), "1001 messages at once; 1000 is the limit")
	require.Zero(e, e.number("SELECT count(*) FROM %s"))
	require.NoError(e, e.tryWrite(nil), "nothing to write is nothing wrong")

	many := make([]outbox.Message, 1000)
	for i := range many {
		many[i] = ok
	}
	e.write(many...)
	e.write(outbox.Message{ID: strings.Repeat("ü", 127), Topic: strings.Repeat("t", 512), Key: strings.Repeat("k", 1024), Body: make([]byte, 6<<20-3000)})
	require.Equal(e, 1001, e.number("SELECT count(*) FROM %s"))
}

func noTransaction(e *env) {
	m := outbox.Message{Topic: "t"}
	err := e.o.Write(e.Context(), e.db, m)
	require.ErrorIs(e, err, outbox.ErrNoTransaction)
	require.ErrorContains(e, err, "a *sql.DB")
	require.ErrorIs(e, e.o.Write(e.Context(), nil, m), outbox.ErrNoTransaction)
	require.ErrorIs(e, e.o.Write(e.Context(), (*sql.Tx)(nil), m), outbox.ErrNoTransaction)
	require.ErrorContains(e, e.o.InTx(e.Context(), nil, nil), "f is nil")
	c, err := e.db.Conn(e.Context())
	require.NoError(e, err)
	defer c.Close()
	require.ErrorIs(e, e.o.Write(e.Context(), c, m), outbox.ErrNoTransaction)
	require.Zero(e, e.number("SELECT count(*) FROM %s"))
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		_, err = c.ExecContext(e.Context(), "BEGIN")
		require.NoError(e, err)
		require.NoError(e, e.o.Write(e.Context(), c, m))
		_, err = c.ExecContext(e.Context(), end)
		require.NoError(e, err)
	}
	require.Equal(e, 1, e.number("SELECT count(*) FROM %s"))
}

func missingTable(e *env) {
	o, err := outbox.New(e.db, e.dialect, &outbox.Options{Table: newTable()})
	require.NoError(e, err)
	err = o.InTx(e.Context(), nil, func(ctx context.Context, tx *sql.Tx) error { return o.Write(ctx, tx, say("k", 0)) })
	require.ErrorContains(e, err, "call Migrate at start")
	ro := quick()
	r, err := outbox.NewRelay(o, e.b.at(), &ro)
	require.NoError(e, err)
	require.ErrorContains(e, r.Run(e.Context()), "call Migrate at start")
}

func migrated(e *env) {
	table := newTable()
	o := e.outbox(e.db, table)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := o.Migrate(e.Context()); err != nil {
				e.Error(err)
			}
		})
	}
	wg.Wait()
	e.table = table
	require.Equal(e, 65, e.number("SELECT count(*) FROM %s_shards"))
	_, err := e.db.ExecContext(e.Context(), "DROP TABLE "+table)
	require.NoError(e, err)
	require.ErrorContains(e, o.Migrate(e.Context()), "was dropped, and idemq_schema still has its version")
}
