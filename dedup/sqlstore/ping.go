package sqlstore

import "context"

// Ping implements dedup.Pinger.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }
