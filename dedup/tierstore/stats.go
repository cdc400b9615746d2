package tierstore

import "sync/atomic"

// Stats counts what has happened since the Store was made.
type Stats struct {
	Answered uint64 // claims that the front answered, for which the decider was not asked
	Asked    uint64 // claims that the decider was asked for
	Kept     uint64 // copies that the front keeps
	Refused  uint64 // copies that it did not keep, because their token stood there no more
	Faults   uint64 // calls of the front that failed, and items that it could not read
	Skipped  uint64 // claims and copies for which the front was not asked, because it was being left alone
}

type counts struct{ answered, asked, kept, refused, faults, skipped atomic.Uint64 }

// Stats returns the counts, each by itself up to date.
func (s *Store) Stats() Stats {
	c := &s.counts
	return Stats{
		Answered: c.answered.Load(), Asked: c.asked.Load(), Kept: c.kept.Load(),
		Refused: c.refused.Load(), Faults: c.faults.Load(), Skipped: c.skipped.Load(),
	}
}
