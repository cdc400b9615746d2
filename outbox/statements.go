package outbox

import (
	"fmt"
	"strings"

	"github.com/idemq/idemq/internal/sqldialect"
)

// The states of a row.
const (
	statePending = 0
	stateSent    = 1
	stateParked  = 2
)

// sweeper is the row beside those of the shards whose owner sweeps.
const sweeper = shards

// The shapes of what is sent.
var (
	writeShape = sqldialect.Shape{
		{Name: "n", Kind: sqldialect.Int}, {Name: "id", Kind: sqldialect.Text}, {Name: "lane", Kind: sqldialect.Int},
		{Name: "shard", Kind: sqldialect.Int}, {Name: "topic", Kind: sqldialect.Text}, {Name: "msg_key", Kind: sqldialect.Text},
		{Name: "headers", Kind: sqldialect.Bytes}, {Name: "body", Kind: sqldialect.Bytes}, {Name: "content", Kind: sqldialect.Hash},
	}
	sameShape = sqldialect.Shape{{Name: "id", Kind: sqldialect.Text}, {Name: "content", Kind: sqldialect.Hash}}
	laneShape = sqldialect.Shape{{Name: "lane", Kind: sqldialect.Int}}
	seqShape  = sqldialect.Shape{{Name: "seq", Kind: sqldialect.Int}}
	failShape = sqldialect.Shape{{Name: "seq", Kind: sqldialect.Int}, {Name: "state", Kind: sqldialect.Int}, {Name: "attempts", Kind: sqldialect.Int}, {Name: "reason", Kind: sqldialect.Text}}
	idShape   = sqldialect.Shape{{Name: "id", Kind: sqldialect.Text}}

	topicShape = sqldialect.Shape{{Name: "topic", Kind: sqldialect.Text}}

	shardShape = sqldialect.Shape{{Name: "shard", Kind: sqldialect.Int}}
	takeShape  = sqldialect.Shape{{Name: "shard", Kind: sqldialect.Int}, {Name: "token", Kind: sqldialect.Hash}, {Name: "lease", Kind: sqldialect.Int}}
)

// statements are the texts, which are the same for every batch.
type statements struct {
	write string // messages into the caller's transaction
	same  string // PostgreSQL: fails where one of these IDs has other content

	read   string // pending rows of some shards, not of some lanes
	strict string // the same without followers of parked rows
	// The same two without some topics, and what has their messages' keys.
	readOpen, strictOpen string

	mark    string // rows as sent
	fail    string // rows with their error, parked or not
	soon    string // before those two: that they are not to wait long for a lock
	free    string // which of some rows are pending, and locked by nobody
	pending string // which are pending
	requeue string
	count   string
	sweep   string

	alive   string // a relay says that it lives
	join    string // for the first time
	leave   string
	bury    string // relays that live no more
	beat    string // keeps a relay's shards
	look    string // who has what
	take    string // shards that nobody has
	release string
}

// writer puts statements together.
type writer struct {
	d                     sqldialect.Dialect
	name                  string // of the table, alone
	table, shards, relays string
	hint                  string // that pending rows are read by their index, in its order
}

