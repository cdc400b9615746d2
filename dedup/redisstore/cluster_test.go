package redisstore_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// cluster is one of a test's own: three masters, with a replica each or none.
type cluster struct {
	nodes  []*server
	client *redis.ClusterClient
}

func startCluster(t *testing.T, replicas int) *cluster {
	c := &cluster{}
	var addrs []string
	timeout := "15000" // a busy machine must not have healthy masters take each other for dead
	if replicas > 0 {
		timeout = "1000" // until a replica goes on for its master
	}
	for range 3 * (1 + replicas) {
		s := startRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", timeout, "--cluster-require-full-coverage", "no")
		c.nodes, addrs = append(c.nodes, s), append(addrs, s.addr)
	}
	args := append([]string{"--cluster", "create"}, addrs...)
	text, err := exec.Command("redis-cli", append(args, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	c.client = closing(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, DialerRetries: 1}))
	for _, s := range c.nodes {
		node := s.client(t)
		require.True(t, waitFor(20*time.Second, func() bool {
			info, _ := node.ClusterInfo(t.Context()).Result()
			repl, _ := node.Info(t.Context(), "replication").Result()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", len(addrs))) &&
				!strings.Contains(repl, "master_link_status:down")
		}), "cluster did not come up")
	}
	return c
}

// of returns the address and the node ID of the master that has k's slot, and the slot.
func (c *cluster) of(t *testing.T, k dedup.Key) (addr, id string, slot int) {
	slot = int(c.client.ClusterKeySlot(t.Context(), keyName(k)).Val())
	shards, err := c.client.ClusterShards(t.Context()).Result()
	require.NoError(t, err)
	for _, s := range shards {
		for _, r := range s.Slots {
			if int64(slot) < r.Start || r.End < int64(slot) {
				continue
			}
			master := slices.IndexFunc(s.Nodes, func(n redis.Node) bool { return n.Role == "master" }) // dead or alive
			require.GreaterOrEqual(t, master, 0)
			n := s.Nodes[master]
			return fmt.Sprintf("%s:%d", n.IP, n.Port), n.ID, slot
		}
	}
	require.Fail(t, "nobody has slot", "%d", slot)
	return "", "", 0
}

func (c *cluster) node(t *testing.T, addr string) *redis.Client {
	return closing(t, redis.NewClient(&redis.Options{Addr: addr}))
}

// sameTag returns n keys of one hash tag.
func sameTag(n int, tag byte) []dedup.ClaimRequest {
	in := asks(n)
	for i := range in {
		in[i].Key[0] = tag
	}
	return in
}

func TestBatchIsAtMost64CallsOnACluster(t *testing.T) {
	client, count := realCluster(t), &counter{}
	store := open(client)
	finishAll(t, store, acquireAll(t, store, asks(1024)...), dedup.Done) // every node knows the scripts
	client.AddHook(count)
	held := acquireAll(t, store, asks(1024)...)
	require.LessOrEqual(t, count.commands.Load(), int64(64))
	require.Equal(t, int64(1), count.trips.Load(), "they are sent side by side")
	finishAll(t, store, held, dedup.Done)
	require.LessOrEqual(t, count.commands.Load(), int64(128))
	acquireAll(t, store, sameTag(5, 7)...)
	require.LessOrEqual(t, count.commands.Load(), int64(129), "one tag is one call")
}

// move moves slot by slot as an operator's tool does; each step is a function.
type move struct {
	from, to     *redis.Client
	fromID, toID string
	slot         int
}

func (m *move) begin(t *testing.T) {
	require.NoError(t, m.to.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.fromID).Err())
	require.NoError(t, m.from.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.toID).Err())
}

// some moves up to n keys and returns how many there were.
func (m *move) some(t *testing.T, n int) int {
	keys, err := m.from.ClusterGetKeysInSlot(t.Context(), m.slot, n).Result()
	require.NoError(t, err)
	_, port, _ := strings.Cut(m.to.Options().Addr, ":")
	for _, k := range keys {
		require.NoError(t, m.from.Migrate(t.Context(), "127.0.0.1", port, k, 0, time.Second).Err())
	}
	return len(keys)
}

func (m *move) end(t *testing.T) {
	for _, c := range []*redis.Client{m.to, m.from} {
		require.NoError(t, c.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "NODE", m.toID).Err())
	}
}

