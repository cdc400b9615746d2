package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestReceivingIsFalseWhileTheSourceIsNotConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.connected.Store(false)
		c := newConsumer(t, s, newGuard(t, memstore.New()), (&recorder{}).handle, nil)
		require.False(t, c.Stats().Receiving, "before Run")
		stop := start(t, c)
		synctest.Wait()
		require.False(t, c.Stats().Receiving)
		s.connected.Store(true)
		require.True(t, c.Stats().Receiving)
		require.NoError(t, stop())
		require.False(t, c.Stats().Receiving)
	})
}

func TestSourceThatCannotReceiveEndsTheRunAfterADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		var gone atomic.Bool
		s.receive = func() error {
			if gone.Load() {
				return errors.New("topic is gone")
			}
			return nil
		}
		s.publish(messages(40, "lane")...)
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(context.Context, *consumer.Message) error {
			gone.Store(true)
			s.publish() // wakes Receive
			time.Sleep(5 * time.Second)
			return nil
		}, nil)
		require.ErrorContains(t, c.Run(t.Context()), "topic is gone")
		require.EqualValues(t, 1, c.Stats().Done)
		require.Equal(t, []string{"m0"}, s.said("ack"), "the running one ended")
		require.Equal(t, c.Stats().Received, sums(c.Stats()))
		s.kept(t)
	})
}

func TestLostSessionReleasesUnbegunClaimsAtOnceAndLetsTheRunningOneEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		s := newSource()
		ms := messages(30, "")
		s.publish(ms...)
		release := make(chan struct{})
		r := &recorder{do: func(context.Context, *consumer.Message) error { <-release; return nil }}
		c := newConsumer(t, s, g, r.handle, &consumer.Options{Policy: consumer.Policy{Concurrency: 1}})
		stop := start(t, c)
		synctest.Wait()
		s.connected.Store(false)
		s.mu.Lock() // the session is lost, and nothing comes again yet
		close(s.lost)
		s.lost, s.out = make(chan struct{}), nil
		s.mu.Unlock()
		synctest.Wait()
		running := r.all()[0]
		for _, m := range ms {
			want := dedup.Released
			if m.ID == running {
				want = dedup.InProgress
			}
			require.Equal(t, want, inspect(t, g, m.ID).State, m.ID)
		}
		s.publish(message(running, "")) // redelivered while it runs
		synctest.Wait()
		close(release)
		time.Sleep(time.Second)
		require.Equal(t, []string{running}, r.all())
		require.Equal(t, []string{running}, s.said("ack"), "as a duplicate, on the new session")
		require.EqualValues(t, 1, c.Stats().Duplicates)
		require.NoError(t, stop())
		s.kept(t)
	})
}

func TestZombiesDoNotBlockSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		s := newSource()
		hang := make(chan struct{})
		suspect := message("suspect", "")
		crash(t, g, 1, false, suspect)
		var alone atomic.Bool
		c := newConsumer(t, s, g, func(_ context.Context, m *consumer.Message) error {
			switch m.ID {
			case "hangs":
				<-hang
			case "suspect":
				alone.Store(true)
			}
			return nil
		}, &consumer.Options{Policy: consumer.Policy{HandlerTimeout: time.Second, Concurrency: 2}})
		stop := start(t, c)
		s.publish(message("hangs", ""))
		synctest.Wait()
		s.publish(suspect)
		time.Sleep(5 * time.Second)
		require.False(t, alone.Load(), "a handler that may still end is company")
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 1, c.Stats().Zombies)
		require.True(t, alone.Load())
		close(hang)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.EqualValues(t, 2, c.Stats().Done+c.Stats().Duplicates)
		s.kept(t)
	})
}

// It kills its process each time it runs: once beside its batch-mates, then alone.
func TestKillerRunsAtMostMaxCrashesTimesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New())
		killer := message("m0", "")
		for crashes := 1; crashes <= 4; crashes++ {
			crash(t, g, 1, crashes > 1, killer)
			s := newSource()
			s.publish(killer)
			ran := make(chan struct{}, 1)
			c := newConsumer(t, s, g, func(ctx context.Context, _ *consumer.Message) error {
				ran <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}, &consumer.Options{DrainTimeout: time.Second})
			stop := start(t, c)
			time.Sleep(time.Second)
			require.Equal(t, crashes <= 3, len(ran) == 1, "after %d crashes", crashes)
			require.NoError(t, stop())
			require.Equal(t, crashes > 3, len(s.said("dead letter")) == 1, "after %d crashes", crashes)
		}
	})
}

func TestCountersAddUpAtEveryMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.hold = 5 * time.Second
		s.publish(messages(200, "")...)
		s.publish(messages(100, "lane")...)
		c := newConsumer(t, s, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			time.Sleep(time.Duration(len(m.ID)) * 7 * time.Millisecond)
			switch m.ID[len(m.ID)-1] {
			case '3':
				return errBoom
			case '7':
				return consumer.Permanent(errBoom)
			}
			return nil
		}, nil)
		stop := start(t, c)
		for i := range 20_000 {
			st := c.Stats()
			require.Equal(t, st.Received, sums(st), "%+v", st)
			require.GreaterOrEqual(t, st.Waiting, int64(0))
			require.LessOrEqual(t, st.Running, int64(16))
			if i == 500 {
				s.lose()
			}
			time.Sleep(3 * time.Millisecond)
		}
		require.NoError(t, stop())
		require.Zero(t, s.left())
		require.Equal(t, c.Stats().Received, sums(c.Stats()))
		s.kept(t)
	})
}

func TestWaitingForTheStoreIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tries := 0
		store := pinged{memstore.New(), func() error {
			if tries++; tries <= 5 {
				return errBoom
			}
			return nil
		}}
		g, err := dedup.New("app", store, &dedup.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		s := newSource()
		s.publish(messages(1, "")...)
		c := newConsumer(t, s, g, (&recorder{}).handle, nil)
		stop := start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.EqualValues(t, 1, c.Stats().Done)
		require.Equal(t, 5, strings.Count(log.String(), "store does not answer"))
		require.Contains(t, log.String(), "boom")
	})
}

func TestApplicationIDsOfOneEncodingUnderBusinessKeyNeverMismatch(t *testing.T) {
	for name, business := range map[string]bool{"message ID": false, "business key": true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource()
			for _, body := range []string{"\x0a\x05\x0a\x01a\x10\x01", "\x0a\x05\x0a\x01b\x10\x02"} {
				s.publish(consumer.Message{ID: "t/0/1", Topic: "t", Body: []byte(body), Headers: map[string]string{"message-id": "p-1"}})
			}
			rule := consumer.HeaderID("message-id")
			rule.BusinessKey = business
			r := &recorder{}
			c := newConsumer(t, s, newGuard(t, memstore.New()), r.handle, &consumer.Options{MessageID: []consumer.IDRule{rule}})
			stop := start(t, c)
			time.Sleep(time.Second)
			require.NoError(t, stop())
			require.Len(t, r.all(), 1, name)
			dead := 1
			if business {
				dead = 0
			}
			require.Len(t, s.said("dead letter"), dead, name)
			for _, w := range s.all() {
				if w.what == "dead letter" {
					require.ErrorIs(t, w.cause, dedup.ErrMismatch)
					require.ErrorContains(t, w.cause, fmt.Sprintf("%q", "p-1"))
				}
			}
		})
	}
}
