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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/outbox"
)

const relayEnv = "IDEMQ_CHAOS_RELAY"

// relaySpec tells a relay process what to do.
type relaySpec struct {
	childSpec        // Broker, Brokers, Name, Lease, Dialect, DSN
	Table     string // of the outbox
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
	db, o, err := s.open()
	if err != nil {
		return err
	}
	defer db.Close()
	p, err := s.publisher()
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(o, p, &outbox.RelayOptions{Lease: s.Lease, Name: s.Name, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	return errors.Join(r.Run(ctx), p.Close())
}

// relays are the relay processes of one run.
type relays struct {
	*testing.T
	spec    relaySpec
	started int
	all     [4]*exec.Cmd
	names   [4]string
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

func (r *relays) end() {
	for _, cmd := range r.all {
		require.NoError(r, cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, cmd := range r.all {
		require.NoError(r, cmd.Wait())
	}
}
