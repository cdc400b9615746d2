package consumer

import (
	"fmt"
	"time"
)

// A message without a name has no record: its attempts are counted in memory, and with another delivery they would begin
// anew, for ever. So all of them take place within one.

// namelessDelay is d, or so much of it that the attempts left fit before t's deadline.
func (e *engine) namelessDelay(t *task, d time.Duration, now time.Time) time.Duration {
	if !t.unnamed || t.Deadline.IsZero() {
		return d
	}
	const spare = time.Second // to wake up in time
	left := time.Duration(e.policy.MaxAttempts - t.tries)
	room := t.Deadline.Sub(now) - e.longest() - spare - (left-1)*e.policy.HandlerTimeout
	return max(min(d, room/left), 0)
}

// outOfTime dead-letters t, and reports so, if it has no name, has failed and has no time left for the next attempt.
func (e *engine) outOfTime(t *task, now time.Time) bool {
	if !t.unnamed || t.tries == 0 || !t.overdue(now, e.longest()) {
		return false
	}
	t.outcome.Cause = fmt.Errorf("consumer: no time is left for attempt %d of %d before the broker takes back a message without a name, whose attempts it would begin anew: %w",
		t.tries+1, e.policy.MaxAttempts, t.outcome.Cause)
	e.bury(t)
	return true
}
