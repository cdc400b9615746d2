package outbox

import "time"

// topic is one that did not take all that it was given last.
type topic struct {
	fails   int       // batches in a row
	held    bool      // it took nothing: one message at a time is tried
	until   time.Time // when the next one is
	open    bool      // the read that is under way may find it
	took    time.Time // when the broker last had one of its messages
	probing bool      // it is in memory, or with the publisher
}

// topics are those of one relay. A topic that is missing would fill the relay's memory with messages that wait, and
// stop the others. It is for one goroutine.
type topics map[string]*topic

// tally is what became of a topic's messages in a batch.
type tally struct{ taken, charged, unavailable int }

// tallies are those of a batch.
func tallies(b *batch) map[string]*tally {
	all := make(map[string]*tally)
	for i, r := range b.rows {
		n := all[r.Topic]
		if n == nil {
			n = &tally{}
			all[r.Topic] = n
		}
		switch err := b.errs[i]; {
		case err == nil:
			n.taken++
		case IsPermanent(err):
		case IsUnavailable(err):
			n.unavailable++
		default:
			n.charged++
		}
	}
	return all
}

// weigh notes what became of a topic's messages. One that was charged alone may be at fault itself, so it holds nobody but its key;
// and a topic of which the broker had one lately takes some, though not those whose partition is away.
func (s topics) weigh(name string, n *tally, now time.Time, longest time.Duration, backoff func(int) time.Duration) (begun, ended bool) {
	t := s[name]
	held := t != nil && t.held
	if n.charged+n.unavailable == 0 {
		switch {
		case n.taken > 0:
			if t != nil {
				t.held, t.fails, t.took, t.probing, t.until = false, 0, now, false, now
			}
			return false, held
		case t != nil: // what was tried is parked, which says nothing of the topic
			t.probing, t.until = false, now
		}
		return false, false
	}
	if t == nil {
		t = &topic{}
		s[name] = t
	}
	t.fails++
	t.probing, t.until = false, now.Add(backoff(t.fails))
	if n.taken > 0 {
		t.took = now
	}
	t.held = n.taken == 0 && now.Sub(t.took) > 2*longest && (held || n.unavailable > 0 || n.charged > 1)
	return t.held && !held, held && !t.held
}

// due reports whether one of a held topic's messages is to be read, and when the next one will be. It forgets
// topics of which nothing was heard for long.
func (s topics) due(now time.Time, longest time.Duration) (some bool, next time.Time) {
	for name, t := range s {
		switch {
		case !t.held:
			if now.Sub(t.until) > 2*longest {
				delete(s, name)
			}
		case t.open || t.probing:
		case !t.until.After(now):
			some = true
		case next.IsZero() || t.until.Before(next):
			next = t.until
		}
	}
	return some, next
}

// closed are the topics that the read which begins now is to leave out: those that are held, unless it is time
// to try one, and those of which many messages wait each by itself.
func (s topics) closed(now time.Time, waiting map[string]int) (names []string) {
	for name, t := range s {
		if t.held {
			if t.open = !t.probing && !t.until.After(now); !t.open {
				names = append(names, name)
			}
		}
	}
	for name, n := range waiting {
		if t := s[name]; n >= maxLateOfTopic && (t == nil || !t.held) {
			names = append(names, name)
		}
	}
	return names
}

// admit returns what may stay of a read's rows: of a topic that is held, one message where it is time to try one,
// if it is the first of its lane. What follows one that is left out stays behind it.
func (s topics) admit(rows []*row) []*row {
	if len(s) == 0 {
		return rows
	}
	kept := rows[:0]
	behind, known := make(map[int64]bool), make(map[int64]bool)
	for _, r := range rows {
		if t := s[r.Topic]; t != nil && t.held {
			if behind[r.lane] || known[r.lane] || !t.open || t.probing {
				behind[r.lane] = true
				continue
			}
			t.probing = true
		}
		if !behind[r.lane] {
			known[r.lane] = true
			kept = append(kept, r)
		}
	}
	return kept
}

// shut ends a read. A held topic of which it would have found a message, and found none, has none that could be tried; those that come
// are given to the broker as ever. It returns those that are held no more.
func (s topics) shut(all bool) (ended []string) {
	for name, t := range s {
		if t.open && !t.probing && all {
			t.held = false
			ended = append(ended, name)
		}
		t.open = false
	}
	return ended
}

// reopen: what was read may have been dropped, messages that were to be tried among it.
func (s topics) reopen() {
	for _, t := range s {
		t.probing = false
	}
}
