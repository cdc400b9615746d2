package rocketmq_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rc "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/internal/testenv"
)

// ledger counts what members of a group have acknowledged.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

func newLedger() *ledger { return &ledger{seen: make(map[string]int)} }

func (l *ledger) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// member consumes into l until the returned function is called, which closes its source. Each
// retryEvery-th message is retried once first; 0: none.
func (l *ledger) member(t *testing.T, s *rocketmq.Source, retryEvery int) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			ds, err := s.Receive(ctx, 64)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.Errorf("Receive: %v", err)
				return
			}
			for _, d := range ds {
				n, _ := strconv.Atoi(string(d.Body))
				if retryEvery > 0 && n%retryEvery == 0 && raw(d).GetProperty("RETRY_TOPIC") == "" {
					running.Go(func() {
						for d.Retry(ctx, time.Second, nil) != nil && ctx.Err() == nil { // its topic may be on its way
						}
					})
					continue
				}
				l.mu.Lock()
				l.seen[string(d.Body)]++
				l.mu.Unlock()
				if err := d.Ack(ctx); err != nil {
					t.Errorf("Ack: %v", err)
				}
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
		closeSource(t, s)
	}
}

func TestMembersComeAndGoAndNothingIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	const n = 6000
	l := newLedger()
	var feeding sync.WaitGroup
	feeding.Go(func() {
		p := w.publisher(t)
		for i := 0; i < n; i += 100 {
			send(t, p, w.messages(numbers(i, i+100)...)...)
		}
	})
	a := l.member(t, w.source(t), 7)
	await := func(k int) {
		t.Helper()
		require.Eventually(t, func() bool { return l.distinct() >= k }, time.Minute, 5*time.Millisecond)
	}
	await(n / 10)
	b := l.member(t, w.source(t), 7)
	await(n / 4)
	a()
	c := l.member(t, w.source(t), 7)
	await(n / 2)
	b()
	d := l.member(t, w.source(t), 7)
	feeding.Wait()
	await(n)
	c()
	d()
	twice := 0
	for _, k := range l.seen {
		if k > 1 {
			twice++
		}
	}
	t.Logf("0 of %d missing, %d delivered twice", n, twice)
}

func TestMembersHaveQueuesOfTheirOwnAndAllOfThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	a, b := w.source(t), w.source(t)
	stop := within(t, time.Minute)
	queues := make(chan [2]any, 1000)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(stop)
	for i, s := range []*rocketmq.Source{a, b} {
		running.Go(func() {
			for ctx.Err() == nil {
				ds, _ := s.Receive(ctx, 10)
				for _, d := range ds {
					queues <- [2]any{i, raw(d).Queue.QueueId}
					_ = d.Ack(ctx)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return a.Connected() && b.Connected() }, eventually, 10*time.Millisecond)
	p := w.publisher(t)
	owners := map[int]map[any]bool{}
	require.Eventually(t, func() bool {
		send(t, p, w.messages("x", "x", "x", "x", "x", "x", "x", "x")...)
		clear(owners)
		for range 8 {
			got := <-queues
			id := got[1].(int)
			if owners[id] == nil {
				owners[id] = map[any]bool{}
			}
			owners[id][got[0]] = true
		}
		of := map[any]int{}
		for _, who := range owners {
			for o := range who {
				of[o]++
			}
		}
		return len(owners) == 4 && of[0] == 2 && of[1] == 2
	}, eventually, 200*time.Millisecond, "each member has two of the four queues: %v", owners)
	cancel()
	running.Wait()
}

// A killed process says no goodbye: its connections just break.
func TestKilledMembersMessagesGoToTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	a := w.source(t)
	w.publish(t, "", numbers(0, 20)...)
	ds := receive(t, a, 20)
	ack(t, ds[:5]...)
	a.Kill()
	b := w.source(t)
	seen := map[string]bool{}
	for _, d := range ds[:5] {
		seen[string(d.Body)] = true
	}
	for len(seen) < 20 {
		for _, d := range receive(t, b, 1) {
			seen[string(d.Body)] = true
			ack(t, d)
		}
	}
}

func TestMissingTopicIsLoggedByNameAndConsumedOnceItIsThere(t *testing.T) {
	t.Parallel()
	for name, latest := range map[string]bool{"from the beginning": false, "from latest": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			var l log
			missing := w.topic + "-later"
			s := w.sourceOf(t, w.group, []string{w.topic, missing}, func(o *rocketmq.SourceOptions) {
				o.Logger = l.logger()
				o.FromLatest = latest
			})
			nothing(t, s, 500*time.Millisecond)
			require.Eventually(t, func() bool {
				said := l.String()
				return strings.Contains(said, `msg="rocketmq: the topic does not exist; it is consumed once it is created"`) && strings.Contains(said, "topic="+missing)
			}, eventually, 10*time.Millisecond)
			if !latest { // else what is published before the queues of the other topic are looked at is not for this group
				w.publish(t, "", "meanwhile")
				ack(t, receive(t, s, 1)...)
			}
			other := w
			other.topic = missing
			w.create(t, other.topic, 2)
			other.publish(t, "", "first")
			require.Equal(t, []string{"first"}, bodies(receive(t, s, 1)))
		})
	}
}

