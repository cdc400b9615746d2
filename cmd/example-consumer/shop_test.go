package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

func TestShopCommandLine(t *testing.T) {
	none := func(string) string { return "" }
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{shopName, "--help"}, none, &out, &out))
	require.Contains(t, out.String(), "-addr")
	for want, args := range map[string][]string{
		`unexpected argument "now"; there are only flags, see shop --help`: {"now"},
		"--store redis needs a --broker beside it":                         {"--store", "redis"},
		"--broker kafka: IDEMQ_KAFKA_BROKERS is not set":                   {"--broker", "kafka", "--store", "sqlite"},
	} {
		require.ErrorContains(t, run(t.Context(), append([]string{shopName}, args...), none, &out, &out), want)
	}
	c, err := parseShop(nil, none, &out)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8080", c.addr)
	require.Equal(t, time.Hour, c.formTTL)
}

// shopProcess is the shop as a real process, on a free port.
type shopProcess struct {
	cmd *exec.Cmd
	url string
	log tail
	eof chan struct{} // stdout is closed
}

func startShop(t *testing.T, env []string, args ...string) *shopProcess {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &shopProcess{cmd: exec.Command(self, append([]string{shopName, "--addr", "127.0.0.1:0"}, args...)...), eof: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), commandVar+"=1"), env...)
	p.cmd.Stderr = &p.log
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	opened := make(chan string, 1)
	go func() {
		defer close(p.eof)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			if _, rest, ok := strings.Cut(s.Text(), "The shop is open at "); ok {
				opened <- strings.TrimSuffix(rest, "; Ctrl-C closes it.")
			}
		}
	}()
	select {
	case p.url = <-opened:
	case <-time.After(eventually):
		t.Fatalf("the shop does not open: %s", &p.log)
	}
	return p
}

// pay sends the one payment of these tests.
func (p *shopProcess) pay(t *testing.T) *http.Response {
	t.Helper()
	form := url.Values{"item": {"cups"}, "quantity": {"1"}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/payments", strings.NewReader(form.Encode()))
	require.NoError(t, err)
	r.SetBasicAuth("ann", "")
	r.Header.Set("Idempotency-Key", "key")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Close = true
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err, &p.log)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusCreated, res.StatusCode)
	return res
}

func (p *shopProcess) end(t *testing.T, with os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(with))
	<-p.eof
	require.NoError(t, p.cmd.Wait(), &p.log)
}

func TestShopOpensAndClosesOnASignal(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := startShop(t, nil)
		require.Empty(t, p.pay(t).Header.Get("Idempotent-Replayed"))
		require.Equal(t, "true", p.pay(t).Header.Get("Idempotent-Replayed"))
		p.end(t, signal)
	}
}

func TestShopOnRealServersRemembersAfterItWasOpenedAgain(t *testing.T) {
	brokers, topic := testenv.Kafka(t), "shop-"+strings.ToLower(rand.Text())
	env := []string{"IDEMQ_KAFKA_BROKERS=" + strings.Join(brokers, ","), sqliteVar.name + "=" + t.TempDir() + "/shop.db"}
	args := []string{"--broker", kafkaName, "--store", "sqlite", "--topic", topic, "--group", topic}
	kafka := newKafka(brokers)
	t.Cleanup(func() {
		_ = kafka.remove(context.Background(), topic, topic)
		kafka.close()
	})
	p := startShop(t, env, args...)
	p.pay(t)
	p.end(t, os.Interrupt)
	p = startShop(t, env, args...)
	require.Equal(t, "true", p.pay(t).Header.Get("Idempotent-Replayed"))
	p.end(t, os.Interrupt)
}
