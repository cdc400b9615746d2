package memstore

import "time"

// SetNow makes now the Store's clock.
func (s *Store) SetNow(now func() time.Time) { s.now = now }
