package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

// cluster is three consumer processes in one group, and what was done to them.
type cluster struct {
	t      *testing.T
	spec   childSpec
	client *kafka.Client

	partitions int
	ps         [3]*process
	started    int
	ended      []*process
}

// process is one incarnation of a consumer.
type process struct {
	name            string
	cmd             *exec.Cmd
	log             *os.File
	killed          time.Time // zero: it was not
	stopped, resume time.Time
}

const (
	topicPartitions = 12
	timeouts        = 2 * time.Second // lease, session and rebalance
)

func newCluster(t *testing.T, partitions int) *cluster {
	name := fmt.Sprintf("chaos-%d", time.Now().UnixNano())
	c := &cluster{t: t, partitions: partitions, client: &kafka.Client{Addr: kafka.TCP(testenv.Kafka(t)...)}, spec: childSpec{
		Brokers: testenv.Kafka(t), Redis: testenv.Redis(t), Topic: name, Group: name, App: name, Folder: t.TempDir(),
		Lease: timeouts, Session: timeouts,
	}}
	_, err := c.client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, p := range c.ps {
			if p != nil {
				_ = p.cmd.Process.Kill()
				_ = p.cmd.Wait()
				p.log.Close()
			}
		}
		_, _ = c.client.DeleteTopics(context.Background(), &kafka.DeleteTopicsRequest{Topics: []string{name, name + ".dlt"}})
	})
	return c
}

// start begins a new incarnation in place i.
func (c *cluster) start(i int) {
	c.started++
	spec := c.spec
	spec.Name = fmt.Sprintf("p%d-%d", i, c.started)
	raw, err := json.Marshal(spec)
	require.NoError(c.t, err)
	p := &process{name: spec.Name, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(raw))
	p.log, err = os.Create(spec.Folder + "/" + spec.Name + ".log")
	require.NoError(c.t, err)
	p.cmd.Stderr = p.log
	require.NoError(c.t, p.cmd.Start())
	c.ps[i] = p
}

// kill sends SIGKILL and takes note of when.
func (c *cluster) kill(i int) {
	p := c.ps[i]
	p.killed = time.Now()
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGKILL))
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.Equal(c.t, syscall.SIGKILL, status.Signal(), "%s had ended by itself:\n%s", p.name, c.tail(p))
	c.end(i)
}

// terminate asks for a drain and waits for its end.
func (c *cluster) terminate(i int) {
	p := c.ps[i]
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(c.t, p.cmd.Wait(), "%s:\n%s", p.name, c.tail(p))
	c.end(i)
}

func (c *cluster) end(i int) {
	c.ps[i].log.Close()
	c.ended = append(c.ended, c.ps[i])
	c.ps[i] = nil
}

// freeze stops process i for d.
func (c *cluster) freeze(i int, d time.Duration) {
	p := c.ps[i]
	p.stopped = time.Now()
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	<-time.After(d)
	require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGCONT))
	p.resume = time.Now()
}

func (c *cluster) tail(p *process) string {
	b, _ := os.ReadFile(c.spec.Folder + "/" + p.name + ".log")
	lines := strings.Split(string(b), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// published is one delivery on the topic.
type published struct {
	id        string
	partition int
}

// produce writes n messages, of which one in five is a duplicate of an earlier one in its partition.
func (c *cluster) produce(rng *rand.Rand, n int) (all []published) {
	w := &kafka.Writer{Addr: c.client.Addr, Topic: c.spec.Topic, RequiredAcks: kafka.RequireAll, BatchSize: 1000, BatchTimeout: time.Millisecond,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return m.Partition })}
	defer w.Close()
	byPartition := make([][]string, topicPartitions)
	var ms []kafka.Message
	for i := range n {
		p := rng.IntN(topicPartitions)
		id := fmt.Sprintf("m%d", i)
		if earlier := byPartition[p]; len(earlier) > 0 && rng.IntN(5) == 0 {
			id = earlier[max(0, len(earlier)-1-rng.IntN(min(200, len(earlier))))]
		}
		byPartition[p] = append(byPartition[p], id)
		all = append(all, published{id, p})
		ms = append(ms, kafka.Message{Partition: p, Value: []byte(id), Headers: []kafka.Header{{Key: "message-id", Value: []byte(id)}}})
		if len(ms) == 5000 || i == n-1 {
			require.NoError(c.t, w.WriteMessages(c.t.Context(), ms...))
			ms = ms[:0]
		}
	}
	return all
}

// lag is how many messages the group has not committed.
func (c *cluster) lag() (sum int64, err error) {
	topic := c.spec.Topic
	asked := map[string][]int{topic: nil}
	var ends []kafka.OffsetRequest
	for p := range c.partitions {
		asked[topic] = append(asked[topic], p)
		ends = append(ends, kafka.LastOffsetOf(p))
	}
	committed, err := c.client.OffsetFetch(c.t.Context(), &kafka.OffsetFetchRequest{GroupID: c.spec.Group, Topics: asked})
	if err != nil {
		return 0, err
	}
	end, err := c.client.ListOffsets(c.t.Context(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: ends}})
	if err != nil {
		return 0, err
	}
	for _, e := range end.Topics[topic] {
		sum += e.LastOffset
	}
	for _, o := range committed.Topics[topic] {
		sum -= max(o.CommittedOffset, 0)
	}
	return sum, nil
}

// TestKilledAndStoppedConsumersLoseNothing is the promise of this library under the worst that
// can be done to a process: every message's effect happens, and a second time only where a
// process died or stood still between the effect and the verdict on it.
func TestKilledAndStoppedConsumersLoseNothing(t *testing.T) {
	const messages, kills = 50_000, 12
	c := newCluster(t, topicPartitions)
	c.spec.Work = 12 * time.Millisecond
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	all := c.produce(rng, messages)
	for i := range c.ps {
		c.start(i)
	}
	// A kill must come later than lease, session and rebalance of the one before are over, so
	// that no record meets two of them; when exactly is chance.
	pause := func() {
		<-time.After(2*timeouts + 500*time.Millisecond + time.Duration(rng.IntN(1000))*time.Millisecond)
	}
	for n := range kills {
		pause()
		i := rng.IntN(len(c.ps))
		if n == kills/2 {
			c.freeze((i+1)%len(c.ps), 2*timeouts)
			pause()
		}
		c.kill(i)
		c.start(i)
	}
	left, err := c.lag()
	require.NoError(t, err)
	require.NotZero(t, left, "all messages were done before the last kill: the test is too slow, or has too little work")
	require.Eventually(t, func() bool {
		left, err = c.lag()
		return err == nil && left == 0
	}, 5*time.Minute, 200*time.Millisecond, "stuck")
	for i := range c.ps {
		c.terminate(i)
	}
	check(t, c, all, kills)
}
