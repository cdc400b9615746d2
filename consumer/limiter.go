package consumer

import (
	"sync"
	"time"
)

// warnEvery is how often a warning that every message could give rise to is logged.
const warnEvery = 10 * time.Second

// limiter keeps warnings that concern many messages for one reason from filling the log.
type limiter struct {
	mu    sync.Mutex
	kinds map[string]*limited
}

type limited struct {
	next   time.Time
	unsaid int
}

// allow reports whether a line of this kind may be logged now, and how many were not since the last one.
func (l *limiter) allow(kind string) (unsaid int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		if l.kinds == nil {
			l.kinds = make(map[string]*limited)
		}
		k = new(limited)
		l.kinds[kind] = k
	}
	now := time.Now()
	if now.Before(k.next) {
		k.unsaid++
		return 0, false
	}
	unsaid, k.unsaid, k.next = k.unsaid, 0, now.Add(warnEvery)
	return unsaid, true
}
