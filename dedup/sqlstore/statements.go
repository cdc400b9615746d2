package sqlstore

import (
	"fmt"
	"strings"

	"github.com/idemq/idemq/internal/sqldialect"
)

// The shapes of what is sent. k is always first.
var (
	keyShape = sqldialect.Shape{{Name: "k", Kind: sqldialect.Hash}}
	askShape = append(keyShape[:1:1], sqldialect.Shape{
		{Name: "owner", Kind: sqldialect.Hash}, {Name: "fingerprint", Kind: sqldialect.Hash}, {Name: "lease", Kind: sqldialect.Int},
		{Name: "ttl", Kind: sqldialect.Int}, {Name: "redrive", Kind: sqldialect.Int}, {Name: "must", Kind: sqldialect.Int}, {Name: "holder", Kind: sqldialect.Text},
	}...)
	recordShape = append(keyShape[:1:1], sqldialect.Shape{
		{Name: "was", Kind: sqldialect.Int}, {Name: "revision", Kind: sqldialect.Int}, {Name: "state", Kind: sqldialect.Int},
		{Name: "owner", Kind: sqldialect.Hash}, {Name: "epoch", Kind: sqldialect.Int}, {Name: "attempts", Kind: sqldialect.Int},
		{Name: "crashes", Kind: sqldialect.Int}, {Name: "redrive", Kind: sqldialect.Int}, {Name: "alone", Kind: sqldialect.Int},
		{Name: "fingerprint", Kind: sqldialect.Hash}, {Name: "holder", Kind: sqldialect.Text}, {Name: "last_error", Kind: sqldialect.Text},
		{Name: "result", Kind: sqldialect.Bytes}, {Name: "claimed_at", Kind: sqldialect.Int}, {Name: "lease_until", Kind: sqldialect.Int},
		{Name: "expires_at", Kind: sqldialect.Int},
	}...)
	beginShape = append(keyShape[:1:1], sqldialect.Shape{
		{Name: "owner", Kind: sqldialect.Hash}, {Name: "fingerprint", Kind: sqldialect.Hash}, {Name: "redrive", Kind: sqldialect.Int},
		{Name: "at", Kind: sqldialect.Int}, {Name: "lease", Kind: sqldialect.Int}, {Name: "ttl", Kind: sqldialect.Int},
		{Name: "holder", Kind: sqldialect.Text},
	}...)
	beatShape = append(keyShape[:1:1], sqldialect.Shape{
		{Name: "owner", Kind: sqldialect.Hash}, {Name: "epoch", Kind: sqldialect.Int}, {Name: "lease", Kind: sqldialect.Int},
		{Name: "ttl", Kind: sqldialect.Int}, {Name: "alone", Kind: sqldialect.Int},
	}...)
	wordShape = append(keyShape[:1:1], sqldialect.Shape{
		{Name: "owner", Kind: sqldialect.Hash}, {Name: "epoch", Kind: sqldialect.Int}, {Name: "state", Kind: sqldialect.Int},
		{Name: "lease", Kind: sqldialect.Int}, {Name: "ttl", Kind: sqldialect.Int},
	}...)
	finishShape = append(wordShape[:6:6], sqldialect.Shape{{Name: "reason", Kind: sqldialect.Text}, {Name: "result", Kind: sqldialect.Bytes}}...)
)

// columns are those of a record, in the order in which scan reads them.
var columns = []string{
	"revision", "state", "owner", "epoch", "attempts", "crashes", "redrive", "alone",
	"fingerprint", "holder", "last_error", "result", "claimed_at", "lease_until", "expires_at",
}

// statements are the texts, which are the same for every batch.
type statements struct {
	ask     string // PostgreSQL: read all, make what is not there
	read    string // all of a record
	glance  string // all but the result
	begin   string // MySQL and SQLite: makes records of new keys
	create  string // makes any records that are not there
	probe   string // MySQL: which of the records to replace nobody has locked
	replace string // records by their revision; those that another transaction has locked are left out
	insist  string // the same, but it waits for them
	free    string // MySQL: which of the claims to extend nobody has locked
	beat    string // extends claims; those that another transaction has locked are left out
	finish  string
	word    string // finishes claims without results and reasons
	verdict string // finishes one claim inside a transaction
	enter   string // MySQL and SQLite: the first in a transaction
	leave   string // MySQL and SQLite: the last before the verdict
	lock    string // PostgreSQL, where a beat would be a conflict: keeps one claim inside a transaction
	forget  string
	sweep   string
}

// writer puts statements together.
type writer struct {
	d     sqldialect.Dialect
	table string
}

