package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
)

// What follows makes a Store the front of a tierstore.Store: not the one who decides, but the one
// who repeats what was decided. What it keeps has names of its own, Prefix, "front:", the hash tag
// and the key, so that it is never taken for a claim. A value is a token or a copy; numbers are big-endian:
//
//	0  version: 1
//	1  1: a token, 16 bytes: 9 random ones, and the server's clock in microseconds when it was placed
//	1  2: a copy of a verdict Done:
//	   2   flags: which of the following parts there are, in this order; 2 is exact
//	   3   epoch, 7 bytes
//	   10  1  fingerprint, 16 bytes; exact: the record has this one, else this one or none
//	       4  redrive number, 4 bytes
//	       result, the rest
const (
	frontKind    = "front:"
	frontVersion = 1
	kindToken    = 1
	kindCopy     = 2
	copyHead     = 10
	copyPrint    = 1 << 0
	copyExact    = 1 << 1
	copyRedrive  = 1 << 2
)

// tokenLife is how long a token stands: work that takes longer leaves no copy, and the first
// duplicate does.
const tokenLife = 10 * time.Minute

const randomLen = 9 // of a token; the rest is the clock

// Lookup answers Done, or Mismatch against what is done, from the copies that Remember has kept. For
// every other item out[i] stays zero and a token is placed, which tokens[i] then has; it is zero
// where none was placed: nobody can remember there now. An item whose value cannot be read has
// Err. It never answers that something is free or in progress.
//
// The token takes the place of every earlier one, and of a copy that has no fingerprint where the
// asker has one.
func (s *Store) Lookup(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens [][16]byte) error {
	random := make([]byte, randomLen*len(in))
	rand.Read(random)
	return s.run(ctx, &batch{
		script: lookupScript, n: len(in), kind: frontKind,
		key:   func(i int) *dedup.Key { return &in[i].Key },
		check: func(int) error { return nil },
		args: func(p *packer, items []int) {
			p.text(millis(tokenLife))
			for _, i := range items {
				p.buf = append(p.buf, random[randomLen*i:randomLen*(i+1)]...)
				p.print(&in[i].Fingerprint)
				p.end()
			}
		},
		fault: func(i int, err error) { out[i], tokens[i] = dedup.Verdict{Err: err}, [16]byte{} },
		answer: func(items []int, reply string) error {
			return readLookups(reply, in, items, random, out, tokens)
		},
	})
}

// readLookups takes apart the reply of the lookup script, which says how it is made.
func readLookups(reply string, in []dedup.ClaimRequest, items []int, random []byte, out []dedup.Verdict, tokens [][16]byte) error {
	c := cursor{rest: reply}
	now := c.take(7)
	for _, i := range items {
		switch c.take(1) {
		case "T":
			copy(tokens[i][copy(tokens[i][:], random[randomLen*i:randomLen*(i+1)]):], now)
		case "U":
		case "M":
			out[i] = dedup.Verdict{State: dedup.Mismatch, Redrive: int(c.uint(4))}
		case "F":
			out[i] = dedup.Verdict{Err: foreignError(&in[i].Key, errForeign)}
		case "D":
			left := time.Duration(c.uint(7)) * time.Millisecond
			v, err := decodeCopy(c.take(int(c.uint(4))))
			if err != nil {
				out[i] = dedup.Verdict{Err: foreignError(&in[i].Key, err)}
				continue
			}
			v.Left = left
			out[i] = v
		default:
			return errBadReply
		}
	}
	if c.short || c.rest != "" {
		return errBadReply
	}
	return nil
}

// Remember keeps copies of the items, which are Done in the database that decides, where tokens[i] is
// what still stands there. A copy stands for Retention, counted from the moment at which
// its token was placed. An item without an Owner repeats an answer to somebody else: its fingerprint is
// then the record's, unless that one has none. It returns how many it kept.
func (s *Store) Remember(ctx context.Context, in []dedup.FinishRequest, tokens [][16]byte) (kept int, err error) {
	letters := make([]byte, len(in))
	var fault error
	err = s.run(ctx, &batch{
		script: rememberScript, n: len(in), kind: frontKind,
		key:   func(i int) *dedup.Key { return &in[i].Key },
		check: func(i int) error { return checkCopy(&in[i]) },
		args: func(p *packer, items []int) {
			for _, i := range items {
				p.bytes(tokens[i][:])
				p.text(strconv.FormatInt(in[i].Retention.Milliseconds(), 10)) // rounded down: never above what is left
				p.copyOf(&in[i])
			}
		},
		fault: func(_ int, err error) { fault = err },
		answer: func(items []int, reply string) error {
			if len(reply) != len(items) {
				return errBadReply
			}
			for at, i := range items {
				letters[i] = reply[at]
			}
			return nil
		},
	})
	for _, letter := range letters {
		if letter == 'K' {
			kept++
		}
	}
	if err == nil {
		err = fault
	}
	return kept, err
}

