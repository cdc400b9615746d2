package sqlstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/stretchr/testify/require"
)

func TestMigrateFromManyInstancesAtOnce(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		var all sync.WaitGroup
		errs := make([]error, 12)
		for i := range errs {
			s := b.bare(t, nil)
			all.Go(func() { errs[i] = s.Migrate(t.Context()) })
		}
		all.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.NoError(t, b.bare(t, nil).Ping(t.Context()))
	})
}

func TestMissingTableNamesMigrate(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.bare(t, nil)
		err := s.Ping(t.Context())
		require.ErrorIs(t, err, dedup.ErrUnsafeStore)
		require.ErrorContains(t, err, "call Migrate")
		h := dedup.Held{ClaimRequest: ask(newKey()), Epoch: 1, Attempt: 1}
		_, inspected := s.Inspect(t.Context(), h.Key)
		_, swept := s.SweepBatch(t.Context())
		for name, err := range map[string]error{
			"claim":   s.Claim(t.Context(), asks(1), make([]dedup.Verdict, 1)),
			"extend":  s.Extend(t.Context(), []dedup.ExtendRequest{{Held: h}}, make([]error, 1)),
			"finish":  s.Finish(t.Context(), ended([]dedup.Held{h}, dedup.Done), make([]error, 1)),
			"forget":  s.Forget(t.Context(), h.Key),
			"inspect": inspected,
			"sweep":   swept,
		} {
			require.ErrorContains(t, err, "call Migrate", name)
		}
	})
}

func TestSchemaOfAnotherVersionIsRefused(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		set := func(v int) {
			_, err := b.Exec(fmt.Sprintf("UPDATE idemq_schema SET version = %d WHERE name = '%s'", v, b.table))
			require.NoError(t, err)
		}
		set(99)
		require.ErrorIs(t, s.Ping(t.Context()), dedup.ErrUnsafeStore)
		require.ErrorContains(t, s.Ping(t.Context()), "update the program")
		require.ErrorIs(t, s.Migrate(t.Context()), dedup.ErrUnsafeStore)
		set(0)
		require.ErrorContains(t, s.Ping(t.Context()), "call Migrate")
	})
}

func TestColumnTooSmallIsRefused(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		s := b.store(t)
		change := map[sqlstore.Dialect]string{
			sqlstore.PostgreSQL: "ALTER TABLE %s ALTER COLUMN holder TYPE varchar(5)",
			sqlstore.MySQL:      "ALTER TABLE %s MODIFY k VARBINARY(16) NOT NULL",
		}[b.dialect]
		b.exec(t, change)
		err := s.Ping(t.Context())
		require.ErrorIs(t, err, dedup.ErrUnsafeStore)
		require.ErrorContains(t, err, "column")
		require.ErrorContains(t, s.Claim(t.Context(), asks(1), make([]dedup.Verdict, 1)), "Ping tells")
		b.exec(t, "ALTER TABLE %s DROP COLUMN alone")
		require.ErrorIs(t, s.Ping(t.Context()), dedup.ErrUnsafeStore)
	})
}

func TestReadOnlyDatabaseIsRefused(t *testing.T) {
	setting := map[string]string{
		"postgresql": "&default_transaction_read_only=on", "mysql": "?tx_read_only=1", "sqlite": "&_pragma=query_only(1)",
	}
	eachBase(t, func(t *testing.T, b *base) {
		b.store(t)
		readOnly, _ := b.spied(t, b.dsn+setting[string(b.dialect)])
		s := readOnly.bare(t, nil)
		require.ErrorContains(t, s.Claim(t.Context(), asks(1), make([]dedup.Verdict, 1)), "primary")
		err := s.Ping(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, dedup.ErrUnsafeStore, "a fail-over may help")
		require.NoError(t, s.Migrate(t.Context()), "there is nothing to do")
	})
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	b := openSQLite(t)
	for name, c := range map[string]struct {
		dialect sqlstore.Dialect
		o       sqlstore.Options
		says    string
	}{
		"dialect":    {"oracle", sqlstore.Options{}, "oracle"},
		"injection":  {sqlstore.SQLite, sqlstore.Options{Table: `a"; DROP TABLE b; --`}, "Table"},
		"digit":      {sqlstore.SQLite, sqlstore.Options{Table: "1a"}, "Table"},
		"two dots":   {sqlstore.SQLite, sqlstore.Options{Table: "a.b.c"}, "Table"},
		"empty half": {sqlstore.SQLite, sqlstore.Options{Table: ".b"}, "Table"},
		"long":       {sqlstore.SQLite, sqlstore.Options{Table: strings.Repeat("a", 49)}, "48"},
		"negative":   {sqlstore.SQLite, sqlstore.Options{MaxResult: -1}, "MaxResult"},
		"huge":       {sqlstore.SQLite, sqlstore.Options{MaxResult: 8 << 20}, "MaxResult"},
	} {
		_, err := sqlstore.New(b.DB, c.dialect, &c.o)
		require.ErrorContains(t, err, c.says, name)
	}
	_, err := sqlstore.New(nil, sqlstore.SQLite, nil)
	require.ErrorContains(t, err, "nil")
}

