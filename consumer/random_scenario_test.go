package consumer_test

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/idemq/idemq/consumer"
)

// What a handler does at one attempt.
const (
	succeeds = iota
	takesTime
	fails
	panics
	exits
	failsForGood
	waitsForItsContext
	hangs // far beyond its timeout, and then succeeds
	acts
)

// scenario is drawn before the bubble begins, so that nothing in it depends on the schedule.
type scenario struct {
	processes   int
	concurrency int
	hold        time.Duration
	published   [][]consumer.Message // by process
	scripts     map[string][]int     // by ID: what each run does; later ones succeed
	crashed     []string             // IDs left by owners that vanished
	events      []event
}

type event struct {
	after   time.Duration // the one before
	what    string
	process int
}

func drawScenario(t *rapid.T) *scenario {
	sc := &scenario{
		processes: rapid.IntRange(1, 2).Draw(t, "processes"), concurrency: rapid.SampledFrom([]int{2, 4, 16}).Draw(t, "concurrency"),
		hold: rapid.SampledFrom([]time.Duration{-1, 5 * time.Second}).Draw(t, "hold"), scripts: make(map[string][]int),
	}
	ids := rapid.IntRange(1, 60).Draw(t, "ids")
	hung := false
	for i := range ids {
		id := fmt.Sprint("m", i)
		script := rapid.SliceOfN(rapid.IntRange(0, acts-1), 0, 3).Draw(t, id)
		for j := range script {
			if script[j] == hangs && hung { // with as many as slots the run ends
				script[j] = fails
			}
			hung = hung || script[j] == hangs
		}
		sc.scripts[id] = script
		if rapid.IntRange(0, 5).Draw(t, "crashed") == 0 {
			sc.crashed = append(sc.crashed, id)
		}
	}
	for range sc.processes {
		var ms []consumer.Message
		for range rapid.IntRange(1, 100).Draw(t, "published") {
			id := fmt.Sprint("m", rapid.IntRange(0, ids-1).Draw(t, "id"))
			m := message(id, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "lane"))
			if rapid.IntRange(0, 19).Draw(t, "other content") == 0 {
				m.Body = []byte("other content")
			}
			ms = append(ms, m)
		}
		sc.published = append(sc.published, ms)
	}
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		sc.events = append(sc.events, event{
			after:   time.Duration(rapid.IntRange(0, 40_000).Draw(t, "after")) * time.Millisecond,
			what:    rapid.SampledFrom([]string{"cut", "mute", "heal", "lose session", "restart", "flush", "refuse", "accept"}).Draw(t, "what"),
			process: rapid.IntRange(0, sc.processes-1).Draw(t, "process"),
		})
	}
	return sc
}

// twoFaced are the IDs under which there is more than one content.
func (sc *scenario) twoFaced() map[string]bool {
	first, two := map[string]string{}, map[string]bool{}
	for _, id := range sc.crashed {
		own := message(id, "")
		first[id] = content(&own)
	}
	for _, ms := range sc.published {
		for _, m := range ms {
			k := content(&m)
			if f, ok := first[m.ID]; ok && f != k {
				two[m.ID] = true
			}
			first[m.ID] = k
		}
	}
	return two
}
