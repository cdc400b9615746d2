package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
)

// eventually is long enough for a slow machine, and soon over where all is well.
const eventually = 40 * time.Second

// process is the command as a real process.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	base string // of the pages
	log  tail
	out  sync.WaitGroup

	mu      sync.Mutex
	handled []string // orders, one for each line on stdout
}

func command(t *testing.T, at servers, args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, append([]string{"--broker", at.Kind, "--store", "redis", "--serve"}, args...)...)
	kind, err := kindOf(at.Kind)
	require.NoError(t, err)
	cmd.Env = append(os.Environ(), commandVar+"=1", kind.variable+"="+strings.Join(at.Brokers, ","), redisVar.name+"="+at.Redis)
	return cmd
}

func startService(t *testing.T, at servers, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, at, append(args, "--listen", "127.0.0.1:0")...)}
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	up := make(chan string, 1)
	p.out.Go(func() { p.readLog(stderr, up) })
	p.out.Go(func() { p.readOrders(stdout) })
	select {
	case p.base = <-up:
	case <-time.After(eventually):
		t.Fatalf("the service does not come up: %s", p.log.tail())
	}
	return p
}

func (p *process) readLog(r io.Reader, up chan<- string) {
	address := regexp.MustCompile(`metrics=(http://\S+)/metrics`)
	for s := bufio.NewScanner(r); s.Scan(); {
		_, _ = p.log.Write(append(s.Bytes(), '\n'))
		if m := address.FindStringSubmatch(s.Text()); m != nil {
			up <- m[1]
		}
	}
}

func (p *process) readOrders(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		var h handled
		if err := json.Unmarshal(s.Bytes(), &h); err != nil {
			h.Order = "not JSON: " + s.Text()
		}
		p.mu.Lock()
		p.handled = append(p.handled, h.Order)
		p.mu.Unlock()
	}
}

func (p *process) orders() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.handled...)
}

// page is a page's status and text.
func (p *process) page(path string) (int, string) {
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}).Get(p.base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// sum adds up the samples of a metric whose line contains part.
func (p *process) sum(metric, part string) (n int) {
	_, text := p.page("/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, metric) && strings.Contains(line, part) {
			v, _ := strconv.Atoi(line[strings.LastIndex(line, " ")+1 : len(line)-1])
			n += v
		}
	}
	return n
}

func (p *process) await(what string, f func() bool) {
	p.t.Helper()
	require.Eventually(p.t, f, eventually, 20*time.Millisecond, "%s\n%s", what, &p.log)
}

// String is for messages of failing assertions.
func (t *tail) String() string { return t.tail() }

// terminate sends SIGTERM and waits for a good end.
func (p *process) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.awaitEnd()
}

func (p *process) awaitEnd() {
	p.t.Helper()
	p.out.Wait() // both pipes end with the process
	require.NoError(p.t, p.cmd.Wait(), "%s", &p.log)
}

// onAll runs f on the embedded servers and on the real ones of each kind.
func onAll(t *testing.T, f func(t *testing.T, at servers)) {
	t.Run("embedded", func(t *testing.T) {
		e, err := startEmbedded(servers{})
		require.NoError(t, err)
		defer func() { require.NoError(t, e.close()) }()
		f(t, e.servers)
	})
	for _, kind := range brokerKinds() {
		t.Run(kind.name, func(t *testing.T) { f(t, realServers(t, kind.name)) })
	}
}

// newTopic makes a topic with n orders.
func newTopic(t *testing.T, at servers, n int) (topic string, more func(n int)) {
	topic = fmt.Sprintf("service-%d", time.Now().UnixNano())
	more = func(n int) {
		out, err := command(t, at, "--topic", topic, "--group", topic, "--produce", strconv.Itoa(n)).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), fmt.Sprintf("%d orders are in topic %s", n, topic))
	}
	more(n)
	t.Cleanup(func() {
		b := brokerAt(t, at)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = b.remove(ctx, topic, topic)
	})
	return topic, more
}

func TestSIGTERMLetsHandlersEndAndNothingComesAgain(t *testing.T) {
	onAll(t, func(t *testing.T, at servers) {
		const n = 120
		topic, more := newTopic(t, at, n)
		args := []string{"--topic", topic, "--group", topic, "--concurrency", "128"}
		p := startService(t, at, append(args, "--work", "2s", "--drain", "10s")...)
		p.await("all handlers run", func() bool { return p.sum("idemq_running", "") == n })

		begun := time.Now()
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		p.await("it says that it drains", func() bool {
			status, why := p.page("/readyz")
			return status == http.StatusServiceUnavailable && strings.Contains(why, "not receiving")
		})
		p.awaitEnd()
		require.Less(t, time.Since(begun), 10*time.Second, "the drain timeout")
		require.Len(t, p.orders(), n, "running handlers end")
		first := p.orders()

		b := brokerAt(t, at)
		p.await("the broker knows of every acknowledgement", func() bool {
			left, err := b.left(t.Context(), topic, topic)
			return err == nil && left == 0
		})

		more(1)
		p = startService(t, at, args...)
		p.await("what was sent since is handled and acknowledged", func() bool {
			left, err := b.left(t.Context(), topic, topic)
			return err == nil && left == 0 && len(p.orders()) == 1
		})
		received := p.sum("idemq_events_total", `event="receive"`)
		again := p.sum("idemq_events_total", `cause="duplicate"`)
		p.terminate()
		seen := make(map[string]int)
		for _, id := range append(first, p.orders()...) {
			seen[id]++
		}
		require.Len(t, seen, n+1, "every order is handled")
		for id, times := range seen {
			require.Equal(t, 1, times, id)
		}
		require.Zero(t, again, "nothing that was done is delivered again")
		require.Equal(t, 1, received)
	})
}

