package testenv

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgreSQLServer is a PostgreSQL server of one test. It keeps its data over Kill and Start.
type PostgreSQLServer struct {
	*Process
	Addr string // host:port, the same over restarts
	DSN  string // for pgx, of a database that a user who is no superuser owns
}

// Via returns the DSN by which clients reach the server through a proxy at addr.
func (s *PostgreSQLServer) Via(addr string) string { return postgresDSN(addr) }

// StartPostgreSQL starts a PostgreSQL server of the test's own on a free port. settings are those
// of its configuration, such as "max_connections=5"; they outrank the defaults. Stop does not wait
// for clients to leave.
func StartPostgreSQL(tb testing.TB, settings ...string) *PostgreSQLServer {
	tb.Helper()
	bin := postgresPrograms(tb)
	a, port := newAccount(tb, "postgres"), mustFreePort(tb)
	data := filepath.Join(a.folder, "data")
	a.run(tb, "", filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8",
		"--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync")
	// The server itself makes the user and the database before it listens; it takes a line a command.
	a.run(tb, "CREATE ROLE "+sqlName+" LOGIN PASSWORD '"+sqlName+"'\nCREATE DATABASE "+sqlName+" OWNER "+sqlName+"\n",
		filepath.Join(bin, "postgres"), "--single", "-D", data, "-c", "exit_on_error=on", "postgres")
	args := []string{filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "timezone=UTC", "-c", "log_timezone=UTC"}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	s := &PostgreSQLServer{Addr: local(port), DSN: postgresDSN(local(port))}
	s.Process = &Process{
		tb: tb, name: "postgres", command: a.command(args...), folder: a.folder,
		answers: func() error { return askPostgreSQL(s.DSN) },
		stop:    syscall.SIGINT, forks: true,
	}
	s.startFirst()
	return s
}

// postgresPrograms finds the newest server. Debian keeps each version in a folder of its own, on nobody's path.
func postgresPrograms(tb testing.TB) string {
	tb.Helper()
	newest, best := "", 0
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is a good one
	for _, name := range found {
		if v, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(name)))); v > best {
			newest, best = filepath.Dir(name), v
		}
	}
	if newest == "" {
		if name, err := exec.LookPath("postgres"); err == nil {
			return filepath.Dir(name)
		}
		Missing(tb, "PostgreSQL is not installed: scripts/services.sh start postgres")
	}
	return newest
}

func postgresDSN(addr string) string {
	return "postgres://" + sqlName + ":" + sqlName + "@" + addr + "/" + sqlName + "?sslmode=disable"
}

// askPostgreSQL succeeds when the server lets the user in.
func askPostgreSQL(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return c.Close(ctx)
}
