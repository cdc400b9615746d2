package chaos

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
)

// event is one line that a consumer process wrote.
type event struct {
	kind, id string
	epoch    uint64
	at       int64 // ns
	by       *process
}

// history is what all processes said of each message, in the order of time.
type history struct {
	runs, effects map[string][]event
	done          map[string][]event // by key
	stalls        map[string][]event // by no name: times at which a process or its store stood still, in ns for an epoch
}

func (c *cluster) history() history {
	h := history{runs: map[string][]event{}, effects: map[string][]event{}, done: map[string][]event{}, stalls: map[string][]event{}}
	for _, p := range c.ended {
		f, err := os.Open(c.spec.Folder + "/" + p.name + ".events")
		if os.IsNotExist(err) {
			continue // killed before it began
		}
		require.NoError(c.t, err)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			e := event{by: p}
			_, err := fmt.Sscan(lines.Text(), &e.kind, &e.id, &e.epoch, &e.at)
			require.NoError(c.t, err, lines.Text())
			m := map[string]map[string][]event{"run": h.runs, "effect": h.effects, "done": h.done, "stall": h.stalls}[e.kind]
			m[e.id] = append(m[e.id], e)
		}
		f.Close()
	}
	for _, m := range []map[string][]event{h.runs, h.effects, h.done} {
		for _, es := range m {
			slices.SortFunc(es, func(a, b event) int { return int(a.at - b.at) })
		}
	}
	return h
}

// keyOf is the documented key of a record: SHA-256 over length-prefixed application, scope and ID.
func (s *childSpec) keyOf(id string) string {
	h := sha256.New()
	for _, p := range []string{s.App, s.Broker + "/" + s.Group, id} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(p)))
		h.Write([]byte(p))
	}
	return keyText(dedup.Key(h.Sum(nil)))
}

// stalled tells whether the effect's process, or the store under it, stood still between the claim,
// whose epoch has its time in ms, and a lease after the effect: of an overloaded machine, that is a stop as good as any.
func (h history) stalled(c *cluster, effect event) bool {
	begun, ended := int64(effect.epoch)*int64(time.Millisecond), effect.at+int64(c.spec.Lease)
	return slices.ContainsFunc(h.stalls["-"], func(s event) bool {
		return s.by == effect.by && s.at >= begun && s.at-int64(s.epoch) <= ended
	})
}

// incident says what can have made an effect happen once more than it should: its process never
// got a verdict for it, because it was killed, or it stood still while it held the claim.
func (h history) incident(c *cluster, effect event) (kill, stop bool) {
	p := effect.by
	verdict := false
	for _, d := range h.done[c.spec.keyOf(effect.id)] {
		verdict = verdict || d.by == p && d.epoch == effect.epoch
	}
	if !p.killed.IsZero() {
		return !verdict && p.killed.UnixNano() >= effect.at, false
	}
	for _, run := range h.runs[effect.id] {
		if run.by == p && run.epoch == effect.epoch && !p.stopped.IsZero() {
			return false, run.at <= p.stopped.UnixNano() && (!verdict || effect.at >= p.stopped.UnixNano())
		}
	}
	return false, false
}

// check holds what happened against what was promised, and prints the figures.
func check(t *testing.T, c *cluster, all []published, kills int) {
	h := c.history()
	ids := map[string]bool{}
	for _, m := range all {
		ids[m.id] = true
	}
	lost, byKill, byStop, byStall := 0, 0, 0, 0
	for id := range ids {
		effects := h.effects[id]
		if len(effects) == 0 {
			lost++
			t.Errorf("lost: %s ran %d times and had no effect", id, len(h.runs[id]))
			continue
		}
		unexplained, stalls := 0, 0
		for _, e := range effects {
			kill, stop := h.incident(c, e)
			switch {
			case kill && len(effects) > 1:
				byKill++
			case stop && len(effects) > 1:
				byStop++
			case len(effects) > 1 && h.stalled(c, e):
				stalls++
			default:
				unexplained++
			}
		}
		byStall += max(0, stalls+unexplained-1) // the last of them is the one that had to be
		if unexplained > 1 {
			t.Errorf("done twice: %s: %d effects that no kill and no stop explains: %+v", id, unexplained, effects)
		}
	}
	require.Zero(t, lost)
	if c.kind.ordered {
		checkOrder(t, h, all)
	}
	writes := checkFence(t, c, ids)
	dead, err := c.broker.deadLetters()
	require.NoError(t, err)
	require.Zero(t, dead, "dead-lettered")
	runs, killed := 0, 0
	for _, r := range h.runs {
		runs += len(r)
	}
	for _, p := range c.ended {
		if !p.killed.IsZero() {
			killed++
		}
	}
	require.GreaterOrEqual(t, killed, kills)
	t.Logf("%d deliveries of %d messages, %d kills -9, 1 stop: %d handler runs, 0 lost, 0 dead-lettered, done twice: %d by kills, %d by the stop, %d by a machine that stood still; %d fenced writes in order",
		len(all), len(ids), killed, runs, byKill, byStop, byStall, writes)
}

// checkOrder demands that the first runs of a partition's messages began in the order of the log.
func checkOrder(t *testing.T, h history, all []published) {
	last := make(map[int]event)
	seen := make(map[string]bool)
	for _, m := range all {
		if seen[m.id] {
			continue
		}
		seen[m.id] = true
		first := h.runs[m.id][0]
		if before, ok := last[m.partition]; ok && first.at < before.at {
			t.Errorf("order: %s of partition %d began %v before its predecessor %s", m.id, m.partition, time.Duration(before.at-first.at), before.id)
		}
		last[m.partition] = first
	}
}

// checkFence demands that no older epoch wrote after a newer one.
func checkFence(t *testing.T, c *cluster, ids map[string]bool) (n int) {
	db, err := openFence(c.spec.Folder)
	require.NoError(t, err)
	defer db.Close()
	rows, err := db.Query(`SELECT id, epoch FROM writes ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	newest := map[string]uint64{}
	for rows.Next() {
		var id string
		var epoch uint64
		require.NoError(t, rows.Scan(&id, &epoch))
		require.Greater(t, epoch, newest[id], "%s", id)
		newest[id] = epoch
		n++
	}
	require.NoError(t, rows.Err())
	require.Len(t, newest, len(ids), "a rightful owner was refused")
	return n
}
