package bench

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

// TestRoundTripsAtFullLoad counts store calls and Redis commands, which do not depend on how
// fast the machine is today.
func TestRoundTripsAtFullLoad(t *testing.T) {
	const n = 40_000
	e := newEnv(t)
	kafka := e.of("kafka")
	topic, drop := kafka.fill(t, n, n)
	defer drop()
	var commands commandCount
	e.rdb.AddHook(&commands)
	var claims, claimed, finishes, finished, beats atomic.Int64
	quiet := slog.New(slog.DiscardHandler)
	guard, err := dedup.New(newName(), redisstore.New(e.rdb, nil), &dedup.Options{Logger: quiet, Observe: func(ev dedup.Event) {
		if ev.Name != "store" {
			return
		}
		calls, items := &claims, &claimed
		switch ev.Cause {
		case "finish":
			calls, items = &finishes, &finished
		case "extend":
			calls, items = &beats, new(atomic.Int64)
		}
		calls.Add(1)
		items.Add(int64(ev.N))
	}})
	require.NoError(t, err)
	require.NoError(t, guard.Ping(t.Context())) // the scripts are known now
	commands.n.Store(0)
	require.NoError(t, guard.Ping(t.Context()))
	ping := commands.n.Swap(0) // Run does that once
	w := newStopwatch(n)
	c, err := consumer.New(kafka.source(t, topic), guard, func(context.Context, *consumer.Message) error { w.tick(); return nil }, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	w.wait(t)
	cancel()
	require.NoError(t, <-ended)

	require.EqualValues(t, n, finished.Load())
	require.GreaterOrEqual(t, claimed.Load()/claims.Load(), int64(8), "messages per claim call")
	require.GreaterOrEqual(t, finished.Load()/finishes.Load(), int64(8), "messages per finish call")
	calls := claims.Load() + finishes.Load() + beats.Load()
	const firstTimes = 3 // one a script, where the server has yet to learn it
	require.LessOrEqual(t, commands.n.Load()-ping, calls+firstTimes, "a batch is one command")
	t.Logf("%d messages: %d claim calls of %d, %d finish calls of %d messages in the mean, %d beats", n,
		claims.Load(), claimed.Load()/claims.Load(), finishes.Load(), finished.Load()/finishes.Load(), beats.Load())
}

// commandCount counts the scripts that a client has run. A question that the server answers with
// NOSCRIPT ran nothing: it happens once a script, and whenever another test flushes them.
type commandCount struct{ n atomic.Int64 }

func (c *commandCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.count(cmd)
		return err
	}
}

func (c *commandCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return err
	}
}

func (c *commandCount) count(cmd redis.Cmder) {
	if strings.HasPrefix(cmd.Name(), "eval") && !redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		c.n.Add(1)
	}
}
