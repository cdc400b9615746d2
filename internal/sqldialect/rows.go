package sqldialect

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Kind is the type of a column of a batch.
type Kind uint8

// The kinds. Every one may be null.
const (
	Hash  Kind = iota + 1 // at most 64 bytes
	Bytes                 // less than 8 MiB
	Int
	Text // at most 1 KiB of valid UTF-8 without NUL
)

// Column is one column of a batch.
type Column struct {
	Name string
	Kind Kind
}

// Shape is what the rows of a batch have. A batch travels in a fixed number of parameters, whatever
// its size: one array for each column on PostgreSQL, one JSON document elsewhere. So a statement has one
// text and one plan, and no limit on placeholders is met.
type Shape []Column

// Params is how many parameters a batch takes, always the first of its statement.
func (d Dialect) Params(s Shape) int {
	if d == PostgreSQL {
		return len(s) + 1
	}
	return 1
}

// From is the batch as a table called alias, to stand in a FROM clause once, as its first item.
//
// On PostgreSQL a series of one row is joined. A plan that the server keeps for statements to come would
// be one for the size that the table has now, and a table that was empty is read from end to end, for every
// statement, until it is analyzed again. The server keeps a plan only where it is not expected to be worse, and for
// an end of the series that it does not know it expects a thousand rows: so it plans each statement anew.
func (d Dialect) From(s Shape, alias string) string { return d.from(s, alias, "$%d::%s[]", anew) }

// What is joined on PostgreSQL, so that it plans each statement anew, or may keep a plan.
const (
	anew = "generate_series(1, $%d::int) AS once"
	kept = "(SELECT $%d::int) AS once"
)

// FromOnly is From for a statement that reads no other table, whose plan is good for ever. To make it anew takes PostgreSQL as long as to
// insert a row.
func (d Dialect) FromOnly(s Shape, alias string) string { return d.from(s, alias, "$%d::%s[]", kept) }

// FromFew is From for a batch that names rows of a large table. PostgreSQL, which sees how many there are, would rather read a
// table of some ten thousand rows from end to end, for each batch of it, than look for hundreds by an index. Behind a sub-select it
// does not see that, and expects ten.
func (d Dialect) FromFew(s Shape, alias string) string {
	return d.from(s, alias, "(SELECT $%d::%s[])", anew)
}

// from is the batch as a table. On PostgreSQL array is how a parameter is read, and once what is joined.
func (d Dialect) from(s Shape, alias, array, once string) string {
	cols := make([]string, len(s))
	switch d {
	case PostgreSQL:
		params := make([]string, len(s))
		for i, c := range s {
			cols[i] = c.Name
			params[i] = fmt.Sprintf(array, i+1, map[Kind]string{Hash: "bytea", Bytes: "bytea", Int: "bigint", Text: "text"}[c.Kind])
		}
		return fmt.Sprintf("unnest(%s) AS %s(%s) CROSS JOIN "+once, strings.Join(params, ", "), alias, strings.Join(cols, ", "), len(s)+1)
	case MySQL:
		fields := make([]string, len(s))
		for i, c := range s {
			kind, read := "MEDIUMTEXT CHARACTER SET latin1", "UNHEX(j.%[1]s) AS %[1]s" // MariaDB miscalculates for LONGTEXT
			switch c.Kind {
			case Hash:
				kind = "VARCHAR(128) CHARACTER SET latin1"
			case Int:
				kind, read = "BIGINT", "j.%[1]s"
			case Text:
				kind, read = "VARCHAR(2048) CHARACTER SET latin1", "CONVERT(UNHEX(j.%[1]s) USING utf8mb4) COLLATE utf8mb4_bin AS %[1]s"
			}
			fields[i] = fmt.Sprintf("%s %s PATH '$[%d]'", c.Name, kind, i)
			cols[i] = fmt.Sprintf(read, c.Name)
		}
		return fmt.Sprintf("(SELECT %s FROM JSON_TABLE(?, '$[*]' COLUMNS (%s)) AS j) AS %s", strings.Join(cols, ", "), strings.Join(fields, ", "), alias)
	default:
		for i, c := range s {
			read := "unhex(value->>%d)"
			switch c.Kind {
			case Int:
				read = "value->>%d"
			case Text:
				read = "CAST(unhex(value->>%d) AS TEXT)"
			}
			cols[i] = fmt.Sprintf(read+" AS %s", i, c.Name)
		}
		return fmt.Sprintf("(SELECT %s FROM json_each(?1)) AS %s", strings.Join(cols, ", "), alias)
	}
}

