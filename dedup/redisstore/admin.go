package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
)

// Inspect implements dedup.Admin. ClaimedAt is the epoch read as a time: that of the last claim.
func (s *Store) Inspect(ctx context.Context, k dedup.Key) (dedup.Record, error) {
	reply, err := s.one(ctx, inspectScript, &k)
	if err != nil {
		return dedup.Record{}, err
	}
	if reply == "" {
		return dedup.Record{}, dedup.ErrNotFound
	}
	c := cursor{rest: reply}
	var expires time.Time
	if ms := c.uint(7); ms > 0 {
		expires = time.UnixMilli(int64(ms))
	}
	if c.short {
		return dedup.Record{}, fmt.Errorf("redisstore: inspect %x: %w", k, errBadReply)
	}
	r, err := decode(c.rest)
	if err != nil {
		return dedup.Record{}, foreignError(&k, err)
	}
	return r.inspect(k, expires), nil
}

// Forget implements dedup.Admin. It also removes what is no record, and, even while a lease
// runs, what [Store.Remember] has kept and the tokens of those who are about to.
func (s *Store) Forget(ctx context.Context, k dedup.Key) error {
	if err := s.forgetFront(ctx, &k); err != nil {
		return err
	}
	reply, err := s.one(ctx, forgetScript, &k)
	switch {
	case err != nil:
		return err
	case reply == "B":
		return dedup.ErrInProgress
	}
	return nil
}

// one runs a script on one key.
func (s *Store) one(ctx context.Context, sc *script, k *dedup.Key) (string, error) {
	if s.unfit != nil {
		return "", s.unfit
	}
	b := &batch{script: sc, n: 1, key: func(int) *dedup.Key { return k }, args: func(*packer, []int) {}}
	c := s.newCall(b, []int{0})
	if err := s.send(ctx, sc, []*scriptCall{c}); err != nil {
		return "", fmt.Errorf("redisstore: %s %x: %w", sc.name, *k, err)
	}
	reply, err := c.cmd.Text()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return "", foreignError(k, err)
	case err != nil:
		return "", fmt.Errorf("redisstore: %s %x: %w", sc.name, *k, err)
	}
	return reply, nil
}