func newStatements(d sqldialect.Dialect, t sqldialect.Table) statements {
	w := writer{d: d, name: t.Name(), table: t.Quoted(), shards: t.Beside(t.Name() + "_shards").Quoted(), relays: t.Beside(t.Name() + "_relays").Quoted()}
	switch d {
	case sqldialect.MySQL:
		w.hint = " FORCE INDEX (`" + t.Name() + "_pending`)"
	case sqldialect.SQLite:
		w.hint = ` INDEXED BY "` + t.Name() + `_pending"`
	}
	s := statements{
		write: w.write(), read: w.read("", false), mark: w.mark(), fail: w.fail(), requeue: w.requeue(), count: w.count(), sweep: w.sweep(),
		strict: w.read(w.unparked(), false), readOpen: w.read("", true), strictOpen: w.read(w.unparked(), true),
		leave: "DELETE FROM " + w.relays + " WHERE token = " + w.d.Arg(1),
		bury:  "DELETE FROM " + w.relays + " WHERE alive_until <= " + w.now(0),
	}
	switch d {
	case sqldialect.PostgreSQL:
		s.same = w.same()
		s.pending = "SELECT t.seq FROM " + w.d.FromFew(seqShape, "q") + " JOIN " + w.table + " AS t ON t.seq = q.seq AND t.state = 0"
		s.free = s.pending + " FOR UPDATE OF t SKIP LOCKED"
	case sqldialect.MySQL:
		s.soon = "/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */ " // of MariaDB; a comment to MySQL
		s.pending = "SELECT t.seq FROM " + w.from(seqShape) + " STRAIGHT_JOIN " + w.table + " AS t FORCE INDEX (PRIMARY) ON t.seq = q.seq WHERE t.state = 0"
		s.free = s.pending + " FOR UPDATE SKIP LOCKED"
	}
	w.leases(&s)
	return s
}

// now is the database's clock in microseconds since 1970, of the moment or of the statement's begin,
// whatever the session's time zone. SQLite has none of its own: it is the parameter after n others.
func (w writer) now(n int) string {
	switch w.d {
	case sqldialect.PostgreSQL:
		return "(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
	case sqldialect.MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	default:
		return w.d.Arg(n + 1)
	}
}

func (w writer) from(s sqldialect.Shape) string { return w.d.From(s, "q") }

// write numbers the rows in the order of n. PostgreSQL looks away from an ID that is there, without
// a lock, so that no relay waits for the caller's transaction; w.same looks at it. The others lock it,
// and a CHECK refuses other content.
func (w writer) write() string {
	text := fmt.Sprintf("INSERT INTO %s (id, lane, shard, topic, msg_key, headers, body, content, created_at, state, attempts, last_error) "+
		"SELECT q.id, q.lane, q.shard, q.topic, q.msg_key, q.headers, q.body, q.content, %s, 0, 0, '' FROM %s", w.table, w.now(1), w.d.FromOnly(writeShape, "q"))
	switch w.d {
	case sqldialect.PostgreSQL:
		return text + " ORDER BY q.n ON CONFLICT (id) DO NOTHING"
	case sqldialect.MySQL:
		return text + fmt.Sprintf(" ORDER BY q.n ON DUPLICATE KEY UPDATE other = IF(%s.content = q.content, 0, 1)", w.table)
	default:
		return text + " WHERE true ORDER BY q.n ON CONFLICT (id) DO UPDATE SET other = 1 WHERE content <> excluded.content"
	}
}

// same inserts what the table's CHECK refuses, where an ID is not there with the content given.
func (w writer) same() string {
	return fmt.Sprintf("INSERT INTO %s (id, lane, shard, topic, content, created_at, state, attempts, last_error, other) "+
		"SELECT q.id, 0, 0, '', q.content, 0, 0, 0, '', 1 FROM %s LEFT JOIN %s AS t ON t.id = q.id AND t.content = q.content WHERE t.id IS NULL",
		w.table, w.from(sameShape), w.table)
}

// read has the parameters: lanes to leave out, topics to leave out where open, a mask of shards, the limit. It begins at the
// first pending row each time, for one that was written earlier may have been committed later; so what one
// statement sees of a lane is its oldest rows, without a gap.
func (w writer) read(more string, open bool) string {
	n := w.d.Params(laneShape)
	if open {
		n++
		more = w.open(n) + more
	}
	mask, pending := w.d.Arg(n+1), "t.state = 0"
	if w.d == sqldialect.PostgreSQL {
		// Written so that a server without statistics expects many rows to meet each condition: it then reads the
		// index in its order as far as the limit, instead of sorting all that is pending.
		mask, pending = mask+"::bigint", "t.state < 1"
	}
	return fmt.Sprintf("SELECT t.seq, t.id, t.lane, t.topic, t.msg_key, t.headers, t.body, CASE WHEN t.body IS NULL THEN 1 ELSE 0 END, t.attempts FROM %s AS t%s "+
		"WHERE %s AND t.lane NOT IN (SELECT q.lane FROM %s) %sAND ((%s >> t.shard) & 1) <> 0 ORDER BY t.seq LIMIT %s",
		w.table, w.hint, pending, w.from(laneShape), more, mask, w.d.Arg(n+2))
}