// Rows is a batch on its way into a statement. Values are given column by column, row by row.
type Rows struct {
	dialect Dialect
	shape   Shape
	bufs    [][]byte // one for each parameter with values
	col     int
	n       int
}

// NewRows begins a batch of about n rows.
func NewRows(d Dialect, s Shape, n int) *Rows {
	r := &Rows{dialect: d, shape: s, bufs: make([][]byte, 1)}
	if d == PostgreSQL {
		r.bufs = make([][]byte, len(s))
	}
	each := 64 * n * len(s) / len(r.bufs)
	for i := range r.bufs {
		open := byte('[')
		if d == PostgreSQL {
			open = '{'
		}
		r.bufs[i] = append(make([]byte, 0, each+2), open)
	}
	return r
}

// next returns the buffer for the value of the current column, the separator written.
func (r *Rows) next() *[]byte {
	b := &r.bufs[0]
	if r.dialect == PostgreSQL {
		b = &r.bufs[r.col]
	}
	switch {
	case r.dialect == PostgreSQL && r.n > 0, r.dialect != PostgreSQL && r.col > 0:
		*b = append(*b, ',')
	case r.dialect != PostgreSQL && r.n > 0:
		*b = append(*b, ',', '[')
	case r.dialect != PostgreSQL:
		*b = append(*b, '[')
	}
	return b
}

// end closes the value, and the row with its last one.
func (r *Rows) end(b *[]byte) {
	if r.col++; r.col < len(r.shape) {
		return
	}
	r.col = 0
	r.n++
	if r.dialect != PostgreSQL {
		*b = append(*b, ']')
	}
}

// Int gives the next value.
func (r *Rows) Int(v int64) {
	b := r.next()
	*b = strconv.AppendInt(*b, v, 10)
	r.end(b)
}

// Null gives the next value.
func (r *Rows) Null() {
	b := r.next()
	if r.dialect == PostgreSQL {
		*b = append(*b, "NULL"...)
	} else {
		*b = append(*b, "null"...)
	}
	r.end(b)
}

// Bytes gives the next value.
func (r *Rows) Bytes(v []byte) {
	b := r.next()
	if r.dialect == PostgreSQL {
		*b = append(*b, `"\\x`...)
	} else {
		*b = append(*b, '"')
	}
	*b = hex.AppendEncode(*b, v)
	*b = append(*b, '"')
	r.end(b)
}

// Text gives the next value.
func (r *Rows) Text(v string) {
	if r.dialect != PostgreSQL { // as bytes: no character set of a connection can change it
		r.Bytes([]byte(v))
		return
	}
	b := r.next()
	*b = append(*b, '"')
	for i := range len(v) {
		if v[i] == '"' || v[i] == '\\' {
			*b = append(*b, '\\')
		}
		*b = append(*b, v[i])
	}
	*b = append(*b, '"')
	r.end(b)
}

// Len is how many rows there are.
func (r *Rows) Len() int { return r.n }

// Args are the statement's parameters: the batch, then more.
func (r *Rows) Args(more ...any) []any {
	args := make([]any, 0, len(r.bufs)+1+len(more))
	for _, b := range r.bufs {
		if r.dialect == PostgreSQL {
			b = append(b, '}')
		} else {
			b = append(b, ']')
		}
		args = append(args, string(b))
	}
	if r.dialect == PostgreSQL {
		args = append(args, int64(1))
	}
	return append(args, more...)
}

// CleanText makes s fit every text column: no NUL, valid UTF-8, at most limit bytes.
func CleanText(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}