// Taking the permission to read is how operators pause consumers, or empty a broker.
func TestTopicThatMayNotBeReadIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	var l log
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.Logger = l.logger() })
	w.publish(t, "k", "a", "b")
	ds := receive(t, s, 2)
	ack(t, ds[0])
	const writeOnly, both = 2, 6
	w.allow(t, 2, writeOnly)
	select {
	case <-ds[1].Lost:
	case <-time.After(eventually):
		require.Fail(t, "the queue is still read")
	}
	require.Eventually(t, func() bool { return l.has("no queue of the topic may be read") }, eventually, step)
	require.True(t, l.has("topic="+w.topic))
	w.publish(t, "k", "c")
	w.allow(t, 2, both)
	require.Equal(t, []string{"b", "c"}, bodies(receive(t, s, 2)))
}

func TestGroupWithoutAnyTopicWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	s := w.source(t)
	nothing(t, s, 300*time.Millisecond)
	w.create(t, w.topic, 1)
	w.publish(t, "", "a")
	ack(t, receive(t, s, 1)...)
}

func nameServerIsRestartedWhileMessagesFlow(t *testing.T, server *testenv.RocketMQServer) {
	w := ownWorld(t, server, 2)
	s := w.source(t)
	p := w.publisher(t)
	send(t, p, w.messages("before")...)
	ack(t, receive(t, s, 1)...)
	flow := func(what string) {
		for i := range 20 { // longer than the look at the routes that comes each 5 s
			body := what + strconv.Itoa(i)
			send(t, p, w.messages(body)...)
			ds := receive(t, s, 1)
			require.Equal(t, []string{body}, bodies(ds))
			ack(t, ds...)
			<-time.After(300 * time.Millisecond)
		}
	}
	server.NameServer.Kill()
	flow("without ")
	server.NameServer.Start() // it knows no topic before the broker tells it, each 30 s
	flow("after ")
	require.Eventually(t, s.Connected, eventually, 50*time.Millisecond)
}

func brokerIsKilledInMidRun(t *testing.T, server *testenv.RocketMQServer) {
	w := ownWorld(t, server, 3)
	const n = 3000
	l := newLedger()
	leave := l.member(t, w.source(t), 11)
	p := w.publisher(t)
	for i := 0; i < n/2; i += 100 {
		send(t, p, w.messages(numbers(i, i+100)...)...)
	}
	server.Broker.Restart()
	again := w.publisher(t)
	for i := n / 2; i < n; i += 100 {
		ms := w.messages(numbers(i, i+100)...)
		require.Eventually(t, func() bool {
			errs := make([]error, len(ms))
			return again.Publish(t.Context(), ms, errs) == nil && !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
		}, time.Minute, 100*time.Millisecond)
	}
	require.Eventually(t, func() bool { return l.distinct() == n }, time.Minute, 20*time.Millisecond)
	leave()
}

// The topic is deleted and made anew, and so begins at 0 again, below the group's position.
func TestPositionBeyondTheEndBeginsAtTheStart(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	first := w.source(t)
	ack(t, receive(t, first, 1)...)
	closeSource(t, first)
	require.NoError(t, rocketmq.Commit(within(t, eventually), w.cluster, w.broker, w.name, w.group, w.topic, 0, 100))
	var l log
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.Logger = l.logger() })
	ds := receive(t, s, 1)
	require.Equal(t, []string{"a"}, bodies(ds))
	require.Contains(t, l.String(), "the group's position lies beyond the end of the queue")
	ack(t, ds...)
	closeSource(t, s)
	require.EqualValues(t, 1, w.committed(t, w.topic, 0))
}

// A group that a push consumer had before has messages in the broker's own retry topic.
func TestRetriesOfAPushConsumerBeforeAreConsumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	push, err := rc.NewPushConsumer(rc.WithGroupName(w.group), rc.WithInstance(w.group), rc.WithConsumeFromWhere(rc.ConsumeFromFirstOffset),
		rc.WithNsResolver(primitive.NewPassthroughResolver(w.cluster.NameServers)))
	require.NoError(t, err)
	failed := make(chan string, 10)
	require.NoError(t, push.Subscribe(w.topic, rc.MessageSelector{}, func(ctx context.Context, ms ...*primitive.MessageExt) (rc.ConsumeResult, error) {
		failed <- ms[0].MsgId
		return rc.ConsumeRetryLater, nil
	}))
	w.publish(t, "", "a")
	require.NoError(t, push.Start())
	id := <-failed
	require.Eventually(t, func() bool { return w.committed(t, w.topic, 0) == 1 }, eventually, 100*time.Millisecond, "the broker has its copy")
	require.NoError(t, push.Shutdown())
	s := w.source(t)
	d := receive(t, s, 1)[0]
	require.Equal(t, "a", string(d.Body))
	require.Equal(t, id, d.ID)
	require.Equal(t, w.topic, d.Topic)
	require.NoError(t, d.Retry(t.Context(), time.Second, nil))
	d = receive(t, s, 1)[0]
	require.Equal(t, id, d.ID)
	require.Equal(t, w.topic, d.Topic)
	ack(t, d)
}
