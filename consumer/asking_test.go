package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// distant is a Store whose claims take a while, and which knows how many they were for.
type distant struct {
	*memstore.Store
	takes   time.Duration
	largest atomic.Int64
	claimed atomic.Int64 // acquired, and not finished
	most    atomic.Int64
}

func (s *distant) Claim(ctx context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	time.Sleep(s.takes)
	s.largest.Store(max(s.largest.Load(), int64(len(in))))
	err := s.Store.Claim(ctx, in, out)
	for _, v := range out {
		if v.State == dedup.Acquired {
			s.most.Store(max(s.most.Load(), s.claimed.Add(1)))
		}
	}
	return err
}

func (s *distant) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	s.claimed.Add(-int64(len(in)))
	return s.Store.Finish(ctx, in, out)
}

// After a kill all that its owner had claimed is in progress elsewhere for a while. Workers have
// nothing to do then, but more claims would not give them anything.
func TestWorkInProgressElsewhereDoesNotRaiseWhatIsClaimedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &distant{Store: memstore.New(), takes: time.Millisecond}
		all := messages(2000, "")
		works, held := make([]dedup.Work, len(all)), make([]*dedup.Claim, len(all))
		for i, m := range all {
			works[i] = work(m)
		}
		require.NoError(t, newGuard(t, s.Store).ClaimBatch(t.Context(), works, held))
		b := kafkaLike()
		b.Publish(all...)
		stop := start(t, newConsumer(t, b, newGuard(t, s), (&recorder{}).handle, nil))
		time.Sleep(20 * time.Second)
		require.EqualValues(t, 32, s.largest.Load())
		require.NoError(t, stop())
		for _, c := range held {
			c.Abandon()
		}
	})
}

// What stands claimed when its owner dies is suspect afterwards, and runs one by one. So what was
// right while handlers were quick must not stay when they are slow.
func TestSlowHandlersAreClaimedLittleAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &distant{Store: memstore.New(), takes: 10 * time.Millisecond}
		b := kafkaLike()
		b.Publish(messages(10_000, "")...)
		r := &recorder{do: func(_ context.Context, m *consumer.Message) error {
			if m.Topic == "slow" {
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		}}
		c := newConsumer(t, b, newGuard(t, s), r.handle, nil)
		stop := start(t, c)
		time.Sleep(time.Second)
		require.EqualValues(t, 10_000, c.Stats().Done)
		slow := messages(16_000, "")[10_000:]
		for i := range slow {
			slow[i].Topic = "slow"
		}
		b.Publish(slow...)
		time.Sleep(12 * time.Second)
		s.most.Store(0)
		begun := c.Stats().Done
		time.Sleep(5 * time.Second)
		require.NoError(t, stop())
		require.Greater(t, c.Stats().Done-begun, int64(5*16*20-32), "no slot of 16 stands idle")
		require.LessOrEqual(t, s.most.Load(), int64(16+32), "those that run, and two rounds more")
	})
}

func TestQuickHandlersAreClaimedFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &distant{Store: memstore.New(), takes: 10 * time.Millisecond}
		b := kafkaLike()
		b.Publish(messages(20_000, "")...)
		begun := time.Now()
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, s), (&recorder{}).handle, nil))
		require.EqualValues(t, 20_000, stats.Done)
		require.Greater(t, s.largest.Load(), int64(256))
		require.Less(t, time.Since(begun), time.Second, "in claims of 32 it takes three")
	})
}

// The backlog of a slow lane came first, and would fill all the room for claims: the others would
// get a claim for each head by itself.
func TestBacklogOfOneLaneTakesNoClaimsFromTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &distant{Store: memstore.New(), takes: 20 * time.Millisecond}
		b := kafkaLike()
		b.Publish(messages(1000, "slow")...)
		for i := range 100 {
			for _, lane := range []string{"b", "c", "d"} {
				b.Publish(message(fmt.Sprint(lane, i), lane))
			}
		}
		var quick atomic.Int64
		c := newConsumer(t, b, newGuard(t, s), func(_ context.Context, m *consumer.Message) error {
			if m.Key == "slow" {
				time.Sleep(time.Second)
				return nil
			}
			quick.Add(1)
			time.Sleep(10 * time.Millisecond)
			return nil
		}, nil)
		stop := start(t, c)
		time.Sleep(1500 * time.Millisecond)
		require.EqualValues(t, 300, quick.Load(), "a second of handlers in each lane")
		require.NoError(t, stop())
	})
}
