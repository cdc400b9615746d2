package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const table = `# Cases

| case | A | B, other |
|---|---|---|
| One | ✓ | – |
| Two | – | ✓ |

- B, other, One: it has no order
`

func TestTableThatSaysWhatWasRunIsTaken(t *testing.T) {
	require.Empty(t, compare(table, "A", map[string]string{"One": ""}))
	require.Empty(t, compare(table, "B, other", map[string]string{"One": "it has no order", "Two": ""}))
}

func TestTableThatSaysOtherwiseIsNot(t *testing.T) {
	require.Equal(t, []string{`the table has no column "C"`}, compare(table, "C", nil))
	require.Equal(t, []string{"there is no table"}, compare("# Cases\n", "A", nil))
	require.Equal(t, []string{"there is no row for Three"}, compare(table, "A", map[string]string{"Three": ""}))
	require.Equal(t, []string{`A, Two: the cell is "–", but the case ran and passed: make it ✓`}, compare(table, "A", map[string]string{"Two": ""}))
	require.Equal(t, []string{`A, One: the cell is "✓", but the case does not apply: make it –`}, compare(table, "A", map[string]string{"One": "why"}))
	require.Equal(t, []string{`there is no line "- B, other, One: another reason"`}, compare(table, "B, other", map[string]string{"One": "another reason"}))
}
