package deduptest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	thisPackage = "github.com/idemq/idemq/dedup/deduptest"
	sources     = ".." // package dedup, with the stores below it
)

// overlay is what the go tool reads in place of, or beside, the files that are there: the sources
// themselves are never touched, and nothing of a mutant is ever part of a package.
type overlay map[string]string

// add puts text at path, which is seen by the go tool only.
func (o overlay) add(t *testing.T, path string, text string) {
	t.Helper()
	f := filepath.Join(t.TempDir(), filepath.Base(path))
	require.NoError(t, os.WriteFile(f, []byte(text), 0o600))
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	o[path] = f
}

// goTest runs the tests of the package in dir that match run, and returns what they print.
func (o overlay) goTest(t *testing.T, dir, run string, args ...string) (string, error) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"Replace": o})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	args = append([]string{"test", "-overlay", file, "-vet=off", "-count=1", "-run", run, "-v", ".", "-args"}, args...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// readSources reads what a package in dir is made of, by its path below dir. What a package of its own
// exports to its tests is part of it, under a name that is no test's.
func readSources(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, pattern := range []string{"*.go", "lua/*.lua"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		for _, name := range names {
			below, err := filepath.Rel(dir, name)
			require.NoError(t, err)
			if below == "export_test.go" {
				below = "export.go"
			}
			if strings.HasSuffix(below, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			files[below] = string(text)
		}
	}
	return files
}

// patch returns files with the edits of m made, each of which must fit in exactly one place.
func patch(t *testing.T, files map[string]string, m mutant) map[string]string {
	t.Helper()
	patched := map[string]string{}
	for name, text := range files {
		patched[name] = text
	}
	for _, e := range m.edits {
		at, found := "", 0
		for name, text := range patched {
			if n := strings.Count(text, e.old); n > 0 {
				at, found = name, found+n
			}
		}
		require.Equal(t, 1, found, "%s, %q: how many places there are for the edit of\n%s", m.rule, m.what, e.old)
		patched[at] = strings.Replace(patched[at], e.old, e.new, 1)
	}
	return patched
}

// suspect is a copy of a store's package, patched or not, and what was found about it.
type suspect struct {
	name, open string // of its package; the function that opens it, with one verb for the package
	found      verdict
}

// examine builds the suspects of all stores into one test binary and has them examined.
func examine(t *testing.T, all []*suspect, files []map[string]string) {
	t.Helper()
	o := overlay{}
	imports, calls := &strings.Builder{}, &strings.Builder{}
	for i, s := range all {
		for name, text := range files[i] {
			o.add(t, filepath.Join("mutants", s.name, name), text)
		}
		fmt.Fprintf(imports, "\t%s %q\n", s.name, thisPackage+"/mutants/"+s.name)
		fmt.Fprintf(calls, "\tt.Run(%q, func(t *testing.T) { %s })\n", s.name, strings.ReplaceAll(s.open, "PACKAGE", s.name))
	}
	o.add(t, "examine_mutants_test.go", fmt.Sprintf(
		"package deduptest\n\nimport (\n\t\"testing\"\n\n\t\"github.com/idemq/idemq/dedup\"\n\t\"github.com/redis/go-redis/v9\"\n%s)\n\nfunc TestExamineMutants(t *testing.T) {\n%s}\n",
		imports, calls))
	out, err := o.goTest(t, ".", "^TestExamineMutants$", "-rapid.nofailfile", "-rapid.checks=1000", "-rapid.seed=1")
	require.NoError(t, err, out)
	found := map[string]verdict{}
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, verdictMark); ok {
			var v verdict
			require.NoError(t, json.Unmarshal([]byte(text), &v), line)
			found[v.Name] = v
		}
	}
	for _, s := range all {
		require.Contains(t, found, s.name, out)
		s.found = found[s.name]
	}
}
