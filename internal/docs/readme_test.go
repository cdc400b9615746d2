// Package docs checks that what the documentation shows is what the code does.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramsOfTheReadmeAreThoseThatCompile(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, name := range []string{"quickstart", "inbox", "orders", "web"} {
		program, err := os.ReadFile(name + "/main.go")
		require.NoError(t, err)
		require.Contains(t, string(readme), "```go\n"+strings.TrimSpace(string(program))+"\n```", name)
	}
}

func TestPicturesOfTheDocsAreThereAndSmall(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, picture := range regexp.MustCompile(`!\[[^]]+\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			info, err := os.Stat(filepath.Join(filepath.Dir(page), picture[1]))
			require.NoError(t, err, page)
			require.Less(t, info.Size(), int64(150_000), picture[1])
			found++
		}
	}
	require.Equal(t, 3, found)
}

func TestCommandsOfTheReadmeExist(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for _, target := range []string{"test", "bench"} {
		require.Contains(t, string(readme), "make "+target)
		require.Contains(t, string(makefile), "\n"+target+":")
	}
	require.Contains(t, string(readme), "go run ./cmd/example-consumer")
	require.Contains(t, string(readme), "go run ./cmd/example-consumer shop")
	require.DirExists(t, "../../cmd/example-consumer")
}