func (c *cluster) moveOf(t *testing.T, k dedup.Key) *move {
	m := &move{}
	var from string
	from, m.fromID, m.slot = c.of(t, k)
	m.from = c.node(t, from)
	for tag := range byte(64) {
		if to, id, _ := c.of(t, dedup.Key{tag}); to != from {
			m.to, m.toID = c.node(t, to), id
			return m
		}
	}
	require.Fail(t, "one master has all tags")
	return nil
}

// While a slot moves, some of a batch's keys are on the old master, some on the new one and some
// nowhere yet: no node can run a script for all of them.
func TestBatchesAreAnsweredWhileASlotMoves(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 0)
	store := open(c.client)
	old := sameTag(20, 9)
	held := acquireAll(t, store, old...)
	finishAll(t, store, held[:10], dedup.Done)
	m := c.moveOf(t, old[0].Key)
	m.begin(t)
	require.Equal(t, 10, m.some(t, 10))
	again := append(sameTag(10, 9), old...)
	for i := range again {
		again[i].Owner = newOwner()
	}
	for i, v := range claimAll(t, store, again...) {
		switch {
		case i < 10:
			require.Equal(t, dedup.Acquired, v.State)
		case i < 20:
			require.Equal(t, dedup.Done, v.State)
		default:
			require.Equal(t, dedup.InProgress, v.State)
		}
	}
	for _, err := range finishAll(t, store, held[10:], dedup.Done) {
		require.NoError(t, err)
	}
	for m.some(t, 10) > 0 {
	}
	m.end(t)
	for _, v := range claimAll(t, store, again[10:]...) { // MOVED
		require.Equal(t, dedup.Done, v.State)
	}
}

// worker claims and finishes keys in batches, repeating a call whose answer did not come, and
// tells how often each key was acquired.
type worker struct {
	store    *redisstore.Store
	acquired map[dedup.Key]int
	lost     int
	faults   int
}

func (w *worker) run(ctx context.Context, t *testing.T, stop <-chan struct{}) {
	for ctx.Err() == nil {
		select {
		case <-stop:
			return
		default:
		}
		in := asks(64)
		held := make([]dedup.Held, 0, len(in))
		for len(in) > 0 && ctx.Err() == nil {
			out := make([]dedup.Verdict, len(in))
			err := w.store.Claim(ctx, in, out)
			var left []dedup.ClaimRequest
			for i := range in {
				if err != nil || out[i].Err != nil {
					w.faults++
					left = append(left, in[i])
					continue
				}
				if out[i].State != dedup.Acquired {
					t.Errorf("a new key was answered %v", out[i].State)
				}
				w.acquired[in[i].Key]++
				held = append(held, heldOf(in[i], out[i]))
			}
			in = left
		}
		for fin := ended(held, dedup.Done); len(fin) > 0 && ctx.Err() == nil; {
			errs := make([]error, len(fin))
			err := w.store.Finish(ctx, fin, errs)
			var left []dedup.FinishRequest
			for i := range fin {
				switch {
				case err == nil && errs[i] == dedup.ErrRecordLost:
					w.lost++
				case err != nil || errs[i] != nil:
					w.faults++
					left = append(left, fin[i])
				}
			}
			fin = left
		}
	}
}

// during lets a worker work on store while change happens, and then checks that every key it
// was granted is done.
func during(t *testing.T, store *redisstore.Store, change func()) {
	w := &worker{store: store, acquired: map[dedup.Key]int{}}
	stop := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // of an item that is never answered
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { w.run(ctx, t, stop) })
	pause(200 * time.Millisecond)
	change()
	pause(500 * time.Millisecond)
	close(stop)
	wg.Wait()
	require.NoError(t, ctx.Err(), "%d faults, and still no answer", w.faults)
	require.NotEmpty(t, w.acquired)
	var in []dedup.ClaimRequest
	for k := range w.acquired {
		in = append(in, ask(k))
	}
	notDone := 0
	for _, v := range claimAll(t, store, in...) {
		if v.State != dedup.Done {
			notDone++
		}
	}
	t.Logf("%d keys, %d records lost and written again, %d faults repeated, %d verdicts lost", len(in), w.lost, w.faults, notDone)
	require.Zero(t, notDone)
}

func TestReshardingWhileClaimsRun(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 0)
	during(t, open(c.client), func() {
		for tag := range byte(3) {
			m := c.moveOf(t, dedup.Key{tag})
			m.begin(t)
			for m.some(t, 10) > 0 {
			}
			m.end(t)
		}
	})
}

