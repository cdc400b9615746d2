package outbox

import "time"

// SetClock replaces the clock of the process.
func (o *Outbox) SetClock(now func() time.Time) { o.clock = now }

// Statements are the texts of reading and writing back.
func (o *Outbox) Statements() (read, mark, fail, requeue, sweep string) {
	return o.text.strict, o.text.mark, o.text.fail, o.text.requeue, o.text.sweep
}