// unparked leaves out the lanes of parked rows. PostgreSQL would compare each row with a list of all of them, where
// they are too many for the memory of one sort; so it looks each lane up.
func (w writer) unparked() string {
	if w.d == sqldialect.PostgreSQL {
		return "AND (SELECT p.state FROM " + w.table + " AS p WHERE p.state = 2 AND p.lane = t.lane LIMIT 1) IS DISTINCT FROM 2 "
	}
	return "AND t.lane NOT IN (SELECT p.lane FROM " + w.table + " AS p WHERE p.state = 2) "
}

// open leaves out the lanes that have pending rows of the topics in the nth parameter: all of them, for a later row of
// another topic must not overtake. PostgreSQL makes a table for look-ups of a set that it takes for small, however large that is; and where
// it expects many rows, in order and up to a limit that it does not know, it goes by the index of what is pending.
func (w writer) open(n int) string {
	of := "SELECT h.lane FROM " + w.table + " AS h" + w.hint + " WHERE "
	switch w.d {
	case sqldialect.PostgreSQL:
		of = "SELECT unnest(ARRAY(" + of + "h.state < 1 AND array_position(" + w.d.Arg(n) + "::text[], h.topic) IS NOT NULL ORDER BY h.seq LIMIT (SELECT NULL::bigint)))"
	case sqldialect.MySQL:
		of += "h.state = 0 AND h.topic IN (SELECT x.topic FROM " + w.d.From(topicShape, "x") + ")"
	default:
		of += "h.state = 0 AND h.topic IN (SELECT CAST(unhex(value->>0) AS TEXT) FROM json_each(" + w.d.Arg(n) + "))"
	}
	return "AND t.lane NOT IN (" + of + ") "
}

// update changes rows of a table that q names. No expression reads a column that another one sets:
// MySQL leaves the order open.
func (w writer) update(table string, s sqldialect.Shape, key string, pairs [][2]string, condition string) string {
	all := make([]string, len(pairs))
	for i, p := range pairs {
		all[i] = p[0] + " = " + p[1]
		if w.d == sqldialect.MySQL {
			all[i] = "t." + all[i]
		}
	}
	set, on := " SET "+strings.Join(all, ", "), "t."+key+" = q."+key
	if w.d == sqldialect.MySQL {
		// Of a small table it would rather read all pending rows, and wait for those that are being written.
		index := "PRIMARY"
		if key == "id" {
			index, on = "`"+w.name+"_id`", "t.id = CAST(q.id AS BINARY)"
		}
		return "UPDATE " + w.from(s) + " STRAIGHT_JOIN " + table + " AS t FORCE INDEX (" + index + ") ON " + on + set + " WHERE " + condition
	}
	return "UPDATE " + table + " AS t" + set + " FROM " + w.d.FromFew(s, "q") + " WHERE " + on + " AND " + condition
}

// mine: the row's shard is the relay's whose token is the nth parameter.
func (w writer) mine(n int) string {
	return "t.shard IN (SELECT s.shard FROM " + w.shards + " AS s WHERE s.token = " + w.d.Arg(n) + ")"
}

// mark and fail have the parameters: rows, the relay's token.
func (w writer) mark() string {
	n := w.d.Params(seqShape)
	return w.update(w.table, seqShape, "seq", [][2]string{{"state", "1"}, {"sent_at", w.now(n + 1)}, {"last_error", "''"}}, "t.state = 0 AND "+w.mine(n+1))
}

