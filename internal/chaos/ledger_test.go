package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/outbox"
)

// openDB opens the database with the ledger.
func (s *childSpec) openDB() (*sql.DB, *sqlstore.Store, error) {
	driver := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "pgx", sqlstore.MySQL: "mysql"}[s.Dialect]
	db, err := sql.Open(driver, s.DSN)
	if err != nil {
		return nil, nil, err
	}
	store, err := sqlstore.New(db, s.Dialect, nil)
	return db, store, err
}

// childInTx is child with effects that are rows of the ledger, each in one transaction with its verdict.
func childInTx(ctx context.Context, s *childSpec, report func(kind, id string, epoch uint64), log *slog.Logger) error {
	db, table, err := s.openDB()
	if err != nil {
		return err
	}
	defer db.Close()
	w := &committing{TxStore: table, report: report}
	if s.Tier {
		rdb := redis.NewClient(&redis.Options{Addr: s.Redis, MaxRetries: -1})
		defer rdb.Close()
		w.tier = tierstore.New(table, redisstore.New(rdb, nil))
		w.TxStore = w.tier
	}
	guard, err := dedup.New(s.App, w, &dedup.Options{Lease: s.Lease, Logger: log, Observe: func(e dedup.Event) {
		if e.Name == "settle" && e.Cause == "duplicate" {
			report("dropped", "duplicate", uint64(e.N))
		}
	}})
	if err != nil {
		return err
	}
	next, err := outbox.New(db, s.Dialect, &outbox.Options{Table: s.Outbox})
	if err != nil {
		return err
	}
	k := kindOf(s.Broker)
	source, err := k.open(s, log)
	if err != nil {
		return err
	}
	mark := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "($1, $2)", sqlstore.MySQL: "(?, ?)"}[s.Dialect]
	c, err := consumer.NewInTx(source, guard, func(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+s.Ledger+" (id, attempt) VALUES "+mark, m.ID, m.Attempt); err != nil {
			return err
		}
		if s.Outbox != "" {
			if err := next.Write(ctx, tx, outbox.Message{ID: m.ChildID(0), Topic: s.Next, Key: m.Key, Body: []byte(m.ID)}); err != nil {
				return err
			}
		}
		report("in", s.keyOf(m.ID), m.Epoch)
		select { // the rest of the work
		case <-time.After(s.Work):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if m.Attempt == 1 && failsOnce(m.ID) {
			return errInjected
		}
		return nil
	}, &consumer.Options{Policy: consumer.Policy{
		Backoff:    []time.Duration{k.backoff},
		MaxCrashes: 100_000, // the process dies again and again while the same suspect runs alone; that it is no killer is known here only
	}})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

var errInjected = errors.New("not at the first attempt")

// committing reports transactions that have ended, and what the front of two levels has answered.
type committing struct {
	dedup.TxStore
	tier   *tierstore.Store // nil: there is one level
	report func(kind, id string, epoch uint64)
}

func (c *committing) InTx(ctx context.Context, f dedup.FinishRequest, work func(*sql.Tx) error) error {
	err := c.TxStore.InTx(ctx, f, work)
	if !errors.Is(err, errInjected) && err != nil {
		c.report("broken", keyText(f.Key), f.Epoch)
	}
	c.report("out", keyText(f.Key), f.Epoch)
	return err
}

func (c *committing) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	err := c.TxStore.Claim(ctx, in, out)
	if c.tier != nil {
		c.report("front", "answered", c.tier.Stats().Answered)
	}
	return err
}

// ledger is the table of effects as the test sees it.
type ledger struct {
	db    *sql.DB
	table string
}

// newLedger makes the tables that the children need.
func newLedger(ctx context.Context, s *childSpec) (*ledger, error) {
	db, store, err := s.openDB()
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE "+s.Ledger+" (id varchar(64) NOT NULL, attempt int NOT NULL)")
	return &ledger{db, s.Ledger}, err
}

// rows are the effects: how many by message, and how many failed attempts came before them.
func (l *ledger) rows() (effects map[string]int, failures int, err error) {
	rows, err := l.db.Query("SELECT id, attempt FROM " + l.table)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	effects = make(map[string]int)
	for rows.Next() {
		var id string
		var attempt int
		if err := rows.Scan(&id, &attempt); err != nil {
			return nil, 0, err
		}
		effects[id]++
		failures += attempt - 1
	}
	return effects, failures, rows.Err()
}

// count is how many effects there are.
func (l *ledger) count() (n int, err error) {
	err = l.db.QueryRow("SELECT count(*) FROM " + l.table).Scan(&n)
	return n, err
}

func (l *ledger) drop() error {
	_, err := l.db.Exec("DROP TABLE IF EXISTS " + l.table)
	return errors.Join(err, l.db.Close())
}

// check holds the rows against what was published.
func (l *ledger) check(all []published) error {
	effects, failures, err := l.rows()
	if err != nil {
		return err
	}
	ids, injected := make(map[string]bool), 0
	for _, m := range all {
		if !ids[m.id] && failsOnce(m.id) {
			injected++
		}
		ids[m.id] = true
	}
	var wrong []error
	for id := range ids {
		if n := effects[id]; n != 1 {
			wrong = append(wrong, fmt.Errorf("%s has %d rows", id, n))
		}
	}
	if len(effects) != len(ids) {
		wrong = append(wrong, fmt.Errorf("%d messages have rows, and %d were published", len(effects), len(ids)))
	}
	if failures != injected {
		wrong = append(wrong, fmt.Errorf("%d failed attempts were counted, and %d were injected", failures, injected))
	}
	return errors.Join(wrong...)
}
