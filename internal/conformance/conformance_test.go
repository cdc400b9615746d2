package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const table = `# Cases

| First | A | B, other |
|---|---|---|
| One | ✓ | – |
| Two | – | ✓ |

- B, other, One: it has no order

| Second | A |
|---|---|
| One | – |
| Three | ✓ |

- A, One: it is another suite
`

func TestTableThatSaysWhatWasRunIsTaken(t *testing.T) {
	require.Empty(t, compare(table, "First", "A", map[string]string{"One": ""}))
	require.Empty(t, compare(table, "First", "B, other", map[string]string{"One": "it has no order", "Two": ""}))
	require.Empty(t, compare(table, "Second", "A", map[string]string{"One": "it is another suite", "Three": ""}))
	require.Equal(t, "| Second | A |\n| One | – | it is another suite\n| Three | ✓ |", column("Second", "A", map[string]string{"Three": "", "One": "it is another suite"}))
}

func TestTableThatSaysOtherwiseIsNot(t *testing.T) {
	require.Equal(t, []string{`the table of First has no column "C"`}, compare(table, "First", "C", nil))
	require.Equal(t, []string{`the table of Second has no column "B, other"`}, compare(table, "Second", "B, other", nil))
	require.Equal(t, []string{"there is no table of Third"}, compare(table, "Third", "A", nil))
	require.Equal(t, []string{"First has no row for Three"}, compare(table, "First", "A", map[string]string{"Three": ""}))
	require.Equal(t, []string{`A, Two: the cell is "–", but the case ran and passed: make it ✓`}, compare(table, "First", "A", map[string]string{"Two": ""}))
	require.Equal(t, []string{`A, One: the cell is "✓", but the case does not apply: make it –`}, compare(table, "First", "A", map[string]string{"One": "why"}))
	require.Equal(t, []string{`there is no line "- B, other, One: another reason"`}, compare(table, "First", "B, other", map[string]string{"One": "another reason"}))
}