// fail on PostgreSQL waits for whoever is taking the shard over: it must not park what the next
// owner has sent. On the others the statement itself locks the shards that it reads. Attempts are the relay's number: one that was
// counted here would be counted again where the reply is lost.
func (w writer) fail() string {
	n := w.d.Params(failShape)
	pairs := [][2]string{{"state", "q.state"}, {"attempts", "q.attempts"}, {"last_error", "q.reason"}}
	if w.d != sqldialect.PostgreSQL {
		return w.update(w.table, failShape, "seq", pairs, "t.state = 0 AND "+w.mine(n+1))
	}
	return fmt.Sprintf("WITH mine AS MATERIALIZED (SELECT shard FROM %s WHERE token = %s ORDER BY shard FOR SHARE) ", w.shards, w.d.Arg(n+1)) +
		w.update(w.table, failShape, "seq", pairs, "t.state = 0 AND t.shard IN (SELECT shard FROM mine)")
}

func (w writer) requeue() string {
	return w.update(w.table, idShape, "id", [][2]string{{"state", "0"}, {"attempts", "0"}, {"last_error", "''"}}, "t.state = 2")
}

func (w writer) count() string {
	return fmt.Sprintf("SELECT (SELECT count(*) FROM %[1]s WHERE state = 0), (SELECT count(*) FROM %[1]s WHERE state = 2), "+
		"(SELECT %[2]s - t.created_at FROM %[1]s AS t%[3]s WHERE t.state = 0 ORDER BY t.seq LIMIT 1)", w.table, w.now(0), w.hint)
}

// sweepRows bounds one sweep, and with it how long its locks last.
const sweepRows = 1000

// sweep deletes rows that were sent longer ago than its parameter says.
func (w writer) sweep() string {
	over := fmt.Sprintf("sent_at <= %s - %s ORDER BY sent_at LIMIT %d", w.now(1), w.d.Arg(1), sweepRows)
	if w.d == sqldialect.MySQL { // which, told of the state, would go by the other index; only sent rows have the time
		return "DELETE FROM " + w.table + " WHERE " + over
	}
	return fmt.Sprintf("DELETE FROM %[1]s WHERE id IN (SELECT id FROM %[1]s WHERE state = 1 AND %[2]s)", w.table, over)
}

// leases are the statements about who has which shard.
func (w writer) leases(s *statements) {
	s.alive = fmt.Sprintf("UPDATE %s SET alive_until = %s + %s WHERE token = %s", w.relays, w.now(2), w.d.Arg(1), w.d.Arg(2))
	s.join = fmt.Sprintf("INSERT INTO %s (alive_until, token, name) VALUES (%s + %s, %s, %s)", w.relays, w.now(3), w.d.Arg(1), w.d.Arg(2), w.d.Arg(3))
	s.beat = fmt.Sprintf("UPDATE %s SET lease_until = %s + %s WHERE token = %s", w.shards, w.now(2), w.d.Arg(1), w.d.Arg(2))
	s.look = fmt.Sprintf("SELECT s.shard, s.token, CASE WHEN s.lease_until <= %[1]s THEN 1 ELSE 0 END, (SELECT count(*) FROM %[2]s AS r WHERE r.alive_until > %[1]s) FROM %[3]s AS s",
		w.now(0), w.relays, w.shards)
	n := w.d.Params(takeShape)
	s.take = w.update(w.shards, takeShape, "shard", [][2]string{{"token", "q.token"}, {"lease_until", w.now(n) + " + q.lease"}}, "t.lease_until <= "+w.now(n))
	s.release = w.update(w.shards, shardShape, "shard", [][2]string{{"token", "''"}, {"lease_until", "0"}}, "t.token = "+w.d.Arg(w.d.Params(shardShape)+1))
}
