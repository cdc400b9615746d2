package sqldialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// versions is the table that remembers how far each table's schema has come; it stands in the same
// schema as the table.
const versions = "idemq_schema"

// Schema is a table as the steps that make it: Steps[i] leads to version i+1 and consists of
// statements that end with a semicolon at the end of a line, in which {table}, {bare} (the table
// without its schema), {beside:suffix} (another table of the schema) and {index:suffix} stand for the quoted names.
type Schema struct {
	Dialect Dialect
	Table   Table
	Steps   []string
}

// ReadSteps returns the .sql files of the dialect's folder in the order of their names.
func ReadSteps(files fs.FS, folder string, d Dialect) ([]string, error) {
	names, err := fs.Glob(files, path.Join(folder, string(d), "*.sql"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	steps := make([]string, len(names))
	for i, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		steps[i] = string(text)
	}
	return steps, nil
}

// ErrNewer is what a database of a later version of the schema than this program knows is refused with.
var ErrNewer = errors.New("the schema is newer than this program")

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Version is the schema's version in the database, 0 where there is none yet.
func (s *Schema) Version(ctx context.Context, db *sql.DB) (int, error) {
	v, err := s.version(ctx, db)
	if Classify(s.Dialect, err) == NoTable {
		return 0, nil
	}
	return v, err
}

func (s *Schema) version(ctx context.Context, q querier) (v int, err error) {
	query := fmt.Sprintf("SELECT version FROM %s WHERE name = %s", s.Table.Beside(versions).Quoted(), s.Dialect.Arg(1))
	err = q.QueryRowContext(ctx, query, s.Table.Name()).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return v, err
}

// Migrate brings the schema to its newest version. Of several who call it at once one works and the
// others wait; where nothing is to be done no right but to read is needed.
func (s *Schema) Migrate(ctx context.Context, db *sql.DB) error {
	v, err := s.Version(ctx, db)
	switch {
	case err != nil:
		return err
	case v == len(s.Steps):
		return s.there(ctx, db)
	case v > len(s.Steps):
		return s.newer(v)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	switch s.Dialect {
	case PostgreSQL:
		return s.within(ctx, conn, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", s.Table.LockKey()))
	case SQLite:
		return s.within(ctx, conn, "BEGIN IMMEDIATE")
	default:
		return s.underLock(ctx, conn)
	}
}

// there finds out whether the table that the note of versions tells of was dropped since.
func (s *Schema) there(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "SELECT 1 FROM "+s.Table.Quoted()+" WHERE 1 = 0")
	if Classify(s.Dialect, err) != NoTable {
		return err
	}
	return fmt.Errorf("table %s was dropped, and %s still has its version; to make it anew: DELETE FROM %s WHERE name = '%s', and drop what is left beside it: %w",
		s.Table, versions, versions, s.Table.Name(), err)
}

func (s *Schema) newer(v int) error {
	return fmt.Errorf("table %s has schema version %d and this program knows %d: %w", s.Table, v, len(s.Steps), ErrNewer)
}

// LockKey names the table to advisory locks. The server keeps those of each database apart.
func (t Table) LockKey() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("idemq\x00" + t.String()))
	return int64(h.Sum64())
}

// LockName is an expression for the name of the table's lock on MySQL, where locks are the whole
// server's. It is NULL where neither the table's name nor the connection says which database is meant.
func (t Table) LockName(purpose string) string {
	database := "DATABASE()"
	if t.schema != "" {
		database = "'" + t.schema + "'"
	}
	return fmt.Sprintf("CONCAT('idemq.%s.', SHA1(CONCAT(%s, '/%s')))", purpose, database, t.name)
}

// within takes all steps in one transaction: these servers undo definitions, too.
func (s *Schema) within(ctx context.Context, conn *sql.Conn, begin ...string) (err error) {
	for i, b := range begin {
		if _, err := conn.ExecContext(ctx, b); err != nil {
			if i > 0 {
				s.undo(ctx, conn)
			}
			return err
		}
	}
	if err := s.steps(ctx, conn); err != nil {
		s.undo(ctx, conn)
		return err
	}
	if _, err = conn.ExecContext(ctx, "COMMIT"); err != nil {
		s.undo(ctx, conn)
	}
	return err
}

// cleanUp is how long what must be undone may take once ctx has ended.
const cleanUp = 5 * time.Second

// undo leaves nothing open on a connection that goes back to the pool. Where the transaction is gone
// already, or the connection is, its error says nothing new.
func (s *Schema) undo(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	_, _ = conn.ExecContext(ctx, "ROLLBACK")
}

// underLock takes the steps one by one: MySQL commits each definition by itself, so each statement
// must bear to be repeated after a crash.
func (s *Schema) underLock(ctx context.Context, conn *sql.Conn) error {
	name := s.Table.LockName("migrate")
	for got := false; !got; {
		var answer sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+name+", 1)").Scan(&answer); err != nil {
			return err
		}
		if !answer.Valid { // by an error of the server's, or since nothing says which database is meant
			return fmt.Errorf("the server gave no lock; name a database in the DSN, or before a dot in the table's name, and see its log")
		}
		got = answer.Int64 == 1
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		_, _ = conn.ExecContext(ctx, "DO RELEASE_LOCK("+name+")") // the end of the connection releases it, too
	}()
	return s.steps(ctx, conn)
}

func (s *Schema) steps(ctx context.Context, conn *sql.Conn) error {
	table := s.Table.Beside(versions).Quoted()
	if _, err := conn.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (name varchar(64) NOT NULL PRIMARY KEY, version int NOT NULL)"); err != nil {
		return err
	}
	v, err := s.version(ctx, conn)
	if err != nil {
		return err
	}
	if v > len(s.Steps) {
		return s.newer(v)
	}
	for ; v < len(s.Steps); v++ {
		for _, statement := range s.statements(s.Steps[v]) {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("step %d: %w", v+1, err)
			}
		}
		query := fmt.Sprintf("UPDATE %s SET version = %d WHERE name = %s", table, v+1, s.Dialect.Arg(1))
		if v == 0 {
			query = fmt.Sprintf("INSERT INTO %s (name, version) VALUES (%s, 1)", table, s.Dialect.Arg(1))
		}
		if _, err := conn.ExecContext(ctx, query, s.Table.Name()); err != nil {
			return err
		}
	}
	return nil
}

// statements fills in the names.
func (s *Schema) statements(step string) []string {
	step = strings.ReplaceAll(step, "{table}", s.Table.Quoted())
	step = strings.ReplaceAll(step, "{bare}", s.Dialect.quote(s.Table.name))
	step = replace(step, "{index:", s.Table.Index)
	step = replace(step, "{beside:", func(suffix string) string { return s.Table.Beside(s.Table.name + "_" + suffix).Quoted() })
	var all []string
	for text := range strings.SplitSeq(step, ";\n") {
		if text = strings.TrimSpace(text); text != "" {
			all = append(all, text)
		}
	}
	return all
}

// replace puts name(suffix) for each open + suffix + "}".
func replace(text, open string, name func(suffix string) string) string {
	for {
		before, rest, ok := strings.Cut(text, open)
		if !ok {
			return text
		}
		suffix, after, _ := strings.Cut(rest, "}")
		text = before + name(suffix) + after
	}
}
