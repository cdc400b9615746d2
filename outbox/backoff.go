package outbox

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is the wait after the nth failure in a row, a quarter of it by chance.
func (r *Relay) backoff(n int) time.Duration {
	d := r.opts.Backoff
	for ; n > 1 && d < r.opts.MaxBackoff; n-- {
		d *= 2
	}
	d = min(d, r.opts.MaxBackoff)
	return d - d/4 + rand.N(d/4+1)
}

// sleep reports whether ctx lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
