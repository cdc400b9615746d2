package sqldialect

import (
	"errors"
	"fmt"
	"strings"
)

// maxName leaves room for the suffixes of indexes: PostgreSQL cuts names at 63 bytes, MySQL at 64.
const maxName = 48

// Table is a checked table name, with the schema (in MySQL: the database) it was given with.
type Table struct {
	dialect      Dialect
	schema, name string
}

// ParseTable accepts letters, digits and underscores, not beginning with a digit, and one such
// prefix with a dot.
func ParseTable(d Dialect, text string) (Table, error) {
	t := Table{dialect: d, name: text}
	if schema, name, ok := strings.Cut(text, "."); ok {
		t.schema, t.name = schema, name
		if err := checkName(schema); err != nil {
			return Table{}, fmt.Errorf("schema of table %q: %w", text, err)
		}
	}
	if err := checkName(t.name); err != nil {
		return Table{}, fmt.Errorf("table %q: %w", text, err)
	}
	return t, nil
}

func checkName(s string) error {
	if s == "" {
		return errors.New("the name is empty")
	}
	if len(s) > maxName {
		return fmt.Errorf("the name has %d bytes; %d is the limit", len(s), maxName)
	}
	for i, c := range []byte(s) {
		switch {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9' && i > 0:
		default:
			return fmt.Errorf("the name has %q at byte %d; use letters, digits and underscores, not beginning with a digit", c, i)
		}
	}
	return nil
}

// Name is the bare name, Schema its prefix or "".
func (t Table) Name() string { return t.name }

// Schema is the prefix, "" where there is none.
func (t Table) Schema() string { return t.schema }

// Beside is another table in the same schema.
func (t Table) Beside(name string) Table {
	t.name = name
	return t
}

// String is the name as people write it.
func (t Table) String() string {
	if t.schema == "" {
		return t.name
	}
	return t.schema + "." + t.name
}

// Quoted is the name as statements have it.
func (t Table) Quoted() string {
	if t.schema == "" {
		return t.dialect.quote(t.name)
	}
	return t.dialect.quote(t.schema) + "." + t.dialect.quote(t.name)
}

// Index is the quoted name of the table's index with that suffix. PostgreSQL and MySQL put an index
// where its table is; SQLite wants the schema here.
func (t Table) Index(suffix string) string {
	name := t.dialect.quote(t.name + "_" + suffix)
	if t.dialect == SQLite && t.schema != "" {
		return t.dialect.quote(t.schema) + "." + name
	}
	return name
}

// quote needs to escape nothing: checkName has seen the name.
func (d Dialect) quote(name string) string {
	if d == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}
