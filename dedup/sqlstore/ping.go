package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/idemq/idemq/dedup"
)

// Ping implements dedup.Pinger: the database answers, is new enough and takes writes, and the table
// is there, of this package's version and wide enough.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.ping(ctx); err != nil {
		return fmt.Errorf("sqlstore: ping: %w", err)
	}
	return nil
}

// unsafe is an error that waiting cannot help.
func unsafe(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{dedup.ErrUnsafeStore}, args...)...)
}

func (s *Store) ping(ctx context.Context) error {
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	v, err := s.schema.Version(ctx, s.db)
	switch newest := len(s.schema.Steps); {
	case err != nil:
		return err
	case v == 0:
		return unsafe("table %s is not there; call Migrate at start", s.table)
	case v < newest:
		return unsafe("table %s has schema version %d and this program needs %d; call Migrate at start", s.table, v, newest)
	case v > newest:
		return unsafe("table %s has schema version %d and this program knows %d; update the program", s.table, v, newest)
	}
	if err := s.checkColumns(ctx); err != nil {
		return err
	}
	// A look at a key that nobody has, and its removal, show that the table may be read and written.
	if _, _, err := s.look(ctx, dedup.Key{}, s.text.glance); err != nil {
		return s.explain(err)
	}
	if _, err := s.exec(ctx, nil, s.text.forget, []any{make([]byte, len(dedup.Key{}))}); err != nil {
		return s.explain(err)
	}
	return nil
}

// checkServer asks for the version, and whether writes are taken.
func (s *Store) checkServer(ctx context.Context) error {
	query := map[Dialect]string{
		PostgreSQL: "SELECT current_setting('server_version'), CASE WHEN pg_is_in_recovery() THEN 'a replica' WHEN current_setting('transaction_read_only') = 'on' THEN 'set to read-only transactions' ELSE '' END",
		MySQL:      "SELECT VERSION(), CASE WHEN @@global.read_only THEN 'read-only, as replicas are' ELSE '' END",
		SQLite:     "SELECT sqlite_version(), ''",
	}[s.dialect]
	var version, why string
	if err := s.db.QueryRowContext(ctx, query).Scan(&version, &why); err != nil {
		return err
	}
	if err := checkVersion(s.dialect, version); err != nil {
		return err
	}
	if why != "" {
		return fmt.Errorf("the database is %s; connect to the primary (it may change in a fail-over: give the driver all hosts)", why)
	}
	return nil
}

var versionPattern = regexp.MustCompile(`^(\d+)\.(\d+)`)

// checkVersion refuses servers that lack what the statements need: on MySQL and MariaDB JSON_TABLE and SKIP
// LOCKED, on SQLite unhex. PostgreSQL's limit is the oldest that is still maintained.
func checkVersion(d Dialect, version string) error {
	name, major, minor := "PostgreSQL", 12, 0
	switch {
	case d == MySQL && strings.Contains(version, "MariaDB"):
		name, major, minor = "MariaDB", 10, 6
		version = strings.TrimPrefix(version, "5.5.5-") // a prefix for old replicas
	case d == MySQL:
		name, major, minor = "MySQL", 8, 0
	case d == SQLite:
		name, major, minor = "SQLite", 3, 41
	}
	m := versionPattern.FindStringSubmatch(version)
	if m == nil {
		return nil // a build that numbers itself otherwise: what it cannot do it will say
	}
	a, _ := strconv.Atoi(m[1])
	b, _ := strconv.Atoi(m[2])
	if a < major || a == major && b < minor {
		return unsafe("%s %s is below %d.%d; update it", name, version, major, minor)
	}
	return nil
}

// columnTypes are the types that the schema has, as the servers' catalogues name them, and widths where
// they have one.
var columnTypes = map[Dialect]map[string]string{
	PostgreSQL: {
		"k": "bytea", "epoch": "bigint", "revision": "bigint", "claimed_at": "bigint", "lease_until": "bigint", "expires_at": "bigint",
		"sweep_after": "bigint", "attempts": "integer", "crashes": "integer", "redrive": "integer", "state": "smallint", "alone": "smallint",
		"owner": "bytea", "fingerprint": "bytea", "holder": "text", "last_error": "text", "result": "bytea",
	},
	MySQL: {
		"k": "varbinary 32", "epoch": "bigint", "revision": "bigint", "claimed_at": "bigint", "lease_until": "bigint", "expires_at": "bigint",
		"sweep_after": "bigint", "attempts": "int", "crashes": "int", "redrive": "int", "state": "tinyint", "alone": "tinyint",
		"owner": "varbinary 16", "fingerprint": "varbinary 16", "holder": "varchar 255", "last_error": "varchar 1024", "result": "longblob",
	},
}

// checkColumns compares the table with its schema: a narrower column would refuse values, or, where the server
// is not strict, cut them; two keys cut alike would be one.
func (s *Store) checkColumns(ctx context.Context) error {
	want := columnTypes[s.dialect]
	if want == nil {
		return nil // SQLite's columns take any length; whether they are there the read shows
	}
	schema := "current_schema()"
	if s.dialect == MySQL {
		schema = "DATABASE()"
	}
	args := []any{s.table.Name()}
	if s.table.Schema() != "" {
		schema, args = s.dialect.Arg(2), append(args, s.table.Schema())
	}
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf("SELECT column_name, data_type, character_maximum_length FROM information_schema.columns WHERE table_name = %s AND table_schema = %s", s.dialect.Arg(1), schema), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	seen := make(map[string]bool)
	for rows.Next() {
		var name, kind string
		var width sql.NullInt64
		if err := rows.Scan(&name, &kind, &width); err != nil {
			return err
		}
		name = strings.ToLower(name)
		seen[name] = true
		if err := checkColumn(want[name], strings.ToLower(kind), width); err != nil {
			return unsafe("table %s: column %s %w; change it back", s.table, name, err)
		}
	}
	if err := rows.Err(); err != nil || len(seen) == 0 { // none: the search path leads elsewhere, and the read shows more
		return err
	}
	for name := range want {
		if !seen[name] {
			return unsafe("table %s has no column %s; it was made by something else than Migrate", s.table, name)
		}
	}
	return nil
}

func checkColumn(want, kind string, width sql.NullInt64) error {
	if want == "" {
		return nil // a column of somebody else's
	}
	name, least, _ := strings.Cut(want, " ")
	n, _ := strconv.ParseInt(least, 10, 64)
	switch {
	case kind != name && !wider(name, kind):
		return fmt.Errorf("is %s and not %s", kind, name)
	case width.Valid && width.Int64 < n:
		return fmt.Errorf("is %d wide and not %d", width.Int64, n)
	}
	return nil
}

// wider reports that a column of the other type holds all that one of the first does.
func wider(name, other string) bool {
	order := []string{"tinyint", "smallint", "int", "integer", "bigint"}
	a, b := -1, -1
	for i, o := range order {
		if o == name {
			a = i
		}
		if o == other {
			b = i
		}
	}
	return a >= 0 && b >= a
}
