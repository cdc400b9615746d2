package sqlstore_test

import (
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/stretchr/testify/require"
)

// sqliteCode is an error as SQLite's driver tells it.
type sqliteCode int

func (c sqliteCode) Error() string { return fmt.Sprintf("refused (%d)", int(c)) }
func (c sqliteCode) Code() int     { return int(c) }

const (
	codeTooBig       = sqliteCode(18)
	codeBusySnapshot = sqliteCode(517)
)

// refusing is a store whose server refuses prepared statements.
func refusing(t *testing.T) (*shop, *spy) {
	b := openSQLite(t)
	far, spy := b.spied(t, b.dsn)
	return openShop(t, far, nil), spy
}

func TestResultThatTheServerRefusesIsItsOwnItemsFault(t *testing.T) {
	s, spy := refusing(t)
	const limit = 64 << 10
	spy.fault = func(_ string, args []driver.NamedValue) error {
		n := 0
		for _, a := range args {
			switch v := a.Value.(type) {
			case string:
				n += len(v)
			case []byte:
				n += len(v)
			}
		}
		if n > limit {
			return codeTooBig
		}
		return nil
	}
	held := acquireAll(t, s.store, asks(9)...)
	in := ended(held, dedup.Done)
	in[4].Result = make([]byte, limit+1)
	in[5].Result = []byte("small")
	errs := make([]error, len(in))
	require.NoError(t, s.store.Finish(t.Context(), in, errs))
	for i, err := range errs {
		if i == 4 {
			require.ErrorIs(t, err, dedup.ErrResultTooLarge)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, dedup.Done, claimAll(t, s.store, ask(in[i].Key))[0].State)
	}
	require.Equal(t, dedup.InProgress, claimAll(t, s.store, ask(in[4].Key))[0].State)

	f := done(held[4])
	f.Result = in[4].Result
	require.ErrorIs(t, s.store.InTx(t.Context(), f, func(*sql.Tx) error { return nil }), dedup.ErrResultTooLarge)
}

// The piece with the last key fails, and with it its word on what time it is.
func TestFaultOfOneItemLeavesTheOthersTheirTime(t *testing.T) {
	s, spy := refusing(t)
	in := asks(2)
	in[0].Key[0], in[1].Key[0] = 0, 1 // batches go by key
	bad := hex.EncodeToString(in[1].Key[:])
	spy.fault = func(text string, args []driver.NamedValue) error {
		if doc, ok := args[0].Value.(string); ok && strings.HasPrefix(text, "SELECT q.k") && strings.Contains(doc, bad) {
			return codeBusySnapshot
		}
		return nil
	}
	out := make([]dedup.Verdict, 2)
	require.NoError(t, s.store.Claim(t.Context(), in, out))
	require.Error(t, out[1].Err)
	require.Equal(t, dedup.Acquired, out[0].State)
	require.NotZero(t, out[0].Epoch)
	require.Equal(t, dedup.InProgress, claimAll(t, s.store, ask(in[0].Key))[0].State, "its lease runs")
}
