package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestDrainLetsHandlersEndAndGivesTheRestBackUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := newGuard(t, s)
		b := kafkaLike()
		ms := messages(300, "")
		b.Publish(ms...)
		var ended atomic.Int64
		c := newConsumer(t, b, g, func(ctx context.Context, _ *consumer.Message) error {
			time.Sleep(2 * time.Second)
			ended.Add(1)
			return ctx.Err()
		}, &consumer.Options{Policy: consumer.Policy{Concurrency: 128}})
		stop := start(t, c)
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, stop())
		require.InDelta(t, 1, time.Since(begun).Seconds(), 0.1, "no longer than the handlers")
		stats := c.Stats()
		require.EqualValues(t, 128, stats.Done)
		require.EqualValues(t, 128, ended.Load())
		require.EqualValues(t, stats.Received-128, stats.GivenBack)
		require.Zero(t, stats.Running+stats.Waiting)
		for _, m := range ms {
			r, err := g.Inspect(t.Context(), work(m))
			if err == nil {
				require.Contains(t, []dedup.State{dedup.Done, dedup.Released}, r.State)
				require.Equal(t, 1, r.Attempt)
				require.Zero(t, r.Crashes)
			}
		}
		after := b.Drain(t, newConsumer(t, b, g, (&recorder{}).handle, nil))
		require.EqualValues(t, 172, after.Done, "nothing that was done comes again")
		require.Zero(t, after.Duplicates)
	})
}

func TestDrainTimeoutEndsContextsAndCountsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		b := kafkaLike()
		b.Publish(message("m1", ""))
		c := newConsumer(t, b, newGuard(t, s), func(ctx context.Context, _ *consumer.Message) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), consumer.ErrDrained)
			return ctx.Err()
		}, &consumer.Options{DrainTimeout: 3 * time.Second})
		stop := start(t, c)
		synctest.Wait()
		begun := time.Now()
		require.NoError(t, stop())
		require.InDelta(t, 3, time.Since(begun).Seconds(), 0.1)
		require.EqualValues(t, 1, c.Stats().GivenBack)
		r, err := newGuard(t, s).Inspect(t.Context(), work(message("m1", "")))
		require.NoError(t, err)
		require.Equal(t, dedup.Released, r.State)
		require.Equal(t, 1, r.Attempt)
	})
}

func TestDrainDoesNotWaitForeverForAHandlerThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		b := kafkaLike()
		b.Publish(message("m1", ""))
		hang := make(chan struct{})
		c := newConsumer(t, b, newGuard(t, s), func(context.Context, *consumer.Message) error { <-hang; return nil }, &consumer.Options{DrainTimeout: time.Second})
		stop := start(t, c)
		synctest.Wait()
		begun := time.Now()
		require.NoError(t, stop())
		require.Less(t, time.Since(begun), 10*time.Second)
		r, err := newGuard(t, s).Inspect(t.Context(), work(message("m1", "")))
		require.NoError(t, err)
		require.Equal(t, dedup.InProgress, r.State, "nothing is written for it: the lease does its work")
		close(hang)
	})
}

func TestDrainWhileTheStoreIsDownEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		b := kafkaLike()
		b.Publish(messages(10, "")...)
		c := newConsumer(t, b, newGuard(t, faults(func(string) bool { return down.Load() })), func(context.Context, *consumer.Message) error {
			down.Store(true)
			return nil
		}, &consumer.Options{DrainTimeout: 5 * time.Second})
		stop := start(t, c)
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, stop())
		require.Less(t, time.Since(begun), 15*time.Second)
		require.Zero(t, c.Stats().Done)
	})
}

func TestContextThatHasEndedRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b := kafkaLike()
		b.Publish(message("m1", ""))
		r := &recorder{}
		c := newConsumer(t, b, newGuard(t, memstore.New()), r.handle, nil)
		require.NoError(t, c.Run(ctx))
		require.Empty(t, r.all())
		require.ErrorContains(t, c.Run(t.Context()), "called before")
	})
}

func TestSourceThatDoesNotCloseInTimeIsAnErrorOfTheRun(t *testing.T) {
	for name, gone := range map[string]error{"drained": nil, "nothing to receive": errBoom} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource()
			s.closing = func(ctx context.Context) error {
				require.NoError(t, ctx.Err(), "the end of Run's context is where closing begins")
				<-ctx.Done()
				return ctx.Err()
			}
			s.receive = func() error { return gone }
			s.publish(message("m0", ""))
			c := newConsumer(t, s, newGuard(t, memstore.New()), (&recorder{}).handle, nil)
			stop := start(t, c)
			synctest.Wait()
			begun := time.Now()
			err := stop()
			require.InDelta(t, 10, time.Since(begun).Seconds(), 0.1, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.ErrorContains(t, err, "close the source", name)
			if gone != nil {
				require.ErrorIs(t, err, gone, "neither hides the other")
			}
			s.kept(t)
		})
	}
}

func TestMessageGivenUpDuringADrainIsDeadLetteredBeforeRunReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		s := newSource()
		refused := 0
		s.fail = func(w string, m *consumer.Message) error {
			if w == "dead letter" {
				if refused++; refused == 1 {
					return errBoom
				}
				require.Equal(t, dedup.Condemned, inspect(t, g, m.ID).State)
			}
			return nil
		}
		s.closing = func(context.Context) error {
			require.Equal(t, []string{"m0"}, s.said("ack"), "nothing is settled after Close")
			return nil
		}
		s.publish(message("m0", ""))
		c := newConsumer(t, s, g, func(ctx context.Context, _ *consumer.Message) error {
			time.Sleep(2 * time.Second)
			require.NoError(t, ctx.Err())
			return consumer.Permanent(errBoom)
		}, nil)
		stop := start(t, c)
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, stop())
		require.InDelta(t, 1.1, time.Since(begun).Seconds(), 0.01, "the handler's rest, and a second try at the dead letter")
		require.Equal(t, []string{"m0"}, s.said("dead letter"))
		require.EqualValues(t, 1, c.Stats().DeadLettered)
		require.Equal(t, dedup.Failed, inspect(t, g, "m0").State)
		require.Zero(t, s.left())
		s.kept(t)
	})
}
