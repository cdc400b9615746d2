// Package conformance compares what the suites (consumertest.TestSource, outboxtest.TestPublisher and
// outboxtest.TestDB) did with an adapter with what docs/conformance.md says of it, so that the tables cannot promise
// more than was run.
package conformance

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The cells of the tables.
const (
	kept  = "✓"
	apart = "–" // with its reason below the table
)

// Column returns a function for the cases of a suite below t to report to. Once they are over, t prints them, and fails where
// the adapter's column in the suite's table says otherwise.
func Column(t *testing.T, suite, adapter string) func(name, inapplicable string) {
	t.Helper()
	file, err := os.ReadFile(path())
	if err != nil {
		t.Fatalf("conformance: %v", err)
	}
	var mu sync.Mutex
	told := map[string]string{}
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		t.Log(column(suite, adapter, told))
		for _, problem := range compare(string(file), suite, adapter, told) {
			t.Errorf("docs/conformance.md: %s", problem)
		}
	})
	return func(name, inapplicable string) {
		mu.Lock()
		defer mu.Unlock()
		told[name] = inapplicable
	}
}

// column is what was told of adapter, as the table has it.
func column(suite, adapter string, told map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |", suite, adapter)
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if told[name] == "" {
			fmt.Fprintf(&b, "\n| %s | %s |", name, kept)
		} else {
			fmt.Fprintf(&b, "\n| %s | %s | %s", name, apart, told[name])
		}
	}
	return b.String()
}

// path is that of the tables, wherever the test that asks for it runs.
func path() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "docs", "conformance.md")
}

// compare lists where the suite's table in file differs from what was told of adapter.
func compare(file, suite, adapter string, told map[string]string) (problems []string) {
	cells, err := columnOf(file, suite, adapter)
	if err != nil {
		return []string{err.Error()}
	}
	for name, reason := range told {
		cell, ok := cells[name]
		note := fmt.Sprintf("- %s, %s: %s", adapter, name, reason)
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("%s has no row for %s", suite, name))
		case reason == "" && cell != kept:
			problems = append(problems, fmt.Sprintf("%s, %s: the cell is %q, but the case ran and passed: make it %s", adapter, name, cell, kept))
		case reason != "" && cell != apart:
			problems = append(problems, fmt.Sprintf("%s, %s: the cell is %q, but the case does not apply: make it %s", adapter, name, cell, apart))
		case reason != "" && !slices.Contains(strings.Split(file, "\n"), note):
			problems = append(problems, fmt.Sprintf("there is no line %q", note))
		}
	}
	slices.Sort(problems)
	return problems
}

// columnOf is the adapter's column by row, in the table that has the suite's name above its rows.
func columnOf(file, suite, adapter string) (map[string]string, error) {
	at, cells := 0, map[string]string{}
	for line := range strings.Lines(file) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if at > 0 {
				return cells, nil
			}
			continue
		}
		row := strings.Split(strings.Trim(line, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		switch {
		case at > 0 && at < len(row):
			cells[row[0]] = row[at]
		case at == 0 && row[0] == suite:
			if at = slices.Index(row, adapter); at <= 0 {
				return nil, fmt.Errorf("the table of %s has no column %q", suite, adapter)
			}
		}
	}
	if at == 0 {
		return nil, fmt.Errorf("there is no table of %s", suite)
	}
	return cells, nil
}