func checkCopy(q *dedup.FinishRequest) error {
	if q.State != dedup.Done {
		return fmt.Errorf("redisstore: what is %v is not remembered", q.State)
	}
	return checkHeld(&q.Held)
}

// copyOf appends the copy of q.
func (p *packer) copyOf(q *dedup.FinishRequest) {
	var flags byte
	if printFlag(&q.Fingerprint) != 0 {
		flags |= copyPrint
		if q.Owner != (dedup.Owner{}) {
			flags |= copyExact
		}
	}
	if q.Redrive != 0 {
		flags |= copyRedrive
	}
	p.buf = append(p.buf, frontVersion, kindCopy, flags)
	p.buf = append7(p.buf, q.Epoch)
	p.print(&q.Fingerprint)
	if q.Redrive != 0 {
		p.buf = binary.BigEndian.AppendUint32(p.buf, uint32(q.Redrive))
	}
	p.buf = append(p.buf, q.Result...)
	p.end()
}

var errNoCopy = errors.New("damaged bytes")

// decodeCopy reads a copy as the verdict that it repeats: attempts and crashes start anew with Done.
func decodeCopy(v string) (dedup.Verdict, error) {
	if len(v) < copyHead || v[0] != frontVersion || v[1] != kindCopy || v[2] > copyPrint|copyExact|copyRedrive {
		return dedup.Verdict{}, errNoCopy
	}
	flags, c := v[2], cursor{rest: v[3:]}
	d := dedup.Verdict{State: dedup.Done, Epoch: c.uint(7), Attempt: 1}
	if flags&copyPrint != 0 {
		c.take(16)
	}
	if flags&copyRedrive != 0 {
		d.Redrive = int(c.uint(4))
	}
	if c.short || d.Epoch > maxEpoch {
		return dedup.Verdict{}, errNoCopy
	}
	if c.rest != "" {
		d.Result = []byte(c.rest)
	}
	return d, nil
}

// forgetFront removes copy and token.
func (s *Store) forgetFront(ctx context.Context, k *dedup.Key) error {
	if s.unfit != nil {
		return s.unfit
	}
	cmd := redis.NewCmd(ctx, "del", string(appendKey(nil, s.opts.Prefix+frontKind, k)))
	if err := await(ctx, func() { _ = s.client.Process(ctx, cmd) }); err != nil {
		return fmt.Errorf("redisstore: forget the copy of %x: %w", *k, err)
	}
	if err := cmd.Err(); err != nil {
		return fmt.Errorf("redisstore: forget the copy of %x: %w", *k, err)
	}
	return nil
}

// flushPage is how many keys one step of FlushFront looks at.
const flushPage = 1000

// FlushFront removes all copies and tokens with this Prefix, and no claims, and returns how many it removed.
// It belongs after a restore or a fail-over of the database that decides to an earlier state, before
// consumers resume: what was copied since is no longer true. It walks over all keys of the
// servers, so it takes its time; one that was interrupted is run again.
func (s *Store) FlushFront(ctx context.Context) (removed int, err error) {
	if s.unfit != nil {
		return 0, s.unfit
	}
	var n atomic.Int64
	if c, ok := s.client.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return s.flushNode(ctx, node, &n) })
	} else {
		err = s.flushNode(ctx, s.client, &n)
	}
	if err != nil {
		err = fmt.Errorf("redisstore: flush copies: %w", err)
	}
	return int(n.Load()), err
}

// flushNode removes key by key: on a Cluster the keys of one command must share a slot.
func (s *Store) flushNode(ctx context.Context, node redis.Cmdable, n *atomic.Int64) error {
	pattern := escapeGlob(s.opts.Prefix+frontKind) + "{*"
	var at uint64
	for {
		keys, next, err := node.Scan(ctx, at, pattern, flushPage).Result()
		if err != nil {
			return err
		}
		cmds, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, k := range keys {
				p.Unlink(ctx, k)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, cmd := range cmds {
			n.Add(cmd.(*redis.IntCmd).Val())
		}
		if at = next; at == 0 {
			return nil
		}
	}
}

// escapeGlob makes a pattern that matches s itself.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(s)
}
