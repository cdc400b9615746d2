package outbox

import (
	"slices"
	"time"
)

// lane is what a relay has read of a key, in order, and what has become of it.
type lane struct {
	id      int64
	rows    []*row    // read and not sent
	flying  bool      // the first of rows is with the publisher
	marking int       // rows the broker has, and the table does not know it yet
	until   time.Time // after a failure, when the next attempt may begin
	queued  bool      // it is in lanes.ready
	missed  bool      // a read left it out, so there may be more of it
	topic   string    // of the message for which it waits until then
}

// lanes is the relay's memory. It is for one goroutine.
type lanes struct {
	all   map[int64]*lane
	ready []*lane // with a row that may go now, in turn
	late  []*lane // with one whose until is in the future
	rows  int     // read and not with the publisher
	bytes int     // of those

	waiting map[string]int // how many are late, by topic
}

func newLanes() *lanes { return &lanes{all: make(map[int64]*lane), waiting: make(map[string]int)} }

// ids are the lanes to leave out of the next read: what it found of them is here, or must wait.
func (s *lanes) ids() []int64 {
	ids := make([]int64, 0, len(s.all))
	for id, l := range s.all {
		l.missed = true
		ids = append(ids, id)
	}
	return ids
}

// add takes what was read, of lanes that were not here.
func (s *lanes) add(rows []*row) {
	for _, r := range rows {
		l := s.all[r.lane]
		if l == nil {
			l = &lane{id: r.lane}
			s.all[r.lane] = l
		}
		l.rows = append(l.rows, r)
		s.count(1, r)
		s.queue(l)
	}
}

// count adds rows to what is in memory, or takes them away.
func (s *lanes) count(sign int, rows ...*row) {
	for _, r := range rows {
		s.rows += sign
		s.bytes += sign * r.size
	}
}

func (s *lanes) queue(l *lane) {
	if !l.queued && !l.flying && len(l.rows) > 0 {
		l.queued = true
		s.ready = append(s.ready, l)
	}
}

// next takes the first row of up to n lanes.
func (s *lanes) next(n int) []*row {
	n = min(n, len(s.ready))
	rows := make([]*row, 0, n)
	for _, l := range s.ready[:n] {
		l.queued = false
		l.flying = true
		rows = append(rows, l.rows[0])
		s.count(-1, l.rows[0])
	}
	s.ready = append(s.ready[:0], s.ready[n:]...)
	return rows
}

// sent: the broker has r. Its follower may go.
func (s *lanes) sent(r *row) {
	l := s.all[r.lane]
	l.flying = false
	l.rows = l.rows[1:]
	l.marking++
	s.queue(l)
}

// unsent: the broker could not be asked. r is first again.
func (s *lanes) unsent(r *row) {
	l := s.all[r.lane]
	l.flying = false
	s.count(1, r)
	s.queue(l)
}

// failed: r waits until then in the table, and what follows it too. The zero time means that it does not wait.
func (s *lanes) failed(r *row, until time.Time) {
	s.all[r.lane].marking++
	s.postpone(r, until)
}

// postponed: r waits until then, of which the table need not know.
func (s *lanes) postponed(r *row, until time.Time) {
	s.postpone(r, until)
	if l := s.all[r.lane]; l.marking == 0 {
		s.wait(l)
	}
}

func (s *lanes) postpone(r *row, until time.Time) {
	l := s.all[r.lane]
	l.flying = false
	s.count(-1, l.rows[1:]...)
	l.rows = nil
	l.until, l.topic = until, r.Topic
}

func (s *lanes) wait(l *lane) {
	s.waiting[l.topic]++
	at, _ := slices.BinarySearchFunc(s.late, l.until, func(l *lane, t time.Time) int { return l.until.Compare(t) })
	s.late = slices.Insert(s.late, at, l)
}

// marked: the table knows what became of r. It reports whether there may be more of its lane to read.
func (s *lanes) marked(r *row) (more bool) {
	l := s.all[r.lane]
	l.marking--
	if l.marking > 0 || l.flying || len(l.rows) > 0 {
		return false
	}
	if l.until.IsZero() {
		delete(s.all, l.id)
		return l.missed
	}
	s.wait(l)
	return false
}

// waited: l is late no more.
func (s *lanes) waited(l *lane) {
	if s.waiting[l.topic]--; s.waiting[l.topic] <= 0 {
		delete(s.waiting, l.topic)
	}
}

// wake forgets lanes that have waited long enough, so that they are read again, and returns whether there
// were any, and when the next one will be.
func (s *lanes) wake(now time.Time) (some bool, next time.Time) {
	n := 0
	for n < len(s.late) && !s.late[n].until.After(now) {
		delete(s.all, s.late[n].id)
		s.waited(s.late[n])
		n++
	}
	s.late = append(s.late[:0], s.late[n:]...)
	if len(s.late) > 0 {
		next = s.late[0].until
	}
	return n > 0, next
}

// keep drops what was read of shards that are not in mask, and is with nobody.
func (s *lanes) keep(mask uint64) {
	for _, l := range s.all {
		if mask&(1<<shardOf(l.id)) == 0 {
			s.cut(l, 0)
		}
	}
	s.tidy(mask)
}

// drop forgets what was read of a topic and is with nobody, and what follows it.
func (s *lanes) drop(topic string, mask uint64) {
	for _, l := range s.all {
		if at := slices.IndexFunc(l.rows, func(r *row) bool { return r.Topic == topic }); at >= 0 {
			s.cut(l, at)
		}
	}
	s.tidy(mask)
}

// cut forgets the rows of a lane from the nth, but for one that is with the publisher.
func (s *lanes) cut(l *lane, n int) {
	if l.flying {
		n = max(n, 1)
	}
	if n < len(l.rows) {
		s.count(-1, l.rows[n:]...)
		clear(l.rows[n:])
		l.rows = l.rows[:n]
		l.missed = true
	}
}

// tidy drops lanes of which nothing is left to do.
func (s *lanes) tidy(mask uint64) {
	ready := s.ready[:0]
	for _, l := range s.ready {
		if len(l.rows) > 0 {
			ready = append(ready, l)
		} else {
			l.queued = false
		}
	}
	s.ready = ready
	for id, l := range s.all {
		if len(l.rows) == 0 && !l.flying && l.marking == 0 && (l.until.IsZero() || mask&(1<<shardOf(id)) == 0) {
			delete(s.all, id)
		}
	}
	s.late = slices.DeleteFunc(s.late, func(l *lane) bool {
		gone := s.all[l.id] != l
		if gone {
			s.waited(l)
		}
		return gone
	})
}

// release has those that wait for a topic read again: it was held, and is no more.
func (s *lanes) release(topic string) {
	s.late = slices.DeleteFunc(s.late, func(l *lane) bool {
		if l.topic != topic {
			return false
		}
		delete(s.all, l.id)
		s.waited(l)
		return true
	})
}