func TestClusterFailoverWhileClaimsRun(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	t.Run("asked for", c.failover)
	t.Run("of a master that dies", c.masterDies)
}

// isMaster also says what INFO has of a node's replication.
func isMaster(t *testing.T, node *redis.Client) (text string, is bool) {
	text, err := node.Info(t.Context(), "replication").Result()
	require.NoError(t, err)
	return text, strings.Contains(text, "role:master")
}

func (c *cluster) failover(t *testing.T) {
	during(t, open(c.client), func() {
		for _, s := range c.nodes {
			node := s.client(t)
			if _, is := isMaster(t, node); is {
				continue
			}
			require.NoError(t, node.ClusterFailover(t.Context()).Err())
			require.True(t, waitFor(10*time.Second, func() bool { _, is := isMaster(t, node); return is }), "no fail-over")
			return
		}
		require.Fail(t, "no replica")
	})
}

// masterDies kills a master. The others promote its replica, which knows no scripts, and the store goes on.
func (c *cluster) masterDies(t *testing.T) {
	store := open(c.client)
	before := acquireAll(t, store, asks(60)...)
	finishAll(t, store, before[:30], dedup.Done)
	addr, _, _ := c.of(t, before[0].Key) // one that has a verdict
	master, replica := c.withReplica(t, addr)
	had := int64(0)
	during(t, store, func() {
		had = replica.DBSize(t.Context()).Val()
		master.kill()
		require.True(t, waitFor(30*time.Second, func() bool { return store.Ping(t.Context()) == nil }), "no fail-over")
	})
	_, is := isMaster(t, replica)
	require.True(t, is, "the store is answered, and not by the replica")
	require.Greater(t, replica.DBSize(t.Context()).Val(), had, "the promoted replica got no claims")
	again := make([]dedup.ClaimRequest, len(before))
	for i := range before {
		again[i] = ask(before[i].Key)
	}
	for i, v := range claimAll(t, store, again...) {
		if i < 30 {
			require.Equal(t, dedup.Done, v.State)
		} else {
			require.Equal(t, dedup.InProgress, v.State)
		}
	}
	for _, err := range finishAll(t, store, before[30:], dedup.Done) {
		require.NoError(t, err)
	}
}

// withReplica returns the master at addr and its replica, once that has all that the master has written.
func (c *cluster) withReplica(t *testing.T, addr string) (master *server, replica *redis.Client) {
	_, port, _ := strings.Cut(addr, ":")
	for _, s := range c.nodes {
		node := s.client(t)
		text, _ := isMaster(t, node)
		switch {
		case s.addr == addr:
			master = s
		case strings.Contains(text, "master_port:"+port+"\r\n"):
			replica = node
		}
	}
	require.NotNil(t, master)
	require.NotNil(t, replica)
	node := master.client(t)
	require.True(t, waitFor(20*time.Second, func() bool {
		text, _ := isMaster(t, node)
		_, offset, _ := strings.Cut(text, "master_repl_offset:")
		offset, _, _ = strings.Cut(offset, "\r\n")
		return strings.Contains(text, ",offset="+offset+",")
	}), "the replica does not catch up")
	return master, replica
}

func TestDeadMasterFailsItsOwnItemsOnly(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 0)
	store := open(c.client)
	acquireAll(t, store, asks(200)...)
	dead, _, _ := c.of(t, dedup.Key{})
	for _, s := range c.nodes {
		if s.addr == dead {
			s.kill()
		}
	}
	in := asks(200)
	out := make([]dedup.Verdict, len(in))
	require.NoError(t, store.Claim(t.Context(), in, out))
	failed := 0
	for i, v := range out {
		addr, _, _ := c.of(t, in[i].Key)
		if addr == dead {
			require.Error(t, v.Err)
			require.Zero(t, v.State)
			failed++
		} else {
			require.NoError(t, v.Err)
			require.Equal(t, dedup.Acquired, v.State)
		}
	}
	require.Positive(t, failed)
	require.Less(t, failed, len(in))
	only := make([]dedup.Verdict, 3)
	require.Error(t, store.Claim(t.Context(), sameTag(3, 0), only), "nothing at all was answered")
	require.Error(t, store.Ping(t.Context()))
}

func TestPingChecksEveryMaster(t *testing.T) {
	c := startCluster(t, 0)
	require.NoError(t, c.nodes[2].client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lfu").Err())
	err := open(c.client).Ping(t.Context())
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	require.ErrorContains(t, err, c.nodes[2].port)
}
