package httpdedup_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/memstore"
)

// TestTranscriptOfTheDocs sends what docs/http.md sends with curl, and requires what it shows.
func TestTranscriptOfTheDocs(t *testing.T) {
	shop, err := routes(guardOn(t, memstore.New()))
	require.NoError(t, err)
	server := httptest.NewServer(shop)
	t.Cleanup(server.Close)
	shell := &shell{server: server, variables: map[string]string{}}
	commands := 0
	for _, block := range blocks(t, "console") {
		for _, c := range strings.Split(block, "$ ")[1:] {
			command, shown, _ := strings.Cut(c, "\n")
			require.Equal(t, strings.TrimSpace(shown), strings.TrimSpace(shell.run(t, command)), command)
			commands++
		}
	}
	require.Greater(t, commands, 8)
}

func TestProgramOfTheDocsIsTheExample(t *testing.T) {
	example, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	found := blocks(t, "go")
	require.NotEmpty(t, found)
	for _, b := range found {
		require.Contains(t, string(example), strings.TrimSpace(b))
	}
}

// blocks are the fenced blocks of docs/http.md in one language.
func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/http.md")
	require.NoError(t, err)
	for _, b := range strings.Split(string(page), "```"+language+"\n")[1:] {
		text, _, ended := strings.Cut(b, "```")
		require.True(t, ended)
		found = append(found, text)
	}
	return found
}

// shell knows as much of a shell and of curl as the page uses.
type shell struct {
	server    *httptest.Server
	variables map[string]string
}

func (s *shell) run(t *testing.T, command string) string {
	t.Helper()
	name, inner, assigns := strings.Cut(command, "=$(")
	if assigns {
		s.variables[name] = strings.TrimSpace(s.curl(t, words(strings.TrimSuffix(inner, ")"))))
		return ""
	}
	w := words(command)
	for i := range w {
		for n, v := range s.variables {
			w[i] = strings.ReplaceAll(w[i], "$"+n, v)
		}
	}
	return s.curl(t, w)
}

// words splits at blanks outside of quotes.
func words(command string) (all []string) {
	var quote rune
	var word strings.Builder
	for _, c := range command + " " {
		switch {
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case c == quote:
			quote = 0
		case quote == 0 && c == ' ':
			if word.Len() > 0 {
				all = append(all, word.String())
			}
			word.Reset()
		default:
			word.WriteRune(c)
		}
	}
	return all
}

// curl returns the body, and with -i the head, without Date.
func (s *shell) curl(t *testing.T, args []string) string {
	t.Helper()
	require.Equal(t, "curl", args[0])
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL, nil)
	require.NoError(t, err)
	head := false
	for i := 1; i < len(args); i++ {
		switch args[i] {
		case "-i":
			head = true
		case "-s":
		case "-u":
			i++
			user, password, _ := strings.Cut(args[i], ":")
			r.SetBasicAuth(user, password)
		case "-H":
			i++
			name, value, _ := strings.Cut(args[i], ": ")
			r.Header.Set(name, value)
		case "-d":
			i++
			r.Method, r.ContentLength, r.Body = http.MethodPost, int64(len(args[i])), io.NopCloser(strings.NewReader(args[i]))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		default:
			path, ok := strings.CutPrefix(args[i], "http://localhost:8080")
			require.True(t, ok, args[i])
			r.URL.Path = path
		}
	}
	res, err := s.server.Client().Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if !head {
		return string(body)
	}
	var b strings.Builder
	fmt.Fprintln(&b, res.Proto, res.Status)
	res.Header.Del("Date")
	for _, n := range slices.Sorted(maps.Keys(res.Header)) {
		for _, v := range res.Header[n] {
			fmt.Fprintf(&b, "%s: %s\n", n, v)
		}
	}
	fmt.Fprintf(&b, "\n%s", body)
	return b.String()
}
