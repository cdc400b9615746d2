package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

// demonstrate runs the whole demonstration, its children being real processes.
func demonstrate(t *testing.T, env map[string]string, args ...string) (columns map[string]tally, progress string) {
	t.Helper()
	var out, log bytes.Buffer
	begun := time.Now()
	err := run(t.Context(), append(args, "--json"), func(k string) string { return env[k] }, &out, &log)
	require.NoError(t, err, "%s\n%s", &log, &out)
	t.Logf("%v in %v", args, time.Since(begun).Round(time.Millisecond))
	var all []tally
	require.NoError(t, json.Unmarshal(out.Bytes(), &all), "stdout has nothing but JSON")
	require.Len(t, all, 3)
	for _, c := range all {
		require.Equal(t, slices.Contains(args, "--outbox"), c.Outbox != nil)
	}
	columns = make(map[string]tally)
	for _, c := range all {
		columns[c.Subject] = c
	}
	return columns, log.String()
}

// lines counts the progress lines that have all of parts.
func lines(progress string, parts ...string) (n int) {
	for line := range strings.Lines(progress) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			n++
		}
	}
	return n
}

func requireDemonstrated(t *testing.T, columns map[string]tally, progress string, kills int) {
	t.Helper()
	naive, safe, once := columns[setnxSubject], columns[idemqSubject], columns[txSubject]
	require.Positive(t, naive.Lost)
	require.Zero(t, naive.DeadLettered)
	require.Zero(t, safe.Lost)
	require.Positive(t, safe.DeadLettered)
	require.Positive(t, safe.Retried)
	require.GreaterOrEqual(t, safe.TakenOver, 2*kills, "kills before the effect and in the window")
	require.Equal(t, lines(progress, "idemq: kill -9", inWindow.String()), safe.Doubled)
	require.Equal(t, kills, safe.Doubled)
	require.Equal(t, safe.Doubled, safe.DoubledInWindow)
	require.Zero(t, once.Lost)
	require.Zero(t, once.Doubled)
	require.Equal(t, safe.DeadLettered, once.DeadLettered)
	require.Positive(t, once.Retried)
	require.GreaterOrEqual(t, once.TakenOver, 2*kills)
	require.Equal(t, kills, lines(progress, txSubject+": kill -9", inWindow.String()))
	for subject, c := range columns {
		if c.Outbox == nil {
			require.Equal(t, naive.Published, c.Published)
		} else {
			requireRelayed(t, &c, lines(progress, subject+": kill -9", beforeWriteBack.String()))
		}
		for _, p := range []point{beforeEffect, inWindow, beforeAck} {
			require.Equal(t, kills, lines(progress, subject+": kill -9", p.String()), "the same kills for all")
		}
	}
}

// requireRelayed: each kill before the write-back has a batch published again, nothing else has, and no consumer takes
// one of these copies for work.
func requireRelayed(t *testing.T, c *tally, kills int) {
	t.Helper()
	p := c.Outbox
	require.Positive(t, kills)
	require.Positive(t, p.RolledBack)
	require.Zero(t, p.RolledBackSeen)
	require.Equal(t, p.Committed, p.Relayed)
	require.GreaterOrEqual(t, p.RelayedTwice, kills)
	require.LessOrEqual(t, p.RelayedTwice, kills*relayBatch)
	require.Equal(t, p.Relayed+p.RelayedTwice, c.Published)
}

func TestDemonstrationAddsUp(t *testing.T) {
	for seed := 1; seed <= 3; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			columns, progress := demonstrate(t, nil, "--seed", fmt.Sprint(seed))
			requireDemonstrated(t, columns, progress, 3)
		})
	}
}

func TestDemonstrationThroughTheOutboxAddsUp(t *testing.T) {
	t.Parallel()
	columns, progress := demonstrate(t, nil, "--outbox", "--seed", "1")
	requireDemonstrated(t, columns, progress, 3)
	for subject, c := range columns {
		require.Equal(t, 200, c.Outbox.Committed)
		require.Equal(t, 30, c.Outbox.RolledBack)
		for _, p := range []point{beforePublish, beforeWriteBack} {
			require.Equal(t, 2, lines(progress, subject+": kill -9", p.String()))
		}
	}
}

func TestSmallDemonstrationPrintsItsTable(t *testing.T) {
	t.Parallel()
	var out, log bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--orders", "20"}, func(string) string { return "" }, &out, &log), "%s", &log)
	require.Regexp(t, `setnx loop +idemq +idemq in tx`, out.String())
	require.Contains(t, out.String(), "idemq lost none. It did 1 twice")
	require.Contains(t, out.String(), "that window is closed: 1 children were killed in it")
}

func TestDemonstrationOnRealServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ broker, store, more string }{
		{"rabbitmq", "redis", ""}, {"rocketmq", "redis", "--outbox"}, {"kafka", "postgres", ""}, {"rabbitmq", "mysql", "--outbox"}, {"kafka", tierName, ""},
	} {
		t.Run(c.broker+" "+c.store, func(t *testing.T) {
			at := realServers(t, c.broker)
			kind, err := kindOf(c.broker)
			require.NoError(t, err)
			env := map[string]string{kind.variable: strings.Join(at.Brokers, ",")}
			switch c.store {
			case "postgres":
				env[postgresVar.name] = testenv.PostgreSQL(t)
			case "mysql":
				env[mysqlVar.name] = testenv.MySQL(t)
			case tierName:
				env[mysqlVar.name], env[redisVar.name] = testenv.MySQL(t), at.Redis
			default:
				env[redisVar.name] = at.Redis
			}
			args := []string{"--broker", c.broker, "--store", c.store, "--orders", "100", "--seed", "4"}
			if c.more != "" {
				args = append(args, c.more)
			}
			columns, progress := demonstrate(t, env, args...)
			requireDemonstrated(t, columns, progress, 2)
		})
	}
}

// realServers are the shared ones.
func realServers(t *testing.T, kind string) servers {
	at := servers{Kind: kind, Redis: testenv.Redis(t)}
	switch kind {
	case "kafka":
		at.Brokers = testenv.Kafka(t)
	case "rabbitmq":
		at.Brokers = []string{testenv.RabbitMQ(t)}
	case "rocketmq":
		at.Brokers = testenv.RocketMQ(t)
	default:
		t.Fatalf("no test servers of kind %q", kind)
	}
	return at
}

func TestInterruptedDemonstrationEndsItsChildren(t *testing.T) {
	e, err := startEmbedded(servers{})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b, err := e.broker()
	require.NoError(t, err)
	defer b.close()
	s := newSchedule(1, 50)
	tr := newTrial(idemqSubject, "interrupted", s, e.servers, b, newProgress(writer(func(b []byte) { cancel() })), nil) // at the first kill
	require.ErrorIs(t, tr.run(ctx), context.Canceled)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	require.Empty(t, tr.running)
}

type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }
