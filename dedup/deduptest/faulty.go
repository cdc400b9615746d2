package deduptest

import (
	"context"

	"github.com/idemq/idemq/dedup"
)

// Faulty is a Store whose calls can be made to fail, to take long and to lose their answers.
// The method names given to Before and After are "Claim", "Extend" and "Finish". Optional ports
// of the wrapped Store are reached through the field only.
type Faulty struct {
	dedup.Store
	// Before runs before a call. An error is returned in place of the call, which the wrapped
	// Store then never sees; a delay is its own. Default: none.
	Before func(ctx context.Context, method string) error
	// After runs after a call that succeeded. On an error the call has taken effect, its answers
	// are wiped and the error is returned: a reply lost on the way. Default: none.
	After func(ctx context.Context, method string) error
}

// Claim implements dedup.Store.
func (f *Faulty) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	return f.call(ctx, "Claim", func() error { return f.Store.Claim(ctx, in, out) }, func() { clear(out) })
}

// Extend implements dedup.Store.
func (f *Faulty) Extend(ctx context.Context, in []dedup.ExtendRequest, out []error) error {
	return f.call(ctx, "Extend", func() error { return f.Store.Extend(ctx, in, out) }, func() { clear(out) })
}

// Finish implements dedup.Store.
func (f *Faulty) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	return f.call(ctx, "Finish", func() error { return f.Store.Finish(ctx, in, out) }, func() { clear(out) })
}

func (f *Faulty) call(ctx context.Context, method string, do func() error, wipe func()) error {
	if f.Before != nil {
		if err := f.Before(ctx, method); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if f.After != nil {
		if err := f.After(ctx, method); err != nil {
			wipe()
			return err
		}
	}
	return nil
}
