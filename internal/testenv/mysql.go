package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MySQLServer is a MariaDB server of one test. It keeps its data over Kill and Start.
type MySQLServer struct {
	*Process
	Addr string // host:port, the same over restarts
	DSN  string // for go-sql-driver, of a database that a user owns who may do nothing outside it
}

// Via returns the DSN by which clients reach the server through a proxy at addr.
func (s *MySQLServer) Via(addr string) string { return mysqlDSN(addr) }

// The server reads this before it listens, each time.
const mysqlInit = "CREATE DATABASE IF NOT EXISTS " + sqlName + " CHARACTER SET utf8mb4;\n" +
	"CREATE USER IF NOT EXISTS '" + sqlName + "'@'%' IDENTIFIED BY '" + sqlName + "';\n" +
	"GRANT ALL ON " + sqlName + ".* TO '" + sqlName + "'@'%';\n"

// StartMySQL starts a MariaDB server of the test's own on a free port. args are those of its
// command line, such as "--innodb-lock-wait-timeout=1"; they outrank the defaults.
func StartMySQL(tb testing.TB, args ...string) *MySQLServer {
	tb.Helper()
	server := mariadbd(tb)
	a, port := newAccount(tb, "mysql"), mustFreePort(tb)
	data, init := filepath.Join(a.folder, "data"), filepath.Join(a.folder, "init.sql")
	a.run(tb, "", "mariadb-install-db", "--no-defaults", "--datadir="+data, "--tmpdir="+a.folder, "--skip-test-db", "--auth-root-authentication-method=socket")
	if err := os.WriteFile(init, []byte(mysqlInit), 0o644); err != nil {
		tb.Fatalf("mysql: its users: %v", err)
	}
	// The socket's name is relative to its data folder: a long one would not fit. A server that
	// starts removes the temporary tables it finds, so that no two may share a folder for them.
	command := append(a.command(server, "--no-defaults", "--datadir="+data, "--tmpdir="+a.folder, "--port="+strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--socket=socket", "--pid-file=pid", "--skip-name-resolve", "--init-file="+init, "--character-set-server=utf8mb4",
		"--default-time-zone=+00:00", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=48M"), args...)
	s := &MySQLServer{Addr: local(port), DSN: mysqlDSN(local(port))}
	s.Process = &Process{
		tb: tb, name: "mysql", command: command, folder: a.folder,
		answers: func() error { return askMySQL(s.DSN) },
		stop:    syscall.SIGTERM,
	}
	s.startFirst()
	return s
}

// mariadbd finds the server, which is on the path of root only.
func mariadbd(tb testing.TB) string {
	tb.Helper()
	if name, err := exec.LookPath("mariadbd"); err == nil {
		return name
	}
	const packaged = "/usr/sbin/mariadbd"
	if _, err := os.Stat(packaged); err != nil {
		Missing(tb, "MariaDB is not installed: scripts/services.sh start mysql")
	}
	return packaged
}

func mysqlDSN(addr string) string {
	return sqlName + ":" + sqlName + "@tcp(" + addr + ")/" + sqlName
}

// askMySQL succeeds when the server lets the user in. The driver would print each attempt that
// comes too early.
func askMySQL(dsn string) error {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	config.Logger, config.Timeout = &mysql.NopLogger{}, time.Second
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := connector.Connect(ctx)
	if err != nil {
		return err
	}
	return c.Close()
}
