// Package conformance compares what consumertest.TestSource did with an adapter with what
// docs/conformance.md says of it, so that the table cannot promise more than was run.
package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The cells of the table.
const (
	kept  = "✓"
	apart = "–" // with its reason below the table
)

// Column returns a consumertest.Config.Report for the tests below t. Once they are over, t fails where
// the table's column of that adapter says otherwise.
func Column(t *testing.T, adapter string) func(name, inapplicable string) {
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
		for _, problem := range compare(string(file), adapter, told) {
			t.Errorf("docs/conformance.md: %s", problem)
		}
	})
	return func(name, inapplicable string) {
		mu.Lock()
		defer mu.Unlock()
		told[name] = inapplicable
	}
}

// path is that of the table, wherever the test that asks for it runs.
func path() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "docs", "conformance.md")
}

// compare lists where the table in file differs from what was told of adapter.
func compare(file, adapter string, told map[string]string) (problems []string) {
	cells, err := columnOf(file, adapter)
	if err != nil {
		return []string{err.Error()}
	}
	for name, reason := range told {
		cell, ok := cells[name]
		note := fmt.Sprintf("- %s, %s: %s", adapter, name, reason)
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("there is no row for %s", name))
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

// columnOf is the adapter's column by row.
func columnOf(file, adapter string) (map[string]string, error) {
	at, cells := 0, map[string]string{}
	for line := range strings.Lines(file) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		row := strings.Split(strings.Trim(line, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if at == 0 {
			if at = slices.Index(row, adapter); at <= 0 {
				return nil, fmt.Errorf("the table has no column %q", adapter)
			}
			continue
		}
		if at < len(row) {
			cells[row[0]] = row[at]
		}
	}
	if at == 0 {
		return nil, fmt.Errorf("there is no table")
	}
	return cells, nil
}
