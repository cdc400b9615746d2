package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/internal/testenv"
)

// orders is a business table that refuses owners of the past: the pattern of docs/choosing.md.
type orders struct {
	db           *sql.DB
	fence, write string
	tx           *sql.TxOptions
}

var errFenced = errors.New("an owner of the past")

// ship is the effect of a claim on Redis in a database of its own: the fence first, then the rest.
func (o *orders) ship(ctx context.Context, order, by string, pause func()) error {
	tx, err := o.db.BeginTx(ctx, o.tx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	epoch := int64(dedup.ClaimFrom(ctx).Epoch)
	res, err := tx.ExecContext(ctx, o.fence, epoch, order, epoch)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errFenced)
	}
	pause()
	if _, err := tx.ExecContext(ctx, o.write, order, by); err != nil {
		return err
	}
	return tx.Commit()
}

func newOrders(t *testing.T, driver, dsn string, level sql.IsolationLevel) (*orders, string) {
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	name := fmt.Sprintf("orders_%d", time.Now().UnixNano())
	o := &orders{
		db: db, tx: &sql.TxOptions{Isolation: level},
		fence: "UPDATE " + name + " SET fence = ? WHERE id = ? AND fence < ?",
		write: "INSERT INTO " + name + "_log (id, who) VALUES (?, ?)",
	}
	if driver == "pgx" {
		o.fence = "UPDATE " + name + " SET fence = $1 WHERE id = $2 AND fence < $3"
		o.write = "INSERT INTO " + name + "_log (id, who) VALUES ($1, $2)"
	}
	for _, s := range []string{
		"CREATE TABLE " + name + " (id varchar(20) PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)",
		"CREATE TABLE " + name + "_log (id varchar(20), who varchar(20))",
		"INSERT INTO " + name + " (id) VALUES ('o-1')",
	} {
		_, err := db.Exec(s)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for _, n := range []string{name, name + "_log"} {
			_, err := db.Exec("DROP TABLE " + n)
			require.NoError(t, err)
		}
	})
	return o, name
}

func TestBusinessDatabaseRefusesOwnersOfThePast(t *testing.T) {
	t.Parallel()
	for _, d := range []struct {
		driver string
		dsn    func(testing.TB) string
	}{{"pgx", testenv.PostgreSQL}, {"mysql", testenv.MySQL}} {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			t.Run(fmt.Sprint(d.driver, " ", level), func(t *testing.T) {
				o, name := newOrders(t, d.driver, d.dsn(t), level)
				client := redis.NewClient(&redis.Options{Addr: testenv.Redis(t)})
				defer client.Close()
				g, err := dedup.New(name, redisstore.New(client, &redisstore.Options{Logger: quiet}), &dedup.Options{Lease: time.Second, Logger: quiet})
				require.NoError(t, err)
				w := dedup.Work{Scope: "shipping", ID: "o-1"}

				// The first owner stands still past its lease and is followed.
				first, err := g.Claim(t.Context(), w)
				require.NoError(t, err)
				ctx1, cancel := first.Context(context.Background())
				defer cancel()
				first.Abandon()
				var second *dedup.Claim
				require.Eventually(t, func() bool {
					second, err = g.Claim(t.Context(), w)
					return err == nil && second.State == dedup.Acquired
				}, eventually, 10*time.Millisecond)
				require.Greater(t, second.Epoch, first.Epoch)
				ctx2, cancel := second.Context(t.Context())
				defer cancel()

				// It goes on while its successor's transaction is open, and waits for it.
				late := make(chan error, 1)
				require.NoError(t, o.ship(ctx2, "o-1", "second", func() {
					begun := make(chan struct{})
					go func() { close(begun); late <- o.ship(context.WithoutCancel(ctx1), "o-1", "first", func() {}) }()
					<-begun
				}))
				require.Error(t, <-late, "fenced, or, above READ COMMITTED, a conflict with the write it waited for")
				require.ErrorIs(t, o.ship(context.WithoutCancel(ctx1), "o-1", "first", func() {}), errFenced, "however late")
				require.NoError(t, second.Complete(t.Context(), nil))

				var who string
				var n int
				require.NoError(t, o.db.QueryRow("SELECT min(who), count(*) FROM "+name+"_log").Scan(&who, &n))
				require.Equal(t, "second", who)
				require.Equal(t, 1, n)
			})
		}
	}
}
