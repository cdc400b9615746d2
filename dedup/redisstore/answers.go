package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/idemq/idemq/dedup"
)

var errBadReply = errors.New("the script's reply makes no sense")

// foreignError is what an item gets whose key holds something else than a record.
func foreignError(k *dedup.Key, cause error) error {
	return fmt.Errorf("redisstore: key %x holds no record of this store: %w; it was left alone, and Forget removes it", *k, cause)
}

var errForeign = errors.New("another type, an unknown version or damaged bytes")

// readVerdicts takes apart the reply of the claim script, which says how it is made.
func readVerdicts(reply string, in []dedup.ClaimRequest, items []int, out []dedup.Verdict) error {
	c := cursor{rest: reply}
	now := int64(c.uint(7))
	for _, i := range items {
		switch letter := c.take(1); letter {
		case "A":
			out[i] = dedup.Verdict{State: dedup.Acquired, Epoch: uint64(now / 1000), Attempt: 1, Redrive: in[i].Redrive}
		case "X":
			out[i] = dedup.Verdict{State: dedup.Absent}
		case "F":
			out[i] = dedup.Verdict{Err: foreignError(&in[i].Key, errForeign)}
		case "M", "R", "N":
			left := time.Duration(c.uint(7)) * time.Millisecond
			r, err := decode(c.take(int(c.uint(4))))
			switch {
			case err != nil:
				return errBadReply
			case letter == "N":
				out[i] = dedup.Verdict{State: dedup.Mismatch, Redrive: int(r.redrive)}
			default:
				out[i] = r.verdict(letter == "M", now, left)
			}
		default:
			return errBadReply
		}
	}
	if c.short || c.rest != "" {
		return errBadReply
	}
	return nil
}

// letters takes apart the reply of the extend and finish scripts.
func (b *batch) letters(reply string, items []int, out []error) error {
	if len(reply) != len(items) {
		return errBadReply
	}
	for at, i := range items {
		switch reply[at] {
		case 'O':
			out[i] = nil
		case 'L':
			out[i] = dedup.ErrRecordLost
		case 'S':
			out[i] = dedup.ErrSuperseded
		case 'F':
			out[i] = foreignError(b.key(i), errForeign)
		default:
			return errBadReply
		}
	}
	return nil
}
