package imports_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	files := read(t, "../..")
	folders := map[string]bool{}
	var found []string
	for _, f := range files {
		folders[f.folder] = true
		found = append(found, violations(f)...)
	}
	for _, folder := range []string{"dedup", "dedup/redisstore", "consumer", "brokers/kafka", "cmd/example-consumer", "internal/testenv"} {
		require.True(t, folders[folder], "the test has not seen %s", folder)
	}
	require.Empty(t, found, strings.Join(found, "\n"))
}

func TestEachRuleCatchesItsViolation(t *testing.T) {
	for name, c := range map[string]struct {
		folder, path string
		reason       string
	}{
		"dedup is std only":                   {"dedup", "github.com/redis/go-redis/v9", "everything stands on"},
		"dedup imports no package of ours":    {"dedup", module + "/consumer", "everything stands on"},
		"consumer knows no store":             {"consumer", module + "/dedup/memstore", "none of them"},
		"outbox knows no broker":              {"outbox", "github.com/segmentio/kafka-go", "none of them"},
		"consumer and outbox are apart":       {"consumer", module + "/outbox", "none of them"},
		"stores do not import each other":     {"dedup/tierstore", module + "/dedup/redisstore", "one by one"},
		"stores do not import the consumer":   {"dedup/redisstore", module + "/consumer", "one by one"},
		"brokers do not import each other":    {"brokers/kafka", module + "/brokers/rabbitmq", "one by one"},
		"brokers do not import stores":        {"brokers/kafka", module + "/dedup/memstore", "one by one"},
		"libraries do not import internal":    {"brokers/kafka", module + "/internal/testenv", "one by one"},
		"suites see ports only":               {"dedup/deduptest", module + "/dedup/memstore", "sees ports"},
		"suites bring assertions only":        {"consumer/consumertest", "github.com/twmb/franz-go/pkg/kfake", "must not build"},
		"kfake is for tests":                  {"brokers/kafka", "github.com/twmb/franz-go/pkg/kfake", "must not build"},
		"miniredis is for tests":              {"dedup/redisstore", "github.com/alicebob/miniredis/v2", "must not build"},
		"testcontainers is for tests":         {"brokers/kafka", "github.com/testcontainers/testcontainers-go", "must not build"},
		"toxiproxy is for tests":              {"brokers/kafka", "github.com/Shopify/toxiproxy/v2", "must not build"},
		"SQL drivers are the user's choice":   {"dedup/sqlstore", "modernc.org/sqlite", "must not build"},
		"so they are below the stores":        {"internal/sqldialect", "github.com/jackc/pgx/v5", "must not build"},
		"dialects know nothing above them":    {"internal/sqldialect", module + "/dedup", "no driver"},
		"the browser is for tests":            {"dedup/httpdedup", "github.com/chromedp/chromedp", "must not build"},
		"testify is for tests":                {"dedup/redisstore", "github.com/stretchr/testify/require", "must not build"},
		"testing is for tests":                {"consumer", "testing", "flags"},
		"so is what lies below testing":       {"brokers/kafka", "testing/iotest", "flags"},
		"libraries leave the global log":      {"consumer", "log", "slog"},
		"a new folder needs a rule":           {"helpers", "fmt", "no rule knows"},
		"the root holds no package":           {".", "fmt", "no rule knows"},
		"a name that only starts like dedup":  {"dedupe", "fmt", "no rule knows"},
		"a module that only starts like ours": {"dedup", module + "x/dedup", "everything stands on"},
	} {
		t.Run(name, func(t *testing.T) {
			found := violations(file{folder: c.folder, name: "a.go", imports: []string{c.path}})
			require.Len(t, found, 1)
			require.Contains(t, found[0], c.reason)
			require.Empty(t, violations(file{folder: c.folder, name: "a_test.go", imports: []string{c.path}}), "tests may")
		})
	}
}

func TestWhatIsAllowedIsNotReported(t *testing.T) {
	for folder, paths := range map[string][]string{
		"dedup":                 {"context", "log/slog", "crypto/sha256"},
		"consumer":              {"context", module + "/dedup"},
		"outbox":                {"database/sql", module + "/dedup", module + "/internal/sqldialect"},
		"dedup/sqlstore":        {"database/sql", module + "/dedup", module + "/internal/sqldialect"},
		"dedup/redisstore":      {"embed", module + "/dedup", "github.com/redis/go-redis/v9"},
		"brokers/kafka":         {module + "/dedup", module + "/consumer", module + "/outbox", "github.com/segmentio/kafka-go/protocol/fetch"},
		"dedup/deduptest":       {"testing", module + "/dedup", "github.com/stretchr/testify/require", "pgregory.net/rapid"},
		"consumer/consumertest": {"testing", module + "/dedup", module + "/consumer", "github.com/stretchr/testify/require"},
		"cmd/example-consumer":  {"log", module + "/brokers/kafka", module + "/dedup/memstore", "github.com/alicebob/miniredis/v2"},
		"internal/testenv":      {"testing", "github.com/Shopify/toxiproxy/v2", "github.com/testcontainers/testcontainers-go"},
	} {
		require.Empty(t, violations(file{folder: folder, name: "a.go", imports: paths}), folder)
	}
}

func TestInitFunctionIsCaught(t *testing.T) {
	root := t.TempDir()
	write(t, root, "dedup/a.go", "package dedup\n\nimport (\n\t_ \"embed\"\n)\n\nfunc init() {}\n")
	write(t, root, "consumer/a.go", "package consumer\n\ntype T struct{}\n\nfunc (T) init() {}\n")
	write(t, root, "bench/go.mod", "module bench\n")
	write(t, root, "bench/a.go", "package bench\n\nfunc init() {}\n")
	files := read(t, root)
	require.Len(t, files, 2, "a folder with a go.mod is another module")
	var found []string
	for _, f := range files {
		found = append(found, violations(f)...)
	}
	require.Len(t, found, 1, "a method called init is none")
	require.Contains(t, found[0], "dedup/a.go: has an init function")
}

// read parses every Go file of the module below root.
func read(t *testing.T, root string) []file {
	t.Helper()
	var files []file
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(root, path, d.Name())
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		f, err := parse(root, path)
		files = append(files, f)
		return err
	}))
	return files
}

func skip(root, path, name string) error {
	if path == root {
		return nil
	}
	if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || name == "testdata" || strings.HasPrefix(name, ".") {
		return filepath.SkipDir
	}
	return nil
}

func parse(root, path string) (file, error) {
	folder, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return file{}, err
	}
	f := file{folder: filepath.ToSlash(folder), name: filepath.Base(path)}
	tree, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return f, err
	}
	for _, i := range tree.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return f, err
		}
		f.imports = append(f.imports, imported)
	}
	for _, d := range tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			f.inits++
		}
	}
	return f, nil
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
