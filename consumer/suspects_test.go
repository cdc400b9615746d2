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

func TestSuspectsRunAloneAndHealthyOnesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		suspects, healthy := messages(10, ""), messages(40, "")
		for i := range healthy {
			healthy[i].ID = "healthy-" + healthy[i].ID
		}
		crash(t, g, 1, false, suspects...)
		r := &recorder{}
		r.do = func(ctx context.Context, m *consumer.Message) error {
			if m.ID[0] == 'm' {
				require.EqualValues(t, 1, r.live.Load(), "%s ran in company", m.ID)
			}
			time.Sleep(time.Second)
			if m.ID[0] == 'm' {
				require.EqualValues(t, 1, r.live.Load(), "something began beside %s", m.ID)
			}
			return nil
		}
		b.Publish(append(suspects, healthy...)...)
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.EqualValues(t, 50, stats.Done)
		require.Greater(t, r.most.Load(), int64(8), "healthy messages run side by side")
		require.Empty(t, b.DeadLetters())
	})
}

func TestKillerIsDeadLetteredWithoutAnotherRunAndItsBatchMatesAreDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		ms := messages(51, "lane")
		crash(t, g, 1, false, ms...) // all were claimed by the process that died first
		crash(t, g, 3, true, ms[20]) // then the killer killed alone
		b.Publish(ms...)
		r := &recorder{}
		stats := b.Drain(t, newConsumer(t, b, g, r.handle, nil))
		require.EqualValues(t, 50, stats.Done)
		require.EqualValues(t, 1, stats.DeadLettered)
		require.Zero(t, r.times("m20"))
		dead := b.DeadLetters()
		require.Len(t, dead, 1)
		require.Equal(t, "m20", dead[0].Headers[consumer.IDHeader])
		require.Contains(t, dead[0].DeadCause, "MaxCrashes 3")
	})
}

func TestCrashesInCompanyCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		ms := messages(20, "lane")
		crash(t, g, 10, false, ms...)
		b.Publish(ms...)
		require.EqualValues(t, 20, b.Drain(t, newConsumer(t, b, g, (&recorder{}).handle, nil)).Done)
		require.Empty(t, b.DeadLetters())
	})
}

func TestManySuspectsInManyLanesAllEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		var ms []consumer.Message
		for _, lane := range []string{"a", "b", "c", "d"} {
			for _, m := range messages(75, lane) {
				m.ID = lane + m.ID
				ms = append(ms, m)
			}
		}
		crash(t, g, 1, false, ms...)
		b.Publish(ms...)
		r := &recorder{do: func(context.Context, *consumer.Message) error { time.Sleep(10 * time.Millisecond); return nil }}
		begun := time.Now()
		require.EqualValues(t, 300, b.Drain(t, newConsumer(t, b, g, r.handle, nil)).Done)
		require.EqualValues(t, 1, r.most.Load())
		require.Less(t, time.Since(begun), time.Minute)
		last := map[byte]int{}
		for i, id := range r.all() { // each lane in its order
			require.GreaterOrEqual(t, i, last[id[0]])
			last[id[0]] = i
		}
	})
}

func TestHungHandlerIsTakenOverAndItsLateWordFenced(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, memstore.New())
			b := kafkaLike()
			hang := make(chan struct{})
			r := &recorder{}
			r.do = func(ctx context.Context, m *consumer.Message) error {
				if m.ID == "m0" && r.times("m0") == 1 {
					<-hang // whatever its context says
				}
				return nil
			}
			b.Publish(messages(5, "lane")...)
			c := newConsumer(t, b, g, r.handle, &consumer.Options{Policy: consumer.Policy{HandlerTimeout: time.Second}})
			stop := start(t, c)
			time.Sleep(10 * time.Second)
			require.EqualValues(t, 1, c.Stats().Zombies)
			require.Zero(t, c.Stats().Done, "its lane waits for it")
			if late { // it comes back before anybody took over: its word counts
				close(hang)
				time.Sleep(time.Minute)
				require.Equal(t, 1, r.times("m0"))
				require.EqualValues(t, 4, c.Stats().Done)
				require.EqualValues(t, 1, c.Stats().Duplicates)
			} else {
				time.Sleep(2 * time.Minute)
				require.Equal(t, 2, r.times("m0"))
				require.EqualValues(t, 5, c.Stats().Done)
				close(hang) // superseded by a done record: nothing happens
				time.Sleep(time.Second)
			}
			require.Zero(t, c.Stats().Zombies)
			require.Empty(t, b.DeadLetters())
			require.NoError(t, stop())
			require.Equal(t, c.Stats().Received, sums(c.Stats()))
		})
	}
}

func TestAsManyHungHandlersAsSlotsEndTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		b := kafkaLike()
		hang := make(chan struct{})
		b.Publish(messages(3, "")...)
		c := newConsumer(t, b, g, func(context.Context, *consumer.Message) error { <-hang; return nil },
			&consumer.Options{Policy: consumer.Policy{HandlerTimeout: time.Second, Concurrency: 3}})
		err := c.Run(t.Context())
		require.ErrorContains(t, err, "3 handlers of test do not end")
		require.EqualValues(t, 3, c.Stats().Zombies)
		close(hang)
	})
}

// Beats have a connection of their own, so they can be down alone; then no suspect can be marked as
// running alone. It neither asks without a pause nor keeps the others from running meanwhile.
func TestSuspectThatCannotBeMarkedAsAloneLetsTheOthersRun(t *testing.T) {
	for _, hold := range []time.Duration{-1, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var down atomic.Bool
			var claims atomic.Int64
			f := faults(func(m string) bool {
				time.Sleep(time.Millisecond)
				if m == "Claim" {
					claims.Add(1)
				}
				return m == "Extend" && down.Load()
			})
			g := newGuard(t, f)
			suspect := message("suspect", "lane")
			crash(t, g, 1, false, suspect)
			down.Store(true)
			s := newSource()
			s.hold = hold
			s.publish(suspect)
			s.publish(messages(20, "other")...)
			r := &recorder{}
			c := newConsumer(t, s, g, r.handle, nil)
			stop := start(t, c)
			time.Sleep(time.Minute)
			require.EqualValues(t, 20, c.Stats().Done)
			require.Zero(t, r.times("suspect"))
			require.Less(t, claims.Load(), int64(100), "about once a second")
			down.Store(false)
			time.Sleep(5 * time.Second)
			require.NoError(t, stop())
			require.Equal(t, 1, r.times("suspect"))
			require.EqualValues(t, 21, c.Stats().Done)
			for _, w := range s.all() {
				if w.what == "retry" {
					require.ErrorIs(t, w.cause, dedup.ErrInProgress, "no attempt")
				}
			}
			s.kept(t)
		})
	}
}