func newStatements(d sqldialect.Dialect, t sqldialect.Table) statements {
	w := writer{d, t.Quoted()}
	s := statements{
		read: w.read("t.result"), glance: w.read("NULL"), create: w.create(), verdict: w.verdict(),
		finish: w.finish(finishShape, "q.reason", "CASE WHEN q.state = 3 THEN q.result END"), word: w.finish(wordShape, "''", "NULL"),
		replace: w.replace(true), insist: w.replace(false), beat: w.beat(), forget: w.forget(), sweep: w.sweep(t),
	}
	switch d {
	case sqldialect.PostgreSQL:
		s.ask = w.ask()
	case sqldialect.MySQL:
		s.begin = w.begin()
		s.probe = w.unlocked(recordShape, "t.revision = q.was")
		s.free = w.unlocked(beatShape, w.mine(1))
		s.enter, s.leave = setMark, releaseMark
	case sqldialect.SQLite:
		s.begin = w.begin()
		s.enter = "UPDATE " + w.table + " SET state = state WHERE k = x''; " + setMark // which takes the lock to write
		s.leave = releaseMark
	}
	return s
}

// now is the database's clock in microseconds since 1970: of the moment on PostgreSQL, of the
// statement's begin on MySQL, whatever the session's time zone. It is later than the asker's call
// either way, which is all that a lease needs. SQLite has no clock of its own: it is the parameter
// after n others.
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

// minute is the first full minute after a time: what the sweeper's index has, so that the index
// changes only with the minute.
func (w writer) minute(us string) string {
	if w.d == sqldialect.MySQL {
		return "(" + us + ") DIV 60000000 + 1"
	}
	return "(" + us + ") / 60000000 + 1"
}

func (w writer) from(s sqldialect.Shape) string { return w.d.From(s, "q") }

// read finds each key's record, or nulls.
func (w writer) read(result string) string {
	cols := make([]string, len(columns))
	for i, c := range columns {
		cols[i] = "t." + c
		if c == "result" {
			cols[i] = result
		}
	}
	if w.d == sqldialect.PostgreSQL {
		return fmt.Sprintf("WITH %s SELECT q.k, %s, %s FROM q LEFT JOIN %s AS t ON t.k = q.k AND %s", w.with(keyShape), w.now(1), strings.Join(cols, ", "), w.table, asked)
	}
	on := " AS t ON t.k = q.k"
	if w.d == sqldialect.MySQL {
		on = byKey
	}
	return fmt.Sprintf("SELECT q.k, %s, %s FROM %s LEFT JOIN %s%s", w.now(1), strings.Join(cols, ", "), w.from(keyShape), w.table, on)
}

// byKey keeps MySQL from reading a small table from end to end, which would wait for the lock of every
// row on the way.
const byKey = " AS t FORCE INDEX FOR JOIN (PRIMARY) ON t.k = q.k"

// with is PostgreSQL's batch as a common table, and asked a condition beside t.k = q.k, which would
// do alone: of an array that a query makes the server expects ten elements, whereas a batch of many keys would
// rather make it read a table of some megabytes from end to end than go through its index.
func (w writer) with(s sqldialect.Shape) string {
	return "q AS MATERIALIZED (SELECT q.* FROM " + w.from(s) + ")"
}

const asked = "t.k = ANY (ARRAY(SELECT q.k FROM q))"

// ask reads by the snapshot of the statement's begin, and inserts what is missing there. What
// somebody else inserts meanwhile is neither made nor seen, and asked for again.
func (w writer) ask() string {
	seen := "seen." + strings.Join(columns, ", seen.")
	return fmt.Sprintf(`WITH c AS MATERIALIZED (SELECT %s AS now),
%s,
seen AS MATERIALIZED (SELECT t.* FROM %s AS t WHERE %s),
made AS (
 INSERT INTO %s (k, revision, state, owner, epoch, attempts, crashes, redrive, alone, fingerprint, holder, last_error, claimed_at, lease_until, expires_at, sweep_after)
 SELECT q.k, c.now, 2, q.owner, c.now / 1000, 0, 0, q.redrive, 0, q.fingerprint, q.holder, '', c.now, c.now + q.lease, c.now + q.ttl, %s
 FROM q CROSS JOIN c WHERE q.must = 0 AND NOT EXISTS (SELECT 1 FROM seen WHERE seen.k = q.k) ORDER BY q.k
 ON CONFLICT (k) DO NOTHING RETURNING k, epoch)
SELECT made.k, c.now, NULL::bigint, NULL::smallint, NULL::bytea, made.epoch, NULL::integer, NULL::integer, NULL::integer, NULL::smallint,
 NULL::bytea, NULL::text, NULL::text, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint FROM made CROSS JOIN c
UNION ALL SELECT seen.k, c.now, %s FROM seen CROSS JOIN c`,
		w.now(0), w.with(askShape), w.table, asked, w.table, w.minute("c.now + q.ttl"), seen)
}

