package redisstore

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
)

// Store keeps one string per key. It is safe for concurrent use, starts nothing and needs no
// Close; the client stays the caller's to close.
type Store struct {
	client  redis.UniversalClient
	cluster bool
	opts    Options
	unfit   error       // why this client or these options cannot be used at all
	warned  atomic.Bool // that Ping could not check everything
}

// Options tune a Store; nil is the default.
type Options struct {
	// Prefix of every key. Applications may share one: their keys differ all the same.
	// It must not contain braces, which choose Cluster slots. Default: "idemq:".
	Prefix string
	// AllowEviction accepts a maxmemory-policy that may drop records, and with them what was
	// done already. Default: Ping refuses it.
	AllowEviction bool
	// Logger gets what Ping cannot check, such as a policy that a managed service hides.
	// Default: slog.Default() as it is when New is called.
	Logger *slog.Logger
}

const defaultPrefix = "idemq:"

// New does no I/O. What is wrong with client or o is the error of every later call, and of
// [Store.Ping], which also checks the server.
func New(client redis.UniversalClient, o *Options) *Store {
	s := &Store{client: client}
	if o != nil {
		s.opts = *o
	}
	if s.opts.Prefix == "" {
		s.opts.Prefix = defaultPrefix
	}
	if s.opts.Logger == nil {
		s.opts.Logger = slog.Default()
	}
	_, s.cluster = client.(*redis.ClusterClient)
	s.unfit = checkSetUp(client, &s.opts)
	return s
}

// Claim implements dedup.Store.
func (s *Store) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	return s.run(ctx, &batch{
		script: claimScript, n: len(in),
		key:   func(i int) *dedup.Key { return &in[i].Key },
		check: func(i int) error { return checkClaim(&in[i]) },
		args:  func(p *packer, items []int) { packClaims(p, in, items) },
		fault: func(i int, err error) { out[i] = dedup.Verdict{Err: err} },
		answer: func(items []int, reply string) error {
			return readVerdicts(reply, in, items, out)
		},
	})
}

// Extend implements dedup.Store.
func (s *Store) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	b := &batch{
		script: extendScript, n: len(in),
		key:   func(i int) *dedup.Key { return &in[i].Key },
		check: func(i int) error { return checkHeld(&in[i].Held) },
		args:  func(p *packer, items []int) { packExtends(p, in, items) },
		fault: func(i int, err error) { out[i] = err },
	}
	b.answer = func(items []int, reply string) error { return b.letters(reply, items, out) }
	return s.run(ctx, b)
}

// Finish implements dedup.Store.
func (s *Store) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	b := &batch{
		script: finishScript, n: len(in),
		key:   func(i int) *dedup.Key { return &in[i].Key },
		check: func(i int) error { return checkFinish(&in[i]) },
		args:  func(p *packer, items []int) { packFinishes(p, in, items) },
		fault: func(i int, err error) { out[i] = err },
	}
	b.answer = func(items []int, reply string) error { return b.letters(reply, items, out) }
	return s.run(ctx, b)
}

// RecordBytes implements dedup.Sizer: key, value with fingerprint, and their entries in the server's two tables.
func (s *Store) RecordBytes() int { return 193 }

var (
	_ dedup.Store  = (*Store)(nil)
	_ dedup.Admin  = (*Store)(nil)
	_ dedup.Pinger = (*Store)(nil)
	_ dedup.Sizer  = (*Store)(nil)
)