func TestTableInASchema(t *testing.T) {
	eachServer(t, func(t *testing.T, b *base) {
		prefix := "idemq"
		if b.dialect == sqlstore.PostgreSQL {
			prefix = "s_" + b.table
			_, err := b.Exec("CREATE SCHEMA " + prefix)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = b.Exec("DROP SCHEMA " + prefix + " CASCADE") })
		}
		s := b.bare(t, &sqlstore.Options{Table: prefix + "." + b.table})
		require.NoError(t, s.Migrate(t.Context()))
		require.NoError(t, s.Ping(t.Context()))
		held := acquireAll(t, s, asks(2)...)
		require.NoError(t, finishAll(t, s, held, dedup.Done)[0])
	})
}

// Two applications on one table do not see each other's work; nor do names that differ in bytes which
// a text column would take for equal.
func TestNamesThatATextColumnWouldMerge(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		names := []string{"order", "Order", "order ", " order", "order\x00", "order\xff", "order\xfe", "ordér", "orde\u0301r", strings.Repeat("x", 300), strings.Repeat("x", 301)}
		for _, app := range []string{"billing", "Billing "} {
			g, err := dedup.New(app, s, nil)
			require.NoError(t, err)
			for _, name := range names {
				for _, w := range []dedup.Work{{Scope: "s", ID: name}, {Scope: name, ID: "i"}} {
					ran, err := g.Do(t.Context(), w, func(context.Context) error { return nil })
					require.NoError(t, err)
					require.True(t, ran, "%q", w)
					ran, err = g.Do(t.Context(), w, func(context.Context) error { return nil })
					require.NoError(t, err)
					require.False(t, ran, "%q", w)
				}
			}
		}
	})
}

func TestTextThatNoColumnTakes(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		for _, text := range []string{"a\x00b", "a\xffb", `"\{},'` + "\n\t", strings.Repeat("☂", 2000), strings.Repeat("x", 70_000), "\x00"} {
			q := ask(newKey())
			q.Holder = text
			h := acquireAll(t, s, q)[0]
			errs := make([]error, 1)
			require.NoError(t, s.Finish(t.Context(), []dedup.FinishRequest{{Held: h, State: dedup.Failed, Reason: text}}, errs))
			require.NoError(t, errs[0])
			r, err := s.Inspect(t.Context(), q.Key)
			require.NoError(t, err)
			if text[0] == '"' {
				require.Equal(t, text, r.LastError)
			}
			require.NotEmpty(t, r.LastError)
			require.LessOrEqual(t, len(r.LastError), 1024)
		}
	})
}

func TestResultBeyondTheLimitIsItsItemsError(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		fin := ended(acquireAll(t, s, asks(3)...), dedup.Done)
		fin[1].Result = make([]byte, 1<<20+1)
		errs := make([]error, 3)
		require.NoError(t, s.Finish(t.Context(), fin, errs))
		require.NoError(t, errs[0])
		require.ErrorContains(t, errs[1], "MaxResult")
		require.NoError(t, errs[2])
	})
}

// Sixteen results of 1 MiB are more than one packet of MySQL takes.
func TestLargeBatchesAreCut(t *testing.T) {
	eachBase(t, func(t *testing.T, b *base) {
		s := b.store(t)
		n, claims := 16, 2500
		if b.dialect == sqlstore.SQLite {
			n, claims = 2, 1100 // it has no packets, and is slow under the race detector
		}
		fin := ended(acquireAll(t, s, asks(n)...), dedup.Done)
		for i := range fin {
			fin[i].Result = []byte(strings.Repeat(string(rune('a'+i)), 1<<20))
		}
		errs := make([]error, len(fin))
		require.NoError(t, s.Finish(t.Context(), fin, errs))
		for i, err := range errs {
			require.NoError(t, err)
			v := claimAll(t, s, ask(fin[i].Key))[0]
			require.Equal(t, fin[i].Result, v.Result)
		}
		held := acquireAll(t, s, asks(claims)...)
		for _, err := range finishAll(t, s, held, dedup.Done) {
			require.NoError(t, err)
		}
	})
}

func TestKeyTwiceInABatchIsAnItemError(t *testing.T) {
	s := openSQLite(t).store(t)
	q := ask(newKey())
	out := make([]dedup.Verdict, 2)
	require.NoError(t, s.Claim(t.Context(), []dedup.ClaimRequest{q, q}, out))
	require.Equal(t, dedup.Acquired, out[0].State)
	require.ErrorContains(t, out[1].Err, "twice")
}
