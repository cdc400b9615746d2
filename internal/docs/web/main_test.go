package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programVar, when it is set, makes the test binary the program itself.
const programVar = "IDEMQ_DOCS_WEB"

func TestMain(m *testing.M) {
	if os.Getenv(programVar) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestProgramOfTheReadmeAnswersTwiceAndChargesOnce(t *testing.T) {
	var log bytes.Buffer
	addr := freeAddress(t)
	cmd := exec.Command(os.Args[0], "-addr", addr)
	cmd.Env, cmd.Stderr = append(os.Environ(), programVar+"=1"), &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	for _, replayed := range []string{"", "true"} {
		res, body := post(t, "http://"+addr+"/payments", "my-key")
		require.Equal(t, http.StatusCreated, res.StatusCode)
		require.Equal(t, "paid\n", body)
		require.Equal(t, replayed, res.Header.Get("Idempotent-Replayed"))
	}
	res, _ := post(t, "http://"+addr+"/payments", "")
	require.Equal(t, http.StatusBadRequest, res.StatusCode)

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed; its log is complete now
	require.Equal(t, 1, strings.Count(log.String(), "charging ann"), log.String())
}

// freeAddress is one that nobody listens on yet.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func post(t *testing.T, url, key string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("amount=1"))
	require.NoError(t, err)
	r.SetBasicAuth("ann", "")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(body)
}
