package redisstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/idemq/idemq/dedup"
)

// The layout is in doc.go; lua/record.lua reads and writes the same.
const (
	version    = 1
	headLen    = 26 // version, state, flags, epoch, owner
	hasPrint   = 1 << 0
	hasLease   = 1 << 1
	hasCounts  = 1 << 2
	hasHolder  = 1 << 3
	hasError   = 1 << 4
	isAlone    = 1 << 5
	knownFlags = 1<<6 - 1
	maxEpoch   = 1<<53 - 1 // what a Lua number holds exactly
	maxText    = 1<<16 - 1 // length prefix of holder and error
)

// record is a decoded record.
type record struct {
	state                      dedup.State
	epoch                      uint64
	owner                      dedup.Owner
	fingerprint                dedup.Fingerprint
	lease                      int64 // deadline in us of the server's clock; 0: nobody holds it
	attempts, crashes, redrive uint32
	alone                      bool
	holder, lastError, result  string
}

var errNoRecord = errors.New("unknown version or damaged bytes")

// decode reads a record; the strings share v's memory. It fails for whatever the scripts cannot have written.
func decode(v string) (r record, err error) {
	if len(v) < headLen || v[0] != version || v[2] > knownFlags {
		return record{}, errNoRecord
	}
	c := cursor{rest: v[3:]}
	flags := v[2]
	r.state = dedup.State(v[1])
	r.epoch = c.uint(7)
	copy(r.owner[:], c.take(16))
	if flags&hasPrint != 0 {
		copy(r.fingerprint[:], c.take(16))
	}
	if flags&hasLease != 0 {
		r.lease = int64(c.uint(7))
	}
	if flags&hasCounts != 0 {
		r.attempts, r.crashes, r.redrive = uint32(c.uint(4)), uint32(c.uint(4)), uint32(c.uint(4))
	}
	if flags&hasHolder != 0 {
		r.holder = c.take(int(c.uint(2)))
	}
	if flags&hasError != 0 {
		r.lastError = c.take(int(c.uint(2)))
	}
	r.alone = flags&isAlone != 0
	r.result = c.rest
	leased := flags&hasLease != 0
	switch {
	case c.short, r.epoch > maxEpoch, r.result != "" && r.state != dedup.Done:
		return record{}, errNoRecord
	case r.state == dedup.InProgress && leased, r.state == dedup.Condemned:
	case r.state == dedup.Done, r.state == dedup.Retryable, r.state == dedup.Failed, r.state == dedup.Released:
		if leased {
			return record{}, errNoRecord
		}
	default:
		return record{}, errNoRecord
	}
	return r, nil
}

// cursor reads from the front; short is set once there was too little.
type cursor struct {
	rest  string
	short bool
}

func (c *cursor) take(n int) string {
	if n > len(c.rest) {
		c.short, c.rest = true, ""
		return ""
	}
	s := c.rest[:n]
	c.rest = c.rest[n:]
	return s
}

func (c *cursor) uint(n int) (v uint64) {
	for _, b := range []byte(c.take(n)) {
		v = v<<8 | uint64(b)
	}
	return v
}

func append7(b []byte, v uint64) []byte {
	var full [8]byte
	binary.BigEndian.PutUint64(full[:], v)
	return append(b, full[1:]...)
}

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// head is what precedes the epoch, and tail what follows the lease, in a record with these parts.
func head(state dedup.State, flags byte) []byte { return []byte{version, byte(state), flags} }

func tail(attempts, crashes, redrive int, holder, lastError string) (b []byte, flags byte) {
	if attempts != 0 || crashes != 0 || redrive != 0 {
		flags |= hasCounts
		for _, n := range [...]int{attempts, crashes, redrive} {
			b = binary.BigEndian.AppendUint32(b, uint32(n))
		}
	}
	if holder != "" {
		flags |= hasHolder
		b = appendText(b, holder)
	}
	if lastError != "" {
		flags |= hasError
		b = appendText(b, lastError)
	}
	return b, flags
}

// verdict answers a claim, as memstore does. mine: the asker is the owner; left: of the retention.
func (r *record) verdict(mine bool, now int64, left time.Duration) dedup.Verdict {
	v := dedup.Verdict{
		State: r.state, Epoch: r.epoch, Attempt: int(r.attempts) + 1, Crashes: int(r.crashes),
		Redrive: int(r.redrive), LastError: r.lastError,
	}
	owned := r.state == dedup.InProgress || r.state == dedup.Condemned
	switch {
	case r.state == dedup.InProgress && mine:
		v.State = dedup.Acquired
	case r.state == dedup.Condemned && mine && r.lease == 0:
		v.State = dedup.Released // this owner gave it back already
	case owned && !mine:
		v.State, v.Left = dedup.InProgress, time.Duration(r.lease-now)*time.Microsecond
	case r.state == dedup.Done:
		v.Left = left
		if r.result != "" {
			v.Result = []byte(r.result)
		}
	case r.state == dedup.Failed:
		v.Left = left
	}
	return v
}

func (r *record) inspect(k dedup.Key, expires time.Time) dedup.Record {
	d := dedup.Record{
		Key: k, State: r.state, Epoch: r.epoch, Attempt: int(r.attempts) + 1, Crashes: int(r.crashes), Redrive: int(r.redrive),
		Holder: r.holder, LastError: r.lastError, ClaimedAt: time.UnixMilli(int64(r.epoch)), Expires: expires,
	}
	if r.lease != 0 {
		d.LeaseUntil = time.UnixMicro(r.lease)
	}
	if r.result != "" {
		d.Result = []byte(r.result)
	}
	return d
}
