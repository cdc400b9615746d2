package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/finish.lua
	finishLua string
	//go:embed lua/forget.lua
	forgetLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/lookup.lua
	lookupLua string
	//go:embed lua/remember.lua
	rememberLua string

	claimScript   = newScript("claim", claimLua)
	extendScript  = newScript("extend", extendLua)
	finishScript  = newScript("finish", finishLua)
	forgetScript  = newScript("forget", forgetLua)
	inspectScript = newScript("inspect", inspectLua)

	lookupScript   = newScript("lookup", lookupLua)
	rememberScript = newScript("remember", rememberLua)
)

// script is sent by its digest, and as a whole where the server does not know it: after a restart,
// SCRIPT FLUSH, or on a replica that was promoted.
type script struct{ name, source, sha string }

func newScript(name, source string) *script {
	source = recordLua + source
	sum := sha1.Sum([]byte(source))
	return &script{name: name, source: source, sha: hex.EncodeToString(sum[:])}
}

// send runs all calls, each with its own outcome in cmd. Its error is ctx's.
func (s *Store) send(ctx context.Context, sc *script, calls []*scriptCall) error {
	if err := s.exec(ctx, calls); err != nil {
		return err
	}
	var unknown []*scriptCall
	for _, c := range calls {
		if redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
			c.args[0], c.args[1] = "eval", sc.source
			unknown = append(unknown, c)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return s.exec(ctx, unknown)
}

// exec makes one round trip: on a Cluster one to each node, side by side.
func (s *Store) exec(ctx context.Context, calls []*scriptCall) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for _, c := range calls {
		c.cmd = redis.NewCmd(ctx, c.args...)
	}
	return await(ctx, func() { s.process(ctx, calls) })
}

func (s *Store) process(ctx context.Context, calls []*scriptCall) {
	if len(calls) == 1 {
		_ = s.client.Process(ctx, calls[0].cmd) // the error is in the command
		return
	}
	pipe := s.client.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.cmd)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
}

// await returns when f does, or with ctx's error when that ends first.
//
// The client reads a reply until its own ReadTimeout, not until ctx ends, unless
// ContextTimeoutEnabled is set, and never notices a cancellation. So f runs in a goroutine
// that is left behind when ctx ends first. It ends with the client's timeout at the latest, and
// touches nothing but its own commands, which nobody reads any more.
func await(ctx context.Context, f func()) error {
	if ctx.Done() == nil {
		f()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
