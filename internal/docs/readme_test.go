// Package docs checks that what the documentation shows is what the code does.
package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramsOfTheReadmeAreThoseThatCompile(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, name := range []string{"quickstart", "inbox", "web"} {
		program, err := os.ReadFile(name + "/main.go")
		require.NoError(t, err)
		require.Contains(t, string(readme), "```go\n"+strings.TrimSpace(string(program))+"\n```", name)
	}
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
