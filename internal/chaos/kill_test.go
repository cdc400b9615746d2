package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKilledAndStoppedConsumersLoseNothing is the promise of this library under the worst that
// can be done to a process: every message's effect happens, and a second time only where a
// process died or stood still between the effect and the verdict on it. Where the server is the test's own
// it is killed in the middle, too, which is no excuse for a second effect.
func TestKilledAndStoppedConsumersLoseNothing(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			kills := 12
			if !full() {
				kills, k.messages = 5, k.part
			}
			c := newCluster(t, k, topicPartitions, k.own != nil)
			rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
			all := draw(rng, k.messages)
			begun := time.Now()
			c.startAll()
			c.harm(rng, kills, all)
			left, err := c.broker.left()
			require.NoError(t, err)
			require.NotZero(t, left, "all messages were done before the last kill")
			t.Logf("%v: the last kill, with %d messages left", time.Since(begun).Round(time.Second), left)
			c.finish()
			t.Logf("%v: everything is done", time.Since(begun).Round(time.Second))
			check(t, c, all, kills)
		})
	}
}

// draw is n messages, of which one in five is a duplicate of an earlier one in its partition.
func draw(rng *rand.Rand, n int) (all []published) {
	byPartition := make([][]string, topicPartitions)
	for i := range n {
		p := rng.IntN(topicPartitions)
		id := fmt.Sprintf("m%d", i)
		if earlier := byPartition[p]; len(earlier) > 0 && rng.IntN(5) == 0 {
			id = earlier[max(0, len(earlier)-1-rng.IntN(min(200, len(earlier))))]
		}
		byPartition[p] = append(byPartition[p], id)
		all = append(all, published{id, p})
	}
	return all
}

// harm sends all, by and by, so that there is work before every kill; kills processes one after
// the other, stops one of them past its lease, and restarts the server where there is one to restart.
func (c *cluster) harm(rng *rand.Rand, kills int, all []published) {
	// A kill must come later than what the one before holds up is over, so that no record meets
	// two of them; when exactly is chance.
	pause := func() { <-time.After(c.kind.gap + time.Duration(rng.IntN(1000))*time.Millisecond) }
	for n := range kills {
		part := all[n*len(all)/kills : (n+1)*len(all)/kills]
		last := len(part) - min(200, len(part)/4) // of these, some are under way when the kill comes, however quick the machine
		c.broker.publish(c.t, part[:last])
		pause()
		i := rng.IntN(len(c.ps))
		if n == kills/3 {
			c.freeze((i+1)%len(c.ps), 2*timeouts)
			pause()
		}
		if n == kills/2 && c.kind.own != nil {
			c.broker.restart()
			pause()
		}
		c.broker.publish(c.t, part[last:])
		<-time.After(time.Duration(rng.IntN(300)) * time.Millisecond)
		c.kill(i)
		c.start(i)
	}
}

// finish lets the processes work until the broker has nothing left, and ends them. What a process
// holds the broker may only count once that process has ended.
func (c *cluster) finish() {
	left, err := int64(-1), error(nil)
	await := func() {
		require.Eventually(c.t, func() bool {
			left, err = c.broker.left()
			return err == nil && left == 0
		}, 5*time.Minute, 200*time.Millisecond, "stuck")
	}
	for rounds := 0; ; rounds++ {
		await()
		c.terminateAll()
		<-time.After(c.kind.later)
		if left, err = c.broker.left(); err == nil && left == 0 {
			return
		}
		require.Less(c.t, rounds, 20, "%d messages come again and again: %v", left, err)
		c.startAll()
	}
}
