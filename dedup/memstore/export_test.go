package memstore

import (
	"time"

	"github.com/idemq/idemq/dedup"
)

// SetNow makes now the Store's clock.
func (s *Store) SetNow(now func() time.Time) { s.now = now }

// Fork returns a Store that remembers the same, with the given clock.
func (s *Store) Fork(now func() time.Time) *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &Store{records: make(map[dedup.Key]*record, len(s.records)), now: now}
	for k, r := range s.records {
		c := *r
		f.records[k] = &c
	}
	return f
}

// Len is how many records are kept, expired ones included.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}
