package chaos

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMessageThatKillsItsProcessIsFoundAmongItsBatch sends fifty healthy messages around one
// whose handler takes the whole process down, on every try. They are claimed together and so
// die together; yet the healthy ones are done and the killer alone is dead-lettered, once.
func TestMessageThatKillsItsProcessIsFoundAmongItsBatch(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for leases
			c := newCluster(t, k, 1, false)
			c.spec.Work = 5 * time.Millisecond
			c.spec.Killer = "killer"
			var ms []published
			for i := range 51 {
				id := fmt.Sprintf("m%d", i)
				if i == 7 {
					id = c.spec.Killer
				}
				ms = append(ms, published{id: id})
			}
			c.broker.publish(t, ms)
			deaths := 0
			for left := int64(-1); left != 0; {
				if c.diesBeforeAllIsDone() {
					deaths++
					require.LessOrEqual(t, deaths, 6, "the first crash is free, three count, and no more")
					continue
				}
				<-time.After(k.later)
				var err error
				left, err = c.broker.left()
				require.NoError(t, err)
			}
			checkKiller(t, c, ms, deaths)
		})
	}
}

// diesBeforeAllIsDone runs one process until it dies of the killer, or the broker has no message left
// but the killer's dead letter; then it is told to end.
func (c *cluster) diesBeforeAllIsDone() bool {
	c.start(0)
	p := c.ps[0]
	died := make(chan error, 1)
	go func() { died <- p.cmd.Wait() }()
	for told := false; ; {
		select {
		case err := <-died:
			p.killed = time.Now()
			status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(c.t, told && err == nil || status.Signaled() && status.Signal() == syscall.SIGKILL, "%s ended: %v\n%s", p.name, err, c.tail(p))
			c.end(0)
			return err != nil
		case <-time.After(100 * time.Millisecond):
		}
		left, err := c.broker.left()
		dead, derr := c.broker.deadLetters()
		if !told && err == nil && derr == nil && left == 0 && dead > 0 {
			told = true
			require.NoError(c.t, p.cmd.Process.Signal(syscall.SIGTERM))
		}
	}
}

func checkKiller(t *testing.T, c *cluster, ms []published, deaths int) {
	h := c.history()
	var again []string
	behind := false
	for _, m := range ms {
		if m.id == c.spec.Killer {
			behind = true
			continue
		}
		effects := h.effects[m.id]
		require.NotEmpty(t, effects, m.id)
		require.LessOrEqual(t, len(effects), 2, m.id)
		unexplained := 0
		for _, e := range effects {
			if kill, _ := h.incident(c, e); !kill { // its verdict was not yet written when its process died
				unexplained++
			}
		}
		require.LessOrEqual(t, unexplained, 1, "%s: %+v", m.id, effects)
		if len(effects) > 1 {
			again = append(again, m.id)
			require.False(t, behind && c.kind.ordered, "%s was done before the killer was given up, which stands before it", m.id)
		}
	}
	require.Empty(t, h.effects[c.spec.Killer])
	require.LessOrEqual(t, len(h.runs[c.spec.Killer]), 5)
	require.GreaterOrEqual(t, deaths, 4, "it was given up too early")
	dead, err := c.broker.deadLetters()
	require.NoError(t, err)
	require.EqualValues(t, 1, dead)
	t.Logf("%d deaths, %d runs of the killer, %d healthy messages done, again within the window: %v", deaths, len(h.runs[c.spec.Killer]), len(ms)-1, again)
}
