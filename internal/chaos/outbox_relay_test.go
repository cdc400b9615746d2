package chaos

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/outbox"
)

const relayEnv = "IDEMQ_CHAOS_RELAY"

// relaySpec tells a relay process what to do.
type relaySpec struct {
	childSpec        // Broker, Brokers, Name, Lease, Dialect, DSN
	Table     string // of the outbox
	Stops     bool   // the killer does not kill the relay: it stops it
}

type closingPublisher interface {
	outbox.Publisher
	io.Closer
}

func (s *childSpec) publisher() (closingPublisher, error) {
	switch s.Broker {
	case "kafka":
		return kafka.NewPublisher(kafka.Cluster{Brokers: s.Brokers}, nil)
	case "rabbitmq":
		return rabbitmq.NewPublisher(rabbitmq.Cluster{URLs: s.Brokers}, nil)
	default:
		return rocketmq.NewPublisher(rocketmq.Cluster{NameServers: s.Brokers}, nil)
	}
}

func (s *relaySpec) open() (*sql.DB, *outbox.Outbox, error) {
	db, err := sql.Open(map[outbox.Dialect]string{outbox.PostgreSQL: "pgx", outbox.MySQL: "mysql"}[s.Dialect], s.DSN)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxIdleConns(10)
	o, err := outbox.New(db, s.Dialect, &outbox.Options{Table: s.Table})
	return db, o, err
}

// relayProcess is one relay.
func relayProcess(raw string) error {
	var s relaySpec
	if err := json.Unmarshal([]byte(raw), &s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	report, err := s.reports()
	if err != nil {
		return err
	}
	db, o, err := s.open()
	if err != nil {
		return err
	}
	defer db.Close()
	p, err := s.publisher()
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(o, &dying{p, &s, report}, &outbox.RelayOptions{
		Lease: s.Lease, Name: s.Name, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Observe: func(e dedup.Event) { report(e.Cause, "messages", uint64(e.N)) },
	})
	if err != nil {
		return err
	}
	return errors.Join(r.Run(ctx), p.Close())
}

// dying kills or stops the process when the broker has taken the killer: the relay has the broker's word
// then, and has written nothing back.
type dying struct {
	outbox.Publisher
	spec   *relaySpec
	report func(kind, id string, epoch uint64)
}

func (d *dying) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	err := d.Publisher.Publish(ctx, ms, errs)
	for i := range ms {
		if err != nil || errs[i] != nil || ms[i].ID != d.spec.Killer {
			continue
		}
		harm, goesOn := syscall.SIGKILL, make(chan os.Signal, 1)
		if d.spec.Stops {
			harm = syscall.SIGSTOP
		}
		signal.Notify(goesOn, syscall.SIGCONT)
		d.report("dying", "messages", uint64(len(ms)))
		if err := syscall.Kill(os.Getpid(), harm); err != nil {
			return err
		}
		<-goesOn // a signal may reach this thread after the others
		signal.Stop(goesOn)
	}
	return err
}

// relays are the relay processes of one run.
type relays struct {
	*testing.T
	spec    relaySpec
	started int
	all     []*exec.Cmd
	names   []string
}

func newRelays(t *testing.T, spec relaySpec, n int) relays {
	return relays{T: t, spec: spec, all: make([]*exec.Cmd, n), names: make([]string, n)}
}

func (r *relays) start(i int) {
	r.started++
	spec := r.spec
	spec.Name = fmt.Sprintf("relay-%d", r.started)
	raw, err := json.Marshal(spec)
	require.NoError(r, err)
	log, err := os.Create(spec.Folder + "/" + spec.Name + ".log")
	require.NoError(r, err)
	defer log.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayEnv+"="+string(raw))
	cmd.Stderr = log
	require.NoError(r, cmd.Start())
	r.all[i], r.names[i] = cmd, spec.Name
	r.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if text, err := os.ReadFile(log.Name()); err == nil && r.Failed() {
			r.Logf("%s:\n%s", spec.Name, text[max(0, len(text)-2000):])
		}
	})
}

func (r *relays) kill(i int) {
	require.NoError(r, r.all[i].Process.Kill())
	_ = r.all[i].Wait()
	status := r.all[i].ProcessState.Sys().(syscall.WaitStatus)
	require.Equal(r, syscall.SIGKILL, status.Signal(), "it had ended by itself")
}

// freeze stops a relay until its shards are somebody else's.
func (r *relays) freeze(i int) {
	require.NoError(r, r.all[i].Process.Signal(syscall.SIGSTOP))
	<-time.After(r.spec.Lease * 3 / 2)
	require.NoError(r, r.all[i].Process.Signal(syscall.SIGCONT))
}

// await returns once the relays that were started last are at work: before that a signal to end would kill them.
func (r *relays) await(db *sql.DB) {
	require.Eventually(r, func() bool {
		n := 0
		require.NoError(r, db.QueryRow(fmt.Sprintf("SELECT count(*) FROM %s_relays WHERE name IN ('%s')", r.spec.Table, strings.Join(r.names, "', '"))).Scan(&n))
		return n == len(r.names)
	}, 30*time.Second, 20*time.Millisecond, "a relay does not begin")
}

func (r *relays) end() {
	for _, cmd := range r.all {
		require.NoError(r, cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, cmd := range r.all {
		require.NoError(r, cmd.Wait())
	}
}
