package chaos

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/internal/mqadmin"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

const sellerEnv = "IDEMQ_CHAOS_SELLER"

// sellerSpec tells a process what to send.
type sellerSpec struct {
	Brokers                    []string
	Topic, Group, Folder, Name string
	Dialect                    sqlstore.Dialect
	DSN, Ledger, Markers       string
	Sends                      int // 0: it answers check-backs only
}

const sellersAtOnce = 8 // calls of Send in one process

// sell is one process: each send inserts a row of the ledger, one in ten fails after that. What it
// reports outlives a SIGKILL, one write a line.
func sell(raw string) error {
	var s sellerSpec
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	events, err := os.OpenFile(s.Folder+"/"+s.Name+".events", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer events.Close()
	report := func(what, id string) { fmt.Fprintf(events, "%s %s\n", what, id) }
	p, db, err := s.open()
	if err != nil {
		return err
	}
	defer db.Close()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	var wg sync.WaitGroup
	for worker := range sellersAtOnce {
		wg.Go(func() {
			for n := worker; n < s.Sends && ctx.Err() == nil; n += sellersAtOnce {
				id := fmt.Sprintf("%s-%d", s.Name, n)
				report("begin", id)
				err := p.Send(ctx, outbox.Message{ID: id, Topic: s.Topic, Body: []byte(id)}, func(ctx context.Context, tx *sql.Tx) error {
					if _, err := tx.ExecContext(ctx, "INSERT INTO "+s.Ledger+" (id) VALUES ('"+id+"')"); err != nil {
						return err
					}
					report("in", id)
					defer report("out", id)
					<-time.After(rand.N(20 * time.Millisecond)) // the rest of the work
					if n%10 == 9 {
						return errInjected
					}
					return nil
				})
				switch {
				case err == nil:
					report("done", id)
				case errors.Is(err, errInjected), errors.Is(err, rocketmq.ErrRolledBack):
					report("undone", id)
				default:
					report("failed", id)
					fmt.Fprintln(os.Stderr, id, err)
				}
			}
		})
	}
	wg.Wait()
	return <-ended
}

func (s *sellerSpec) open() (*rocketmq.TransactionProducer, *sql.DB, error) {
	driver := map[sqlstore.Dialect]string{sqlstore.PostgreSQL: "pgx", sqlstore.MySQL: "mysql"}[s.Dialect]
	db, err := sql.Open(driver, s.DSN)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxIdleConns(2 * sellersAtOnce)
	p, err := rocketmq.NewTransactionProducer(rocketmq.Cluster{NameServers: s.Brokers}, s.Group, db, s.Dialect,
		&rocketmq.TransactionOptions{Table: s.Markers, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	return p, db, err
}

// sellers are two processes of one producer group, so that each may be asked about what the other left.
type sellers struct {
	t      *testing.T
	spec   sellerSpec
	db     *sql.DB
	ps     [2]*process
	names  []string // of all incarnations
	source *rocketmq.Source
	seen   map[string]int // how often each message became visible
	mu     sync.Mutex
}

func newSellers(t *testing.T, d sqlstore.Dialect, dsn string) *sellers {
	name := fmt.Sprintf("chaos-tx-%d", time.Now().UnixNano())
	suffix := strings.ReplaceAll(name, "-", "_")
	s := &sellers{t: t, seen: make(map[string]int), spec: sellerSpec{
		Brokers: testenv.RocketMQ(t), Topic: name, Group: name, Folder: t.TempDir(), Dialect: d, DSN: dsn,
		Ledger: "ledger_" + suffix, Markers: "markers_" + suffix,
	}}
	admin := mqadmin.Cluster(s.spec.Brokers)
	require.NoError(t, admin.Create(t.Context(), name, 4))
	p, db, err := s.spec.open()
	require.NoError(t, err)
	s.db = db
	require.NoError(t, p.Migrate(t.Context()))
	_, err = db.Exec("CREATE TABLE " + s.spec.Ledger + " (id varchar(64) NOT NULL PRIMARY KEY)")
	require.NoError(t, err)
	s.source, err = rocketmq.NewSource(rocketmq.Cluster{NameServers: s.spec.Brokers}, name, []string{name}, &rocketmq.SourceOptions{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() {
		for i := range s.ps {
			if s.ps[i] != nil {
				_ = s.ps[i].cmd.Process.Kill()
				s.wait(i)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.source.Close(ctx)
		_ = admin.Delete(ctx, name, name+"-retry")
		_ = admin.DeleteGroups(ctx, name)
		_, _ = db.Exec("DROP TABLE " + s.spec.Ledger)
		_, _ = db.Exec("DROP TABLE " + s.spec.Markers)
		_, _ = db.Exec("DELETE FROM idemq_schema WHERE name = '" + s.spec.Markers + "'")
		_ = db.Close()
	})
	return s
}

func (s *sellers) start(i, sends int) {
	spec := s.spec
	spec.Name, spec.Sends = fmt.Sprintf("s%d", len(s.names)), sends
	s.names = append(s.names, spec.Name)
	raw, err := json.Marshal(spec)
	require.NoError(s.t, err)
	p := &process{name: spec.Name, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), sellerEnv+"="+string(raw))
	p.log, err = os.Create(spec.Folder + "/" + spec.Name + ".log")
	require.NoError(s.t, err)
	p.cmd.Stderr = p.log
	require.NoError(s.t, p.cmd.Start())
	s.ps[i] = p
}

func (s *sellers) wait(i int) {
	_ = s.ps[i].cmd.Wait()
	s.ps[i].log.Close()
	s.ps[i] = nil
}

// kill kills a process at a random instant of its work, and begins another one in its place.
func (s *sellers) kill(i, sends, after int) {
	p := s.ps[i]
	begun := func() int { return bytes.Count(s.events(p.name), []byte("begin ")) }
	require.Eventually(s.t, func() bool { return begun() >= after }, 2*time.Minute, 5*time.Millisecond, "%s does nothing", p.name)
	<-time.After(rand.N(100 * time.Millisecond))
	require.NoError(s.t, p.cmd.Process.Signal(syscall.SIGKILL))
	s.wait(i)
	s.start(i, sends)
}

func (s *sellers) events(name string) []byte {
	b, err := os.ReadFile(s.spec.Folder + "/" + name + ".events")
	if !os.IsNotExist(err) {
		require.NoError(s.t, err)
	}
	return b
}

// states is the last thing that was said of each send.
func (s *sellers) states() map[string]string {
	last := make(map[string]string)
	for _, name := range s.names {
		for line := range strings.Lines(string(s.events(name))) {
			if f := strings.Fields(line); len(f) == 2 {
				last[f[1]] = f[0]
			}
		}
	}
	return last
}

// watch takes note of what becomes visible, until ctx ends.
func (s *sellers) watch(ctx context.Context) {
	for ctx.Err() == nil {
		ds, err := s.source.Receive(ctx, 100)
		if err != nil {
			continue
		}
		s.mu.Lock()
		for _, d := range ds {
			s.seen[d.Headers[rocketmq.IDHeader]]++
		}
		s.mu.Unlock()
		for _, d := range ds {
			_ = d.Ack(ctx)
		}
	}
}

func (s *sellers) ledger() map[string]bool {
	rows, err := s.db.Query("SELECT id FROM " + s.spec.Ledger)
	require.NoError(s.t, err)
	defer rows.Close()
	ids := make(map[string]bool)
	for rows.Next() {
		var id string
		require.NoError(s.t, rows.Scan(&id))
		ids[id] = true
	}
	require.NoError(s.t, rows.Err())
	return ids
}

// differences of what is visible from what is committed.
func (s *sellers) differences() (lost, ghosts []string) {
	committed := s.ledger()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range committed {
		if s.seen[id] == 0 {
			lost = append(lost, id)
		}
	}
	for id := range s.seen {
		if !committed[id] {
			ghosts = append(ghosts, id)
		}
	}
	return lost, ghosts
}

// askedOnce is longer than the shared broker waits until it has asked about a half message, and until
// it takes note of the answer.
const askedOnce = 15 * time.Second

// TestTransactionsAreVisibleIfCommittedWhateverIsKilled: whenever processes die, the messages that can be
// seen are those whose rows are committed.
func TestTransactionsAreVisibleIfCommittedWhateverIsKilled(t *testing.T) {
	for _, k := range []struct {
		dialect sqlstore.Dialect
		dsn     func(testing.TB) string
	}{{sqlstore.PostgreSQL, testenv.PostgreSQL}, {sqlstore.MySQL, testenv.MySQL}} {
		t.Run(string(k.dialect), func(t *testing.T) {
			t.Parallel()
			a := pick(amount{messages: 240, harms: 8}, amount{messages: 2000, harms: 50})
			s := newSellers(t, k.dialect, k.dsn(t))
			ctx, stop := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() { s.watch(ctx) })
			defer watching.Wait()
			defer stop()
			each := a.messages / a.harms
			for i := range s.ps {
				s.start(i, 1_000_000)
			}
			for n := range a.harms {
				s.kill(n%2, 1_000_000, each)
			}
			for i := range s.ps { // these die, too, and leave their work to one that sends nothing
				s.kill(i, 0, each)
			}
			begun := time.Now()
			require.Eventually(t, func() bool { lost, _ := s.differences(); return len(lost) == 0 }, 2*time.Minute, 200*time.Millisecond, "committed messages are not visible")
			<-time.After(askedOnce - time.Since(begun))
			s.check(a)
		})
	}
}

func (s *sellers) check(a amount) {
	lost, ghosts := s.differences()
	require.Empty(s.t, lost, "committed, and not visible")
	require.Empty(s.t, ghosts, "visible, and not committed")
	committed, cut := s.ledger(), make(map[string]int)
	states := s.states()
	for id, last := range states {
		switch last {
		case "done":
			require.True(s.t, committed[id], "%s was said to be committed", id)
		case "undone":
			require.False(s.t, committed[id], "%s was said to be rolled back", id)
		case "failed":
			require.Fail(s.t, "a send failed without a fault of its own", id)
		default:
			cut[last]++
		}
	}
	copies := 0
	for _, n := range s.seen {
		copies += n - 1
	}
	var buried, unconfirmed int
	require.NoError(s.t, s.db.QueryRow("SELECT COALESCE(SUM(CASE state WHEN 3 THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE state WHEN 1 THEN 1 ELSE 0 END), 0) FROM "+s.spec.Markers).Scan(&buried, &unconfirmed))
	require.GreaterOrEqual(s.t, len(states), a.messages)
	require.NotZero(s.t, cut["in"]+cut["out"], "no kill hit a transaction")
	s.t.Logf("%d sends, %d kills -9: %d rows committed, %d distinct IDs visible, none lost, none without its row, %d copies; "+
		"sends cut off before their transaction %d, in it %d, at or after its commit %d; %d tombstones; %d markers visible and not yet confirmed",
		len(states), a.harms+len(s.ps), len(committed), len(s.seen), copies, cut["begin"], cut["in"], cut["out"], buried, unconfirmed)
}
