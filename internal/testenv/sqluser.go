package testenv

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"testing"
)

// sqlName is the name of the database, of its owner, and the owner's password, on every SQL server.
const sqlName = "idemq"

// account is whom a database server runs as. Both refuse root, and then run as the user of their
// package, in a folder that is his: the test's own is closed to others.
type account struct {
	prefix []string // of a command that he is to run
	folder string
}

func newAccount(tb testing.TB, name string) account {
	tb.Helper()
	folder, err := os.MkdirTemp("", "idemq-"+name+"-")
	if err != nil {
		tb.Fatalf("%s: its folder: %v", name, err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			tb.Errorf("%s: its folder: %v", name, err)
		}
	})
	if os.Getuid() != 0 {
		return account{folder: folder}
	}
	u, err := user.Lookup(name)
	if err != nil {
		tb.Fatalf("%s: the user it runs as: %v", name, err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(folder, uid, gid); err != nil {
		tb.Fatalf("%s: its folder: %v", name, err)
	}
	// The kernel forgets whose death is to end a process when its user changes.
	prefix := []string{"setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--init-groups", "--pdeathsig", "keep"}
	return account{prefix: prefix, folder: folder}
}

func (a account) command(args ...string) []string {
	return append(append([]string(nil), a.prefix...), args...)
}

// run runs a command to its end in his folder.
func (a account) run(tb testing.TB, input string, args ...string) {
	tb.Helper()
	full := a.command(args...)
	cmd := exec.Command(full[0], full[1:]...)
	cmd.Dir = a.folder
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", args[0], err, out)
	}
}