// begin is create for claims of new keys, which have little to say.
func (w writer) begin() string {
	epoch := "q.at / 1000"
	if w.d == sqldialect.MySQL {
		epoch = "q.at DIV 1000"
	}
	return w.unlessThere(fmt.Sprintf("INSERT INTO %s (k, revision, state, owner, epoch, attempts, crashes, redrive, alone, fingerprint, holder, last_error, claimed_at, lease_until, expires_at, sweep_after) SELECT q.k, q.at, 2, q.owner, %s, 0, 0, q.redrive, 0, q.fingerprint, q.holder, '', q.at, q.at + q.lease, q.at + q.ttl, %s FROM %s",
		w.table, epoch, w.minute("q.at + q.ttl"), w.from(beginShape)))
}

func (w writer) create() string {
	cols := append([]string{"k"}, columns...)
	text := fmt.Sprintf("INSERT INTO %s (%s, sweep_after) SELECT q.%s, %s FROM %s", w.table, strings.Join(cols, ", "),
		strings.Join(cols, ", q."), w.minute("q.expires_at"), w.from(recordShape))
	return w.unlessThere(text)
}

// unlessThere is an insert of what is not there. Where a record is, MySQL makes none of them and reports the
// duplicate: an insert that looks away would not tell which ones it made.
func (w writer) unlessThere(text string) string {
	switch w.d {
	case sqldialect.PostgreSQL:
		return text + " ORDER BY q.k ON CONFLICT (k) DO NOTHING RETURNING k"
	case sqldialect.SQLite:
		return text + " WHERE true ON CONFLICT (k) DO NOTHING RETURNING k"
	default:
		return text
	}
}

// set is a SET clause; pairs are columns and what they become.
func (w writer) set(pairs [][2]string) string {
	all := make([]string, len(pairs))
	for i, p := range pairs {
		all[i] = p[0] + " = " + p[1]
		if w.d == sqldialect.MySQL {
			all[i] = "t." + all[i]
		}
	}
	return " SET " + strings.Join(all, ", ")
}

// update changes the rows that q names where they still meet the condition. skip: not those that
// another transaction has locked. No expression reads a column that another one sets: MySQL leaves
// the order open.
func (w writer) update(s sqldialect.Shape, pairs [][2]string, condition string, skip bool) string {
	set := w.set(pairs)
	switch {
	case w.d == sqldialect.MySQL:
		return "UPDATE " + w.from(s) + " STRAIGHT_JOIN " + w.table + byKey + set + " WHERE " + condition
	case w.d == sqldialect.PostgreSQL && skip:
		// free has all of q, so that it need not be looked through for each row of that; and what is asked is no
		// condition once more: of free the planner expects one row, so it uses the key by itself, and an array of
		// all keys would be sorted anew for each.
		return fmt.Sprintf("WITH %s, free AS MATERIALIZED (SELECT q.* FROM q JOIN %s AS t ON t.k = q.k AND %s WHERE %s ORDER BY t.k FOR NO KEY UPDATE OF t SKIP LOCKED) UPDATE %s AS t%s FROM free AS q WHERE t.k = q.k AND %s RETURNING t.k",
			w.with(s), w.table, asked, condition, w.table, set, condition)
	case w.d == sqldialect.PostgreSQL:
		return fmt.Sprintf("WITH %s UPDATE %s AS t%s FROM q WHERE t.k = q.k AND %s AND %s RETURNING t.k", w.with(s), w.table, set, asked, condition)
	default: // which has no name for the table here
		return "UPDATE " + w.table + " AS t" + set + " FROM " + w.from(s) + " WHERE t.k = q.k AND " + condition + " RETURNING k"
	}
}

// unlocked finds the rows to update that nobody has locked. Its own locks end with the statement.
func (w writer) unlocked(s sqldialect.Shape, condition string) string {
	return "SELECT t.k FROM " + w.from(s) + " STRAIGHT_JOIN " + w.table + byKey + " WHERE " + condition + " FOR UPDATE SKIP LOCKED"
}

func (w writer) replace(skip bool) string {
	var pairs [][2]string
	for _, c := range columns {
		pairs = append(pairs, [2]string{c, "q." + c})
	}
	pairs = append(pairs, [2]string{"sweep_after", w.minute("q.expires_at")})
	return w.update(recordShape, pairs, "t.revision = q.was", skip)
}

