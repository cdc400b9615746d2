package sqldialect_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/internal/testenv"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

func TestNames(t *testing.T) {
	for text, want := range map[string]string{"a": `"a"`, "_A1": `"_A1"`, "s.t": `"s"."t"`} {
		name, err := sqldialect.ParseTable(sqldialect.PostgreSQL, text)
		require.NoError(t, err, text)
		require.Equal(t, want, name.Quoted())
		require.Equal(t, text, name.String())
	}
	name, err := sqldialect.ParseTable(sqldialect.MySQL, "s.t")
	require.NoError(t, err)
	require.Equal(t, "`s`.`t`", name.Quoted())
	require.Equal(t, "`t_sweep`", name.Index("sweep"))
	for _, text := range []string{"", ".", "a.", ".a", "a.b.c", "1a", "a b", "a;b", `a"`, "a`", "tä", "a\x00", strings.Repeat("a", 49)} {
		_, err := sqldialect.ParseTable(sqldialect.SQLite, text)
		require.Error(t, err, "%q", text)
	}
}

var everyKind = sqldialect.Shape{
	{Name: "h", Kind: sqldialect.Hash}, {Name: "b", Kind: sqldialect.Bytes}, {Name: "n", Kind: sqldialect.Int}, {Name: "s", Kind: sqldialect.Text},
}

func open(t *testing.T, d sqldialect.Dialect) *sql.DB {
	t.Helper()
	name, dsn := "sqlite", ":memory:"
	switch d {
	case sqldialect.PostgreSQL:
		name, dsn = "pgx", testenv.PostgreSQL(t)
	case sqldialect.MySQL:
		name, dsn = "mysql", testenv.MySQL(t)
	}
	db, err := sql.Open(name, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// What goes in comes out, on the server itself.
func TestRowsArriveAsTheyWereGiven(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	texts := []string{"", "plain", `"quoted\"`, `{a,b}`, "NULL", "null", "päivää ☂\n\t'", strings.Repeat("x", 1024)}
	for _, d := range []sqldialect.Dialect{sqldialect.PostgreSQL, sqldialect.MySQL, sqldialect.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			db := open(t, d)
			rows := sqldialect.NewRows(d, everyKind, len(texts))
			for i, text := range texts {
				rows.Bytes(every[i : i+32])
				rows.Bytes(every)
				rows.Int(int64(i) - 3)
				rows.Text(text)
			}
			for range everyKind {
				rows.Null()
			}
			require.Equal(t, len(texts)+1, rows.Len())
			require.Len(t, rows.Args(), d.Params(everyKind))
			got, err := db.Query("SELECT h, b, n, s FROM "+d.From(everyKind, "q")+" ORDER BY n IS NULL, n", rows.Args()...)
			require.NoError(t, err)
			defer got.Close()
			i := 0
			for ; got.Next(); i++ {
				var h, b []byte
				var n sql.NullInt64
				var s sql.NullString
				require.NoError(t, got.Scan(&h, &b, &n, &s))
				if i == len(texts) {
					require.Nil(t, h)
					require.Nil(t, b)
					require.False(t, n.Valid || s.Valid)
					continue
				}
				require.Equal(t, every[i:i+32], h)
				require.Equal(t, every, b)
				require.Equal(t, int64(i)-3, n.Int64)
				require.True(t, s.Valid)
				require.Equal(t, texts[i], s.String)
			}
			require.NoError(t, got.Err())
			require.Equal(t, len(texts)+1, i)
		})
	}
}

func TestEmptyBytesAreNotNull(t *testing.T) {
	for _, d := range []sqldialect.Dialect{sqldialect.PostgreSQL, sqldialect.MySQL, sqldialect.SQLite} {
		rows := sqldialect.NewRows(d, everyKind[1:2], 1)
		rows.Bytes(nil)
		var null bool
		require.NoError(t, open(t, d).QueryRow("SELECT b IS NULL FROM "+d.From(everyKind[1:2], "q"), rows.Args()...).Scan(&null), d)
		require.False(t, null, d)
	}
}

func TestCleanText(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain", "a\x00b": "a\uFFFDb", "a\xffb": "a\uFFFDb", "12345678": "1234567", "123456☂": "123456", "": "",
	} {
		require.Equal(t, want, sqldialect.CleanText(text, 7), "%q", text)
	}
}

// Of eight items the sixth meets a lock each time: the others are written, and only it is told.
func TestContentionIsNarrowedDown(t *testing.T) {
	for _, state := range []string{"55P03", "40001"} {
		done, told := map[int]bool{}, map[int]error{}
		err := sqldialect.PostgreSQL.Contend(t.Context(), 8, func(from, to int) error {
			if from <= 5 && 5 < to {
				return pgError(state)
			}
			for i := from; i < to; i++ {
				require.False(t, done[i], "written twice")
				done[i] = true
			}
			return nil
		}, func(i int, err error) { told[i] = err })
		require.NoError(t, err)
		require.Len(t, done, 7)
		require.Len(t, told, 1)
		require.Error(t, told[5])
	}
}

func TestConflictIsTriedAgain(t *testing.T) {
	tries := 0
	err := sqldialect.MySQL.Contend(t.Context(), 8, func(from, to int) error {
		require.Equal(t, 8, to-from)
		if tries++; tries < 3 {
			return mysqlError(1213)
		}
		return nil
	}, func(i int, err error) { require.Fail(t, "told") })
	require.NoError(t, err)
	require.Equal(t, 3, tries)
}

func TestOtherErrorsAndEndedContextsAreHandedOn(t *testing.T) {
	never := func(int, error) { require.Fail(t, "told") }
	require.ErrorIs(t, sqldialect.SQLite.Contend(t.Context(), 8, func(int, int) error { return sqliteError(5) }, never), sqliteError(5), "SQLite's lock is on everything")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tries := 0
	require.Error(t, sqldialect.MySQL.Contend(ctx, 8, func(int, int) error { tries++; return mysqlError(1213) }, never))
	require.Equal(t, 1, tries)
}
