package redisstore

import "github.com/idemq/idemq/dedup"

// Decode is decode for the fuzz test; ok is false where v is no record.
func Decode(v string) (state dedup.State, epoch uint64, ok bool) {
	r, err := decode(v)
	return r.state, r.epoch, err == nil
}

// Judge is what Ping says to INFO's answer.
func (s *Store) Judge(info string) (unknown []string, err error) { return s.judge(parseInfo(info)) }