// mine is what a row meets that its owner may still change: the record is there, and neither
// another's, nor ended, nor gone back.
func (w writer) mine(n int) string {
	return "t.owner = q.owner AND t.epoch >= q.epoch AND t.lease_until IS NOT NULL AND t.state IN (2, 7) AND t.expires_at > " + w.now(n)
}

func (w writer) beat() string {
	now := w.now(1)
	return w.update(beatShape, [][2]string{
		{"lease_until", now + " + q.lease"}, {"expires_at", now + " + q.ttl"}, {"sweep_after", w.minute(now + " + q.ttl")},
		{"alone", "t.alone | q.alone"}, {"revision", "t.revision + 1"},
	}, w.mine(1), true)
}

func (w writer) finish(shape sqldialect.Shape, reason, result string) string {
	now := w.now(1)
	return w.update(shape, [][2]string{
		{"state", "CASE WHEN t.state = 7 AND q.state = 6 THEN 7 ELSE q.state END"},
		{"attempts", "CASE q.state WHEN 3 THEN 0 WHEN 4 THEN t.attempts + 1 ELSE t.attempts END"},
		{"crashes", "CASE WHEN q.state IN (3, 4) THEN 0 ELSE t.crashes END"},
		{"last_error", "CASE q.state WHEN 3 THEN '' WHEN 6 THEN t.last_error ELSE " + reason + " END"},
		{"result", result},
		{"holder", "CASE WHEN q.state = 7 THEN t.holder ELSE '' END"},
		{"lease_until", "CASE WHEN q.state = 7 THEN " + now + " + q.lease END"},
		{"expires_at", now + " + q.ttl"}, {"sweep_after", w.minute(now + " + q.ttl")}, {"revision", "t.revision + 1"},
	}, w.mine(1)+" AND (t.state = 2 OR q.state IN (5, 6))", false)
}

// verdict has the parameters result, ttl twice, key, owner and epoch.
func (w writer) verdict() string {
	now := w.now(6)
	return fmt.Sprintf("UPDATE %s SET state = 3, attempts = 0, crashes = 0, last_error = '', holder = '', lease_until = NULL, result = %s, expires_at = %s + %s, sweep_after = %s, revision = revision + 1 WHERE %s",
		w.table, w.d.Arg(1), now, w.d.Arg(2), w.minute(now+" + "+w.d.Arg(3)), w.own(3, now))
}

// own is the condition on a claim that its owner may still end, with the parameters key, owner and epoch after n others.
func (w writer) own(n int, now string) string {
	return fmt.Sprintf("k = %s AND owner = %s AND epoch = %s AND state = 2 AND lease_until IS NOT NULL AND expires_at > %s", w.d.Arg(n+1), w.d.Arg(n+2), w.d.Arg(n+3), now)
}

// lock has the parameters key, owner and epoch.
func (w writer) lock() string {
	return fmt.Sprintf("SELECT alone FROM %s WHERE %s FOR NO KEY UPDATE", w.table, w.own(0, w.now(0)))
}

// forget deletes one record unless a lease runs.
func (w writer) forget() string {
	now := w.now(1)
	return fmt.Sprintf("DELETE FROM %s WHERE k = %s AND (state NOT IN (2, 7) OR lease_until IS NULL OR lease_until <= %s OR expires_at <= %s)", w.table, w.d.Arg(1), now, now)
}

// sweep deletes at most sweepRows expired records.
func (w writer) sweep(t sqldialect.Table) string {
	now := w.now(0)
	over := fmt.Sprintf("sweep_after <= %s AND expires_at <= %s AND (lease_until IS NULL OR lease_until <= %s)", w.minute(now+" - 60000000"), now, now)
	switch w.d {
	case sqldialect.PostgreSQL: // the lock ends with the statement, which is a transaction of its own
		return fmt.Sprintf("WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%d) AS mine) DELETE FROM %s WHERE k = ANY (ARRAY(SELECT k FROM %s WHERE (SELECT mine FROM turn) AND %s ORDER BY sweep_after LIMIT %d FOR UPDATE SKIP LOCKED))",
			t.Beside(t.Name()+".sweep").LockKey(), w.table, w.table, over, sweepRows)
	case sqldialect.MySQL:
		return fmt.Sprintf("DELETE FROM %s WHERE %s ORDER BY sweep_after LIMIT %d", w.table, over, sweepRows)
	default:
		return fmt.Sprintf("DELETE FROM %s WHERE k IN (SELECT k FROM %s WHERE %s ORDER BY sweep_after LIMIT %d)", w.table, w.table, over, sweepRows)
	}
}