func brokerAt(t *testing.T, at servers) broker {
	b, err := at.broker()
	require.NoError(t, err)
	t.Cleanup(b.close)
	return b
}

func TestReadyFollowsTheStore(t *testing.T) {
	e, err := startEmbedded(servers{})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.close()) }()
	topic, _ := newTopic(t, e.servers, 3)
	p := startService(t, e.servers, "--topic", topic, "--group", topic)
	ready := func() bool { status, _ := p.page("/readyz"); return status == http.StatusOK }
	p.await("ready", ready)
	p.await("all handled", func() bool { return len(p.orders()) == 3 })

	e.redis.SetError("LOADING the store is down")
	p.await("not ready, and why", func() bool {
		status, why := p.page("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(why, "the store cannot be trusted") && strings.Contains(why, "LOADING")
	})
	status, _ := p.page("/healthz")
	require.Equal(t, http.StatusOK, status, "a restart would not mend the store")
	e.redis.SetError("")
	p.await("ready again", ready)

	p.await("all verdicts are written, those of the outage, too", func() bool {
		return p.sum("idemq_events_total", `event="finish",cause="done",scope="kafka/`+topic+`"`) == 3
	})
	p.terminate()
}

func TestServiceStartsBeforeItsServers(t *testing.T) {
	at := servers{Kind: "kafka", Brokers: []string{"127.0.0.1:1"}, Redis: "127.0.0.1:1"}
	p := startService(t, at)
	status, why := p.page("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, why, "the store cannot be trusted")
	status, _ = p.page("/healthz")
	require.Equal(t, http.StatusOK, status)
	p.terminate()
}

func TestReadyAndHealthySayWhatIsWrong(t *testing.T) {
	fine := consumer.Stats{Receiving: true}
	require.Empty(t, ready(fine, nil))
	require.Empty(t, healthy(fine))
	require.Equal(t, []string{"not receiving: starting, draining or disconnected"}, ready(consumer.Stats{}, nil))
	require.Equal(t, []string{"the store cannot be trusted: no route"}, ready(fine, errors.New("no route")))
	hanging := consumer.Stats{Receiving: true, Zombies: 2}
	require.Equal(t, []string{"2 handlers do not end although their time is over"}, healthy(hanging))
	require.Equal(t, healthy(hanging), ready(hanging, nil))
}

func TestMetricsArePrometheusText(t *testing.T) {
	m := newMetrics()
	m.observe(dedup.Event{Name: "claim", Scope: `kafka/"a\b"`, Cause: "acquired", N: 3})
	m.observe(dedup.Event{Name: "claim", Scope: `kafka/"a\b"`, Cause: "acquired", N: 2})
	m.observe(dedup.Event{Name: "store", Cause: "claim", N: 5, Took: 1500 * time.Millisecond})
	var out bytes.Buffer
	m.write(&out, consumer.Stats{Running: 4, Waiting: 1, Receiving: true})
	require.Equal(t, `# HELP idemq_events_total What happened, by event and cause.
# TYPE idemq_events_total counter
idemq_events_total{event="claim",cause="acquired",scope="kafka/\"a\\b\""} 5
idemq_events_total{event="store",cause="claim",scope=""} 5
# HELP idemq_duration_seconds How long it took.
# TYPE idemq_duration_seconds summary
idemq_duration_seconds_sum{event="store",cause="claim",scope=""} 1.5
idemq_duration_seconds_count{event="store",cause="claim",scope=""} 1
# HELP idemq_running Handlers that run.
# TYPE idemq_running gauge
idemq_running 4
# HELP idemq_waiting Deliveries that are held in any other way.
# TYPE idemq_waiting gauge
idemq_waiting 1
# HELP idemq_zombies Handlers that do not end although their time is over.
# TYPE idemq_zombies gauge
idemq_zombies 0
# HELP idemq_receiving 1 while messages are received.
# TYPE idemq_receiving gauge
idemq_receiving 1
`, out.String())
}

func TestReadyFollowsTheBroker(t *testing.T) {
	e, err := startEmbedded(servers{})
	require.NoError(t, err)
	t.Cleanup(func() {
		close(e.stop)
		e.clock.Wait()
		e.redis.Close()
	})
	topic, _ := newTopic(t, e.servers, 3)
	p := startService(t, e.servers, "--topic", topic, "--group", topic)
	p.await("handled", func() bool { return len(p.orders()) == 3 })
	e.kafka.Close()
	p.await("not ready without a broker", func() bool { s, _ := p.page("/readyz"); return s == http.StatusServiceUnavailable })
}
