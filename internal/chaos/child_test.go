package chaos

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
)

const childEnv = "IDEMQ_CHAOS_CHILD"

func TestMain(m *testing.M) {
	if spec := os.Getenv(sellerEnv); spec != "" {
		if err := sell(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if spec := os.Getenv(relayEnv); spec != "" {
		if err := relayProcess(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// childSpec tells a consumer process what to do.
type childSpec struct {
	Broker                           string // its kind
	Brokers                          []string
	Redis, Topic, Group, App, Folder string
	Name                             string // of the incarnation
	Killer                           string // the message that kills the process: in its handler, or a relay when the broker has it
	Work                             time.Duration
	Lease, Session                   time.Duration

	Dialect     sqlstore.Dialect // of the database with the effects and their verdicts; empty: no transactions
	DSN, Ledger string           // of that; the table of effects
	Tier        bool             // Redis in front of it
	Outbox      string           // its outbox, where each effect writes a message to Next; empty: none does
	Next        string
}

// failsOnce says for which messages the first attempt fails, before its effect.
func failsOnce(id string) bool {
	h := fnv.New32a()
	h.Write([]byte(id))
	return h.Sum32()%20 == 0
}

// reports opens the process's own file of events, one write a line, so that what it has said outlives a
// SIGKILL. The file ends with the process; it is there once the process can be told to end.
func (s *childSpec) reports() (report func(kind, id string, epoch uint64), err error) {
	log, err := os.OpenFile(s.Folder+"/"+s.Name+".events", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return func(kind, id string, epoch uint64) {
		fmt.Fprintf(log, "%s %s %d %d\n", kind, id, epoch, time.Now().UnixNano())
	}, err
}

// child is one consumer process.
func child(raw string) error {
	var s childSpec
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	report, err := s.reports()
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if s.DSN != "" {
		return childInTx(ctx, &s, report, logger)
	}
	db, err := openFence(s.Folder)
	if err != nil {
		return err
	}
	defer db.Close()
	rdb := redis.NewClient(&redis.Options{Addr: s.Redis})
	defer rdb.Close()
	store := &verdicts{Store: redisstore.New(rdb, nil), report: report, patience: s.Lease / 4}
	go store.watch()
	guard, err := dedup.New(s.App, store, &dedup.Options{Lease: s.Lease, Logger: logger})
	if err != nil {
		return err
	}
	k := kindOf(s.Broker)
	source, err := k.open(&s, logger)
	if err != nil {
		return err
	}
	c, err := consumer.New(source, guard, func(ctx context.Context, m *consumer.Message) error {
		report("run", m.ID, m.Epoch)
		if m.ID == s.Killer {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		select { // the work
		case <-time.After(s.Work):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if m.Attempt == 1 && failsOnce(m.ID) {
			return errors.New("not at the first attempt")
		}
		report("effect", m.ID, m.Epoch)
		return fencedWrite(ctx, db, m)
	}, &consumer.Options{Policy: consumer.Policy{Backoff: []time.Duration{k.backoff}}})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// verdicts reports what the store has taken as done, under the store's key, and when it or the
// process stood still for longer than leases bear.
type verdicts struct {
	dedup.Store
	report   func(kind, id string, epoch uint64)
	patience time.Duration
}

func (v *verdicts) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	defer v.stood(time.Now())
	err := v.Store.Finish(ctx, in, out)
	for i := range in {
		if err == nil && in[i].State == dedup.Done && (out[i] == nil || errors.Is(out[i], dedup.ErrRecordLost)) {
			v.report("done", keyText(in[i].Key), in[i].Epoch)
		}
	}
	return err
}

func (v *verdicts) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	defer v.stood(time.Now())
	return v.Store.Extend(ctx, in, out)
}

// watch sees the process stand still until it ends.
func (v *verdicts) watch() {
	begun := time.Now()
	for range time.Tick(v.patience / 10) {
		v.stood(begun)
		begun = time.Now()
	}
}

// stood reports, with its length in ns for an epoch, what took too long.
func (v *verdicts) stood(begun time.Time) {
	if took := time.Since(begun); took > v.patience {
		v.report("stall", "-", uint64(took))
	}
}

func keyText(k dedup.Key) string { return fmt.Sprintf("%x", k[:8]) }

func openFence(folder string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", folder+"/fence.db?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(2)
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS fence (id TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
		CREATE TABLE IF NOT EXISTS writes (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, epoch INTEGER NOT NULL)`)
	return db, err
}

// fencedWrite is the effect as a business database can protect it: an older epoch changes nothing.
func fencedWrite(ctx context.Context, db *sql.DB, m *consumer.Message) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	r, err := tx.ExecContext(ctx, `INSERT INTO fence (id, epoch) VALUES (?, ?)
		ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch > fence.epoch`, m.ID, int64(m.Epoch))
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errors.New("fenced off"))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO writes (id, epoch) VALUES (?, ?)`, m.ID, int64(m.Epoch)); err != nil {
		return err
	}
	return tx.Commit()
}
