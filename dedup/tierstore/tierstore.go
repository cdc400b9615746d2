package tierstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Decider is what decides; *sqlstore.Store is one.
type Decider interface {
	dedup.TxStore
	dedup.Admin
	dedup.Pinger
	dedup.Sweeper
}

// Token is what Lookup left for Remember. The zero Token is none.
type Token = [16]byte

// Front is what answers duplicates; *redisstore.Store is one. Its methods are called concurrently, must
// return soon after ctx ends, and must not write to out or tokens after that. They keep nothing of
// what they are given.
type Front interface {
	// Lookup answers out[i] as Done, or as Mismatch where both fingerprints are set, from what
	// Remember has kept. For every other item it leaves out[i] zero and places a new token, before
	// it returns, which it puts into tokens[i]; zero where it placed none. An item that it cannot read
	// has Err. A returned error means that nothing is known, and no token may be used.
	Lookup(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict, tokens []Token) error
	// Remember keeps in[i], which is Done, if tokens[i] still stands there, in one step with the look at
	// it, and lets it go no later than Retention after that token was placed. A token serves once.
	// An item with an Owner is that owner's own verdict: the record has its fingerprint, if
	// it has one. An item without repeats an answer to an asker: the record has the asker's fingerprint or none.
	Remember(ctx context.Context, in []dedup.FinishRequest, tokens []Token) (kept int, err error)
	// Forget removes what was kept, and the token, so that nobody can remember by it any more.
	Forget(ctx context.Context, k dedup.Key) error
	// Ping returns an error that wraps dedup.ErrUnsafeStore where waiting cannot help.
	Ping(ctx context.Context) error
}

// Options tune a Store; nil is the default.
type Options struct {
	// Timeout bounds each claim's and verdict's call of the front, and so what a slow one can add to a claim, and to a finish after
	// its verdict stands. A call of the front takes at most half of the time that its caller has left, so that the decider
	// can still be asked: a Guard gives a claim a quarter of Options.Lease, 5 s at most. Default: 100 ms.
	Timeout time.Duration
	// Pause is how long the front is left alone after three calls in a row have failed; then one
	// call tries again. Default: 1 s.
	Pause time.Duration
	// MaxResult is the longest result, in bytes, that is copied to the front. The decider answers duplicates of
	// work with a longer one. Default: 64 KiB.
	MaxResult int
	// Logger hears when the front is left alone, and when it is back. Default: slog.Default() as it is
	// when the Store is made.
	Logger *slog.Logger
}

const (
	defaultTimeout   = 100 * time.Millisecond
	defaultPause     = time.Second
	defaultMaxResult = 64 << 10
)

func (o *Options) filled() Options {
	var f Options
	if o != nil {
		f = *o
	}
	if f.Timeout == 0 {
		f.Timeout = defaultTimeout
	}
	if f.Pause == 0 {
		f.Pause = defaultPause
	}
	if f.MaxResult == 0 {
		f.MaxResult = defaultMaxResult
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	return f
}

// Store has every port of its Decider. It is safe for concurrent use, starts nothing and needs no Close.
type Store struct {
	decider Decider
	front   Front
	opts    Options
	unfit   error // why this store cannot be used at all
	breaker breaker
	held    heldTokens
	counts  counts
}

// New returns the two-level store with the default options. It does no I/O. What is wrong with its parts, or with options, is
// the error of every later call, [Store.Ping] included.
func New(decider Decider, front Front) *Store { return NewWithOptions(decider, front, nil) }

// NewWithOptions is New with options.
func NewWithOptions(decider Decider, front Front, o *Options) *Store {
	s := &Store{decider: decider, front: front, opts: o.filled()}
	if err := s.check(); err != nil {
		s.unfit = fmt.Errorf("tierstore: %w: %w", dedup.ErrUnsafeStore, err)
	}
	s.breaker = breaker{pause: s.opts.Pause, log: s.opts.Logger}
	return s
}

func (s *Store) check() error {
	switch {
	case s.decider == nil:
		return errors.New("decider is nil; pass the store that decides, such as what sqlstore.New returned")
	case s.front == nil:
		return errors.New("front is nil; pass the fast store, such as what redisstore.New returned")
	case s.opts.Timeout < 0:
		return fmt.Errorf("Options.Timeout %v is negative; leave it zero for %v", s.opts.Timeout, defaultTimeout)
	case s.opts.Pause < 0:
		return fmt.Errorf("Options.Pause %v is negative; leave it zero for %v", s.opts.Pause, defaultPause)
	case s.opts.MaxResult < 0:
		return fmt.Errorf("Options.MaxResult %d is negative; leave it zero for %d bytes", s.opts.MaxResult, defaultMaxResult)
	}
	return nil
}

// RecordBytes implements dedup.Sizer: of the decider's row and the front's copy, as far as they know.
func (s *Store) RecordBytes() int {
	n := 0
	for _, level := range []any{s.decider, s.front} {
		if sizer, ok := level.(dedup.Sizer); ok && s.unfit == nil {
			n += sizer.RecordBytes()
		}
	}
	return n
}

// Extend implements dedup.Store. It is the decider's alone.
func (s *Store) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	if s.unfit != nil {
		return s.unfit
	}
	return s.decider.Extend(ctx, in, out)
}

// Inspect implements dedup.Admin. It is the decider's alone.
func (s *Store) Inspect(ctx context.Context, k dedup.Key) (dedup.Record, error) {
	if s.unfit != nil {
		return dedup.Record{}, s.unfit
	}
	return s.decider.Inspect(ctx, k)
}

// Forget implements dedup.Admin: in the decider, then in the front. Where only the first succeeded
// duplicates may still be answered from the front, so that is an error, and Forget is to be repeated.
func (s *Store) Forget(ctx context.Context, k dedup.Key) error {
	if s.unfit != nil {
		return s.unfit
	}
	if err := s.decider.Forget(ctx, k); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	if err := s.front.Forget(ctx, k); err != nil {
		return fmt.Errorf("tierstore: forget %x: it is forgotten where it is decided, but its copy may still answer; repeat this: %w", k, err)
	}
	return nil
}

// forgetTimeout is how long an operator waits for a front that does not answer.
const forgetTimeout = 2 * time.Second

// pingTimeout is how long a start waits for a front that does not answer.
const pingTimeout = 2 * time.Second

// Ping implements dedup.Pinger. The decider must be in order. A front that cannot be reached is logged
// only, since it answers as soon as it is there; one that is set up so that it can never work is an error.
func (s *Store) Ping(ctx context.Context) error {
	if s.unfit != nil {
		return s.unfit
	}
	if err := s.decider.Ping(ctx); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := s.front.Ping(bounded)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, errors.Is(err, dedup.ErrUnsafeStore):
		return fmt.Errorf("tierstore: the front: %w", err)
	}
	s.opts.Logger.Warn("tierstore: the front does not answer; until it does, the decider is asked for everything", "err", err)
	return nil
}

// SweepBatch implements dedup.Sweeper: the front forgets by itself.
func (s *Store) SweepBatch(ctx context.Context) (deleted int, err error) {
	if s.unfit != nil {
		return 0, s.unfit
	}
	return s.decider.SweepBatch(ctx)
}

var (
	_ Decider     = (*Store)(nil)
	_ dedup.Sizer = (*Store)(nil)
)
