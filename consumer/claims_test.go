package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestDuplicatesAreAcknowledgedWithoutRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var seen counter
		g, err := dedup.New("app", memstore.New(), &dedup.Options{
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})), Observe: seen.observe,
		})
		require.NoError(t, err)
		_, err = g.Do(t.Context(), work(message("done", "")), func(context.Context) error { return nil })
		require.NoError(t, err)
		c, err := g.Claim(t.Context(), work(message("dead", "")))
		require.NoError(t, err)
		require.NoError(t, c.FailFinal(t.Context(), errBoom))
		b := consumertest.NewBroker()
		b.Publish(message("done", ""), message("new", ""), message("new", ""), message("dead", ""))
		r := &recorder{}
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Equal(t, []string{"new"}, r.all())
		require.EqualValues(t, 1, stats.Done)
		require.EqualValues(t, 3, stats.Duplicates)
		require.Equal(t, map[string]int{"ack": 1, "duplicate": 1, "own_batch": 1, "dead_again": 1}, seen.causes("settle"))
		require.Equal(t, 1, seen.causes("claim")["duplicate"])

		b.Redeliver()
		stats = b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Len(t, r.all(), 1)
		require.EqualValues(t, 4, stats.Duplicates)
		require.Equal(t, map[string]int{"ack": 1, "duplicate": 3, "own_batch": 2, "dead_again": 2}, seen.causes("settle"))
		require.Equal(t, 3, seen.causes("claim")["duplicate"])
		require.Empty(t, log.String(), "a duplicate is nothing to be warned of")
	})
}

func TestWorkInProgressElsewhereIsHeldNeverAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		c, err := newGuard(t, s).Claim(t.Context(), work(message("m1", "lane")))
		require.NoError(t, err)
		b := kafkaLike()
		b.Publish(message("m1", "lane"), message("m2", "lane"), message("m3", "other"))
		r := &recorder{}
		k := newConsumer(t, b, newGuard(t, s), r.handle, nil)
		stop := start(t, k)
		time.Sleep(10 * time.Minute)
		require.Equal(t, []string{"m3"}, r.all(), "its lane waits, others do not")
		require.EqualValues(t, 2, k.Stats().Waiting)
		require.NoError(t, c.Fail(t.Context(), errBoom))
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"m3", "m1", "m2"}, r.all())
		require.NoError(t, stop())
		require.EqualValues(t, 3, k.Stats().Done)
	})
}

func TestWorkInProgressElsewhereGoesBackToABrokerThatCanPostpone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		c, err := newGuard(t, s).Claim(t.Context(), work(message("m1", "")))
		require.NoError(t, err)
		b := consumertest.NewBroker()
		b.Publish(message("m1", ""))
		time.AfterFunc(time.Minute, func() { _ = c.Complete(context.Background(), nil) })
		r := &recorder{}
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, s), r.handle, nil))
		require.Empty(t, r.all())
		require.EqualValues(t, 1, stats.Duplicates)
		require.Greater(t, stats.Retried, int64(1))
		require.Empty(t, b.DeadLetters(), "bounces are no attempts")
	})
}

func TestHeldMessagesTakeAQuarterOfTheSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.hold = 5 * time.Second
		store := memstore.New()
		g := newGuard(t, store)
		elsewhere := make(map[string]*dedup.Claim)
		held := messages(20, "")
		for _, m := range held {
			c, err := newGuard(t, store).Claim(t.Context(), work(m))
			require.NoError(t, err)
			elsewhere[m.ID] = c
		}
		s.publish(held...)
		r := &recorder{}
		c := newConsumer(t, s, g, r.handle, nil) // 16 slots
		stop := start(t, c)
		time.Sleep(time.Second)
		require.Len(t, s.said("retry"), 16, "beyond a quarter of the slots the broker keeps them")
		require.EqualValues(t, 4, c.Stats().Waiting)
		require.NoError(t, elsewhere["m0"].Complete(t.Context(), nil))
		require.NoError(t, elsewhere["m1"].Complete(t.Context(), nil))
		time.Sleep(time.Second)
		require.Len(t, s.said("ack"), 2)
		again := messages(24, "")[20:]
		for _, m := range again {
			c, err := newGuard(t, store).Claim(t.Context(), work(m))
			require.NoError(t, err)
			defer c.Abandon()
		}
		s.publish(again...)
		time.Sleep(time.Second)
		require.Len(t, s.said("retry"), 18, "two of the four places are free again")
		time.Sleep(5 * time.Second)
		require.Len(t, s.said("retry"), 22, "after Plan.Hold the broker gets these, too")
		require.Zero(t, c.Stats().Waiting)
		require.Empty(t, r.all())
		require.NoError(t, stop())
		for _, c := range elsewhere {
			c.Abandon()
		}
		s.kept(t)
	})
}

