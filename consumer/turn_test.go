package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// spoilt is a Store that cannot write the outcome of one key while on, as of a record that
// somebody else has overwritten.
type spoilt struct {
	dedup.Store
	key dedup.Key
	on  atomic.Bool
}

func (s *spoilt) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if err := s.Store.Finish(ctx, in, out); err != nil {
		return err
	}
	for i := range in {
		if s.on.Load() && in[i].Key == s.key {
			out[i] = errBoom
		}
	}
	return nil
}

// keyed is a Store that takes note of the last key that was claimed.
type keyed struct {
	dedup.Store
	key dedup.Key
}

func (k *keyed) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	k.key = in[0].Key
	return k.Store.Claim(ctx, in, out)
}

func TestSuspectWhoseOutcomeCannotBeWrittenDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{Store: memstore.New()}
		crash(t, newGuard(t, k), 1, false, message("suspect", ""))
		store := &spoilt{Store: k.Store, key: k.key}
		store.on.Store(true)
		s, r := newSource(), &recorder{}
		stop := start(t, newConsumer(t, s, newGuard(t, store), r.handle, nil))
		s.publish(message("suspect", ""))
		synctest.Wait()
		require.Equal(t, []string{"suspect"}, r.all())

		s.publish(messages(20, "")...)
		time.Sleep(time.Minute)
		require.Len(t, s.said("ack"), 20, "the others go on")
		require.Equal(t, 1, r.times("suspect"))

		store.on.Store(false) // the record is mended
		time.Sleep(time.Minute)
		require.Contains(t, s.said("ack"), "suspect")
		require.NoError(t, stop())
		s.kept(t)
	})
}
