package consumer_test

import (
	"fmt"
	"slices"
	"testing/synctest"

	"github.com/idemq/idemq/consumer"
)

// judge checks the account of each message.
func (w *world) judge() {
	synctest.Wait() // what others wrote is visible from here on
	contents, lanes := map[string]map[string]bool{}, map[string]map[string]bool{}
	for i, ms := range w.sc.published {
		for _, m := range ms {
			if contents[m.ID] == nil {
				contents[m.ID], lanes[m.ID] = map[string]bool{}, map[string]bool{}
			}
			contents[m.ID][content(&m)] = true
			lanes[m.ID][fmt.Sprint(i, m.Key)] = true
		}
	}
	for id, keys := range contents {
		for key := range keys {
			own := message(id, "")
			w.judgeOne(id, key, len(keys) > 1 || !keys[content(&own)]) // a crashed owner's was its own
		}
	}
	if w.sc.hold < 0 {
		w.judgeOrder(lanes)
	}
}

func (w *world) judgeOne(id, key string, shared bool) {
	script := w.sc.scripts[id]
	done, dead := w.done[key], w.dead[key]
	bad := slices.Contains(script, failsForGood)
	switch {
	case done+dead == 0:
		w.fault("%s is lost", key)
	case shared && !w.flushed && done > 0 && w.runs[id] > len(script)+1 && !w.cut:
		w.fault("%s ran %d times: two messages under one ID both did", id, w.runs[id])
	case shared:
	case dead > 0 && len(script) == 0:
		w.fault("%s is healthy and was dead-lettered", key)
	case dead > 0 && !bad && !w.cut && w.runs[id] < 5:
		w.fault("%s was dead-lettered after %d runs", key, w.runs[id])
	case w.cut: // a lost lease may cost one more run each
	case done > 1 && !slices.Contains(script, hangs):
		w.fault("%s was done %d times without a reason", key, done)
	case w.runs[id] > len(script)+1+len(w.sc.events):
		w.fault("%s ran %d times for %v", key, w.runs[id], script)
	}
}

// judgeOrder checks the first runs in each lane of what was published in that one alone.
func (w *world) judgeOrder(lanes map[string]map[string]bool) {
	for i, ms := range w.sc.published {
		last, seen := map[string]string{}, map[string]bool{}
		for _, m := range ms {
			other := func(o consumer.Message) bool { return content(&o) != content(&m) && o.ID == m.ID }
			at, ran := w.first[m.ID]
			if m.Key == "" || !ran || seen[m.ID] || len(lanes[m.ID]) > 1 || slices.ContainsFunc(ms, other) {
				continue
			}
			seen[m.ID] = true
			if before, ok := last[m.Key]; ok && at < w.first[before] {
				w.fault("process %d, lane %s: %s ran before %s", i, m.Key, m.ID, before)
			}
			last[m.Key] = m.ID
		}
	}
}
