package redisstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
)

// hashTags is how many Cluster slots the keys use, and so the most calls that one batch costs.
const hashTags = 64

// maxKeys bounds one call: a Lua function returns at most about 8,000 values.
const maxKeys = 4096

// batch is one call of the port, whatever its kind.
type batch struct {
	script *script
	n      int
	kind   string // between the prefix and the rest of the keys' names
	key    func(i int) *dedup.Key
	check  func(i int) error
	args   func(p *packer, items []int)
	fault  func(i int, err error)                // this item got no answer
	answer func(items []int, reply string) error // an error: the reply makes no sense
}

// run sends b and hands out the answers. Its error means that nothing is known about any item.
func (s *Store) run(ctx context.Context, b *batch) error {
	if s.unfit != nil {
		return s.unfit
	}
	items := make([]int, 0, b.n)
	for i := range b.n {
		if err := b.check(i); err != nil {
			b.fault(i, err)
			continue
		}
		items = append(items, i)
	}
	if len(items) == 0 {
		return ctx.Err()
	}
	calls := s.split(b, items)
	if err := s.send(ctx, b.script, calls); err != nil {
		return fmt.Errorf("redisstore: %s of %d: %w", b.script.name, b.n, err)
	}
	calls = s.splitFurther(ctx, b, calls)
	failed := 0
	var err error
	for _, c := range calls {
		reply, e := c.cmd.Text()
		if e == nil {
			e = b.answer(c.items, reply)
		}
		if e != nil {
			failed++
			// The script may have run all the same: only the same owner's next call tells.
			err = fmt.Errorf("redisstore: %s of %d: %w: %w", b.script.name, len(c.items), dedup.ErrUnavailable, e)
			for _, i := range c.items {
				b.fault(i, err)
			}
		}
	}
	if failed < len(calls) || len(items) < b.n {
		return nil
	}
	return err
}

// scriptCall is one run of a script, with keys of one hash tag on a Cluster.
type scriptCall struct {
	items []int
	args  []any // EVALSHA's; the name and the first argument change where the script is unknown
	cmd   *redis.Cmd
}

// split makes the calls for items.
func (s *Store) split(b *batch, items []int) []*scriptCall {
	if !s.cluster && len(items) <= maxKeys {
		return []*scriptCall{s.newCall(b, items)}
	}
	var calls []*scriptCall
	var tags [hashTags][]int
	for _, i := range items {
		t := 0
		if s.cluster {
			t = int(tagOf(b.key(i)))
		}
		tags[t] = append(tags[t], i)
		if len(tags[t]) == maxKeys {
			calls, tags[t] = append(calls, s.newCall(b, tags[t])), nil
		}
	}
	for _, of := range tags {
		if len(of) > 0 {
			calls = append(calls, s.newCall(b, of))
		}
	}
	return calls
}

// splitFurther repeats calls that were not run because their slot is on the move, key by key:
// while some keys of a call are on the old master and some on the new one, neither can run it,
// but each key alone is found by redirection.
func (s *Store) splitFurther(ctx context.Context, b *batch, calls []*scriptCall) []*scriptCall {
	var out, single []*scriptCall
	for _, c := range calls {
		if len(c.items) < 2 || !redis.HasErrorPrefix(c.cmd.Err(), "TRYAGAIN") {
			out = append(out, c)
			continue
		}
		for at := range c.items {
			single = append(single, s.newCall(b, c.items[at:at+1]))
		}
	}
	if len(single) == 0 {
		return calls
	}
	if err := s.send(ctx, b.script, single); err != nil {
		return calls // the TRYAGAIN stands
	}
	return append(out, single...)
}

// newCall packs items: the keys, then the arguments.
func (s *Store) newCall(b *batch, items []int) *scriptCall {
	p := packer{buf: make([]byte, 0, len(items)*(len(s.opts.Prefix)+96)+256), ends: make([]int, 0, 2*len(items)+16)}
	prefix := s.opts.Prefix + b.kind
	for _, i := range items {
		p.buf = appendKey(p.buf, prefix, b.key(i))
		p.end()
	}
	b.args(&p, items)
	return &scriptCall{items: items, args: p.finish("evalsha", b.script.sha, strconv.Itoa(len(items)))}
}

// tagOf is the hash tag of k: keys are hashes, so they spread evenly.
func tagOf(k *dedup.Key) byte { return k[0] % hashTags }

// appendKey appends the name of k's record.
func appendKey(b []byte, prefix string, k *dedup.Key) []byte {
	const hex = "0123456789abcdef"
	t := tagOf(k)
	b = append(b, prefix...)
	b = append(b, '{', hex[t>>4], hex[t&15], '}')
	return append(b, k[:]...)
}

// packer gathers many short arguments in one piece of memory.
type packer struct {
	buf  []byte
	ends []int
}

func (p *packer) end() { p.ends = append(p.ends, len(p.buf)) }

func (p *packer) bytes(b []byte) {
	p.buf = append(p.buf, b...)
	p.end()
}

func (p *packer) text(args ...string) {
	for _, s := range args {
		p.buf = append(p.buf, s...)
		p.end()
	}
}

// finish returns the arguments after those given. They are pointers into one slice, which saves
// an allocation for each.
func (p *packer) finish(first ...any) []any {
	all, from := string(p.buf), 0
	parts := make([]string, len(p.ends))
	args := append(make([]any, 0, len(first)+len(parts)), first...)
	for i, to := range p.ends {
		parts[i] = all[from:to]
		args = append(args, &parts[i])
		from = to
	}
	return args
}
