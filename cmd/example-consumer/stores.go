package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
)

// variable is where an address is.
type variable struct{ name, syntax string }

var (
	redisVar    = variable{"IDEMQ_REDIS_ADDR", "host:port"}
	postgresVar = variable{"IDEMQ_POSTGRES_DSN", "postgres://user:password@host:port/database"}
	mysqlVar    = variable{"IDEMQ_MYSQL_DSN", "user:password@tcp(host:port)/database"}
	sqliteVar   = variable{"IDEMQ_SQLITE_FILE", "the path of a file"}
)

// storeKind is a store that --store can name.
type storeKind struct {
	name    string
	redis   bool             // it needs one
	dialect sqlstore.Dialect // of the database that it needs; empty: none
}

const tierName = "tier"

func storeKinds() []storeKind {
	return []storeKind{
		{"redis", true, ""},
		{"postgres", false, sqlstore.PostgreSQL},
		{"mysql", false, sqlstore.MySQL},
		{"sqlite", false, sqlstore.SQLite},
		{tierName, true, sqlstore.PostgreSQL}, // or MySQL, see locateStore
	}
}

func storeNames() string {
	var names []string
	for _, k := range storeKinds() {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

// locateStore finds the addresses of what the store needs.
func (s *servers) locateStore(name string, env func(string) string) error {
	kinds := storeKinds()
	i := slices.IndexFunc(kinds, func(k storeKind) bool { return k.name == name })
	if i < 0 {
		return fmt.Errorf("unknown --store %q; there are: %s", name, storeNames())
	}
	k := kinds[i]
	s.Store, s.Dialect = name, k.dialect
	need := func(v variable) (string, error) {
		if a := env(v.name); a != "" {
			return a, nil
		}
		return "", fmt.Errorf("--store %s: %s is not set; set it to %s", name, v.name, v.syntax)
	}
	var err error
	if k.redis {
		if s.Redis, err = need(redisVar); err != nil {
			return err
		}
	}
	switch {
	case name == tierName && env(postgresVar.name) == "" && env(mysqlVar.name) == "":
		return fmt.Errorf("--store tier: neither %s nor %s is set; set one to %s, or %s", postgresVar.name, mysqlVar.name, postgresVar.syntax, mysqlVar.syntax)
	case name == tierName && env(postgresVar.name) == "":
		s.Dialect, s.DSN = sqlstore.MySQL, env(mysqlVar.name)
	case s.Dialect == sqlstore.PostgreSQL:
		s.DSN, err = need(postgresVar)
	case s.Dialect == sqlstore.MySQL:
		s.DSN, err = need(mysqlVar)
	case s.Dialect == sqlstore.SQLite:
		file := env(sqliteVar.name)
		if file == "" {
			file = filepath.Join(os.TempDir(), "idemq-example.db")
		}
		s.DSN = sqliteDSN(file)
	}
	return err
}

// sqliteDSN lets writers of several processes wait for each other, and transactions begin as writers.
func sqliteDSN(file string) string {
	return "file:" + file + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate"
}

// openStore is a store and what stands behind it.
type openStore struct {
	dedup.Store
	db    *sql.DB // nil: none
	redis *redis.Client
}

func (o *openStore) close() error {
	var errs []error
	if o.db != nil {
		errs = append(errs, o.db.Close())
	}
	if o.redis != nil {
		errs = append(errs, o.redis.Close())
	}
	return errors.Join(errs...)
}

// openNamed opens the store that --store names, its records in Redis under prefix.
func (s *servers) openNamed(ctx context.Context, prefix string, log *slog.Logger) (*openStore, error) {
	if s.Store == "" || s.Store == "redis" {
		o := &openStore{redis: redis.NewClient(&redis.Options{Addr: s.Redis})}
		o.Store = s.onRedis(o.redis, prefix, log)
		return o, nil
	}
	return s.openTx(ctx, prefix, log)
}

// openTx opens a store that joins the transactions of the servers' database.
func (s *servers) openTx(ctx context.Context, prefix string, log *slog.Logger) (*openStore, error) {
	db, err := s.openDB()
	if err != nil {
		return nil, err
	}
	o := &openStore{db: db}
	table, err := sqlstore.New(db, s.Dialect, nil)
	if err == nil {
		err = table.Migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	o.Store = table
	if s.Store == tierName {
		o.redis = redis.NewClient(&redis.Options{Addr: s.Redis})
		o.Store = tierstore.New(table, s.onRedis(o.redis, prefix, log))
	}
	return o, nil
}

func (s *servers) onRedis(client *redis.Client, prefix string, log *slog.Logger) *redisstore.Store {
	return redisstore.New(client, &redisstore.Options{Prefix: prefix, Logger: log})
}

func (s *servers) openDB() (*sql.DB, error) {
	driver := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "pgx", sqlstore.MySQL: "mysql", sqlstore.SQLite: "sqlite"}[s.Dialect]
	return sql.Open(driver, s.DSN)
}

// effects is a table of what orders had, a row an effect, in the same database as their verdicts.
type effects struct {
	table   string
	dialect sqlstore.Dialect
}

// effectsOf names a trial's table.
func (s *servers) effectsOf(group string) effects {
	return effects{strings.ReplaceAll(group, "-", "_"), s.Dialect}
}

func (e effects) create(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "CREATE TABLE "+e.table+" (customer_order varchar(64) NOT NULL)")
	return err
}

func (e effects) drop(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+e.table)
	return err
}

// add is the effect of an order; it stands once tx is committed.
func (e effects) add(ctx context.Context, tx *sql.Tx, order string) error {
	mark := "?"
	if e.dialect == sqlstore.PostgreSQL {
		mark = "$1"
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO "+e.table+" (customer_order) VALUES ("+mark+")", order)
	return err
}

// count is how many effects each order has had.
func (e effects) count(ctx context.Context, db *sql.DB) (map[string]int, error) {
	rows, err := db.QueryContext(ctx, "SELECT customer_order, count(*) FROM "+e.table+" GROUP BY customer_order")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var order string
		var n int
		if err := rows.Scan(&order, &n); err != nil {
			return nil, err
		}
		all[order] = n
	}
	return all, rows.Err()
}
