package imports_test

import (
	"fmt"
	"slices"
	"strings"
)

const module = "github.com/idemq/idemq"

// A file is what the rules look at: where it is and what it asks for.
type file struct {
	folder  string // of the package, from the repository's root
	name    string
	imports []string
	inits   int // functions called init
}

func (f file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// A kind is a group of packages with the same rights.
type kind struct {
	name    string
	matches func(folder string) bool
	own     []string // what it may import of this module; nil: everything
	modules func(path string) bool
	testing bool // whether it may import testing
	reason  string
}

// kinds are asked in this order; the first that matches decides.
var kinds = []kind{
	{
		name: "dedup", matches: is("dedup"), own: []string{}, modules: none,
		reason: "dedup is what everything stands on: who wants the state machine must not get a client library with it",
	},
	{
		name: "core", matches: is("consumer"), own: []string{"dedup"}, modules: none,
		reason: "consumer works with every broker and store, so it knows none of them",
	},
	{
		name: "outbox", matches: is("outbox"), own: []string{"dedup", "internal/sqldialect"}, modules: none,
		reason: "outbox works with every broker and database, so it knows none of them but their dialects",
	},
	{
		name: "conformance suite", matches: is("dedup/deduptest", "consumer/consumertest", "outbox/outboxtest"),
		own: []string{"dedup", "consumer", "outbox"}, modules: within("github.com/stretchr/testify", "pgregory.net/rapid"), testing: true,
		reason: "a conformance suite is imported by adapters of other people: it sees ports, and brings assertions only",
	},
	{
		name: "SQL dialects", matches: is("internal/sqldialect"), own: []string{}, modules: none,
		reason: "every program with a table builds it, whatever its database: it knows servers by their answers, and no driver",
	},
	{
		name: "store", matches: below("dedup"), own: []string{"dedup", "internal/sqldialect"}, modules: production,
		reason: "stores are chosen one by one: one that imports another, or a broker, drags its client into every program",
	},
	{
		name: "broker", matches: below("brokers"), own: []string{"dedup", "consumer", "outbox", "internal/sqldialect"}, modules: production,
		reason: "brokers are chosen one by one: one that imports another, or a store, drags its client into every program",
	},
	{
		name: "program or internal", matches: below("cmd", "internal"), modules: everything, testing: true,
		reason: "nothing imports these, so they may import what they like",
	},
}

// testOnly are the modules for tests, programs and internal packages: users of the library must
// not build them.
var testOnly = []string{
	"github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak",
	"github.com/testcontainers/testcontainers-go", "github.com/Shopify/toxiproxy", "github.com/moby/moby", "github.com/chromedp",
	"github.com/alicebob/miniredis", "github.com/twmb/franz-go",
	"modernc.org/sqlite", "github.com/mattn/go-sqlite3", "github.com/jackc/pgx", "github.com/lib/pq", "github.com/go-sql-driver/mysql",
}

// violations answers what is wrong with a file, each with its reason. Test files may import what
// they like: nobody who uses the library builds them.
func violations(f file) []string {
	if f.test() {
		return nil
	}
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.matches(f.folder) })
	if at < 0 {
		return []string{fmt.Sprintf("%s/%s: no rule knows this folder: say in internal/imports/rules_test.go what it may import", f.folder, f.name)}
	}
	k := kinds[at]
	var found []string
	report := func(what, reason string) {
		found = append(found, fmt.Sprintf("%s/%s: %s: %s", f.folder, f.name, what, reason))
	}
	for _, path := range f.imports {
		if why := forbidden(k, path); why != "" {
			report("imports "+path, why)
		}
	}
	if f.inits > 0 {
		report("has an init function", "importing a package must do nothing: no registry, no side effects; start things in New or Run")
	}
	return found
}

// forbidden answers why a package of this kind may not import path; "" when it may.
func forbidden(k kind, path string) string {
	switch {
	case path == "testing" || strings.HasPrefix(path, "testing/"):
		if !k.testing {
			return "a production package that imports testing brings its flags into every program"
		}
	case path == "log":
		if k.name != "program or internal" {
			return "a library does not write to the global logger: it is given a *slog.Logger"
		}
	case path == module || strings.HasPrefix(path, module+"/"):
		if k.own != nil && !slices.Contains(k.own, strings.TrimPrefix(path, module+"/")) {
			return k.reason
		}
	case standard(path) || k.modules(path):
	case within(testOnly...)(path):
		return "this module is for tests, cmd and internal: users of the library must not build it"
	default:
		return k.reason
	}
	return ""
}

// standard: the first element of a module's path has a dot, that of the standard library's none.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func none(string) bool       { return false }
func everything(string) bool { return true }
func production(path string) bool {
	return !within(testOnly...)(path)
}

func is(folders ...string) func(string) bool {
	return func(folder string) bool { return slices.Contains(folders, folder) }
}

func below(folders ...string) func(string) bool {
	return func(folder string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(folder, f+"/") })
	}
}

func within(roots ...string) func(string) bool {
	return func(path string) bool {
		return slices.ContainsFunc(roots, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
	}
}