func TestLanesWhoseHeadsWaitForEachOthersFollowersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		third := newGuard(t, s)
		x, y := message("x", "lane"), message("y", "lane")
		cx, err := third.Claim(t.Context(), work(x))
		require.NoError(t, err)
		cy, err := third.Claim(t.Context(), work(y))
		require.NoError(t, err)
		r := &recorder{do: func(context.Context, *consumer.Message) error { time.Sleep(time.Second); return nil }}
		a, b := kafkaLike(), kafkaLike()
		a.Publish(x, y)
		b.Publish(y, x)
		stopA := start(t, newConsumer(t, a, newGuard(t, s), r.handle, nil))
		synctest.Wait()
		require.NoError(t, cy.Release(t.Context())) // for whoever asks first
		stopB := start(t, newConsumer(t, b, newGuard(t, s), r.handle, nil))
		synctest.Wait()
		require.NoError(t, cx.Release(t.Context()))
		time.Sleep(20 * time.Second)
		require.Equal(t, 1, r.times("x"))
		require.Equal(t, 1, r.times("y"))
		require.NoError(t, stopA())
		require.NoError(t, stopB())
	})
}

func TestTenThousandCopiesRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &deduptest.Faulty{Store: memstore.New()}
		var calls atomic.Int64
		f.Before = func(context.Context, string) error { calls.Add(1); return nil }
		b := consumertest.NewBroker()
		for range 10_000 {
			b.Publish(message("same", ""))
		}
		var shared int64 // calls by when everything that was received waits for the one that runs
		r := &recorder{do: func(context.Context, *consumer.Message) error {
			time.Sleep(time.Second)
			shared = calls.Load()
			return nil
		}}
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, f), r.handle, nil))
		require.Equal(t, []string{"same"}, r.all())
		require.EqualValues(t, 1, stats.Done)
		require.EqualValues(t, 9_999, stats.Duplicates)
		require.EqualValues(t, 1, shared, "copies in one process share a claim")
	})
}

func TestCopiesOfAFailingMessageDoNotAddAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		b.Publish(message("bad", "a"), message("bad", "b"), message("bad", "c"))
		r := &recorder{do: func(context.Context, *consumer.Message) error { return errBoom }}
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), r.handle, nil))
		require.Equal(t, 5, r.times("bad"))
		require.EqualValues(t, 1, stats.DeadLettered)
		require.EqualValues(t, 2, stats.Duplicates)
		require.Len(t, b.DeadLetters(), 1)
	})
}

func TestTwoMessagesUnderOneIDAreNeitherMergedNorBothRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		other := message("m1", "lane")
		other.Body = []byte("other content")
		b.Publish(message("m1", "lane"), other, message("m1", "lane"), other)
		r := &recorder{}
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Equal(t, []string{"m1"}, r.all())
		require.EqualValues(t, 1, stats.DeadLettered)
		require.EqualValues(t, 2, stats.Duplicates, "the copy of each")
		dead := b.DeadLetters()
		require.Len(t, dead, 1)
		require.Equal(t, other.Body, dead[0].Body)
		require.Contains(t, dead[0].DeadCause, "same ID, other content")

		b.Publish(dead...) // an operator means it
		r.forget()
		stats = b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Equal(t, []string{"m1"}, r.all())
		require.EqualValues(t, 1, stats.Done)
	})
}

func TestRedriveRunsAgainAndOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		b.Publish(message("m1", ""), message("m2", ""))
		broken := true
		r := &recorder{}
		r.do = func(_ context.Context, m *consumer.Message) error {
			if broken && m.ID == "m1" {
				return consumer.Permanent(fmt.Errorf("deep: %w", errBoom))
			}
			return nil
		}
		b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Equal(t, 1, r.times("m1"))
		dead := b.DeadLetters()
		require.Len(t, dead, 1)
		require.Equal(t, "1", dead[0].Headers[consumer.RedriveHeader])

		b.Publish(message("m1", "")) // a late copy without the number is no redrive
		broken = false
		b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Equal(t, 1, r.times("m1"))

		b.Publish(dead[0], dead[0])
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.Equal(t, 2, r.times("m1"))
		require.EqualValues(t, 1, stats.Done)
		require.EqualValues(t, 1, stats.Duplicates)
	})
}

// A redrive is no copy of the message that it stands for, though both be claimed in one call: each runs, or
// obeys the other's verdict.
func TestRedriveBesideItsOriginalIsNoCopyOfIt(t *testing.T) {
	bad := consumer.Permanent(errBoom)
	for name, c := range map[string]struct {
		before      error // word of the run before these two; nil: there was none
		first, then int   // redrive numbers
		word        error // of the first one's handler
		runs        []int
		causes      map[string]int
	}{
		"original fails for good":         {nil, 0, 1, bad, []int{0, 1}, map[string]int{"dead_letter": 1, "ack": 1}},
		"original is done":                {nil, 0, 1, nil, []int{0}, map[string]int{"ack": 1, "duplicate": 1}},
		"redrive fails for good":          {nil, 1, 0, bad, []int{1}, map[string]int{"dead_letter": 1, "dead_again": 1}},
		"late copy of what had failed":    {bad, 0, 1, nil, []int{1}, map[string]int{"dead_again": 1, "ack": 1}},
		"late copy is behind the redrive": {bad, 1, 0, nil, []int{1}, map[string]int{"ack": 1, "duplicate": 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen counter
			g, err := dedup.New("app", memstore.New(), &dedup.Options{Logger: quiet, Observe: seen.observe})
			require.NoError(t, err)
			if c.before != nil {
				done, err := g.Claim(t.Context(), work(message("m", "")))
				require.NoError(t, err)
				require.NoError(t, done.FailFinal(t.Context(), c.before))
			}
			first, then := message("m", "a"), message("m", "b")
			first.Headers = map[string]string{consumer.RedriveHeader: strconv.Itoa(c.first)}
			then.Headers = map[string]string{consumer.RedriveHeader: strconv.Itoa(c.then)}
			s := newSource()
			s.publish(first, then)
			var runs []int
			k := newConsumer(t, s, g, func(_ context.Context, m *consumer.Message) error {
				runs = append(runs, m.Redrive)
				time.Sleep(5 * time.Second)
				if m.Redrive == c.first {
					return c.word
				}
				return nil
			}, nil)
			stop := start(t, k)
			time.Sleep(time.Minute)
			require.NoError(t, stop())
			require.Equal(t, c.runs, runs, name)
			require.Len(t, s.said("dead letter"), c.causes["dead_letter"], name)
			require.Equal(t, c.causes, seen.causes("settle"), name)
			require.Zero(t, s.left())
			s.kept(t)
		})
	}
}

func TestTwoGroupsBothRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, err := dedup.New("billing", s, &dedup.Options{Logger: quiet})
		require.NoError(t, err)
		c, err := dedup.New("shipping", s, &dedup.Options{Logger: quiet})
		require.NoError(t, err)
		r := &recorder{}
		for _, g := range []*dedup.Guard{a, c} {
			b := kafkaLike()
			b.Publish(message("m1", ""))
			require.EqualValues(t, 1, b.Drain(t, newConsumer(t, b, g, r.handle, nil)).Done)
		}
		require.Equal(t, 2, r.times("m1"))
	})
}
