package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMessageThatKillsItsProcessIsFoundAmongItsBatch sends fifty healthy messages around one
// whose handler takes the whole process down, on every try. They are claimed together and so
// die together; yet the healthy ones are done and the killer alone is dead-lettered, once.
func TestMessageThatKillsItsProcessIsFoundAmongItsBatch(t *testing.T) {
	c := newCluster(t, kindOf("kafka"), 1, false)
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
	for done := false; !done; {
		c.start(0)
		died := make(chan error, 1)
		go func() { died <- c.ps[0].cmd.Wait() }()
		for waiting := true; waiting; {
			select {
			case <-died:
				deaths++
				require.LessOrEqual(t, deaths, 6, "the first crash is free, three count, and no more")
				c.end(0)
				waiting = false
			case <-time.After(100 * time.Millisecond):
				left, err := c.broker.left()
				if waiting = err != nil || left > 0; !waiting {
					done = true
				}
			}
		}
		if done {
			require.NoError(t, c.ps[0].cmd.Process.Kill())
			<-died
			c.end(0)
		}
	}
	h := c.history()
	var again []string
	for _, m := range ms {
		id := m.id
		if id == c.spec.Killer {
			require.Empty(t, h.effects[id])
			require.LessOrEqual(t, len(h.runs[id]), 5)
			continue
		}
		require.NotEmpty(t, h.effects[id], id)
		for _, e := range h.effects[id][1:] {
			// Only what was done right before the killer was begun can have been without its verdict.
			again = append(again, e.id)
		}
	}
	require.LessOrEqual(t, len(again), 1, "done twice: %v", again)
	dead, err := c.broker.deadLetters()
	require.NoError(t, err)
	require.EqualValues(t, 1, dead)
	t.Logf("%d deaths, %d runs of the killer, 50 healthy messages done, again within the window: %v", deaths, len(h.runs[c.spec.Killer]), again)
}
