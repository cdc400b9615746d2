package kafka_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/idemq/idemq/brokers/kafka"
)

func TestCloseIsPromptOnAnIdlePartition(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		waits := watchFetches(w)
		s := w.source(t)
		nothing(t, s, 700*time.Millisecond)
		start := time.Now()
		closeSource(t, s)
		require.Less(t, time.Since(start), 8*time.Second)
		if w.fake != nil { // a fetch under way holds Close and rebalances up, and those last RebalanceTimeout, 2 s
			require.Positive(t, waits.Load(), "nothing was fetched")
			require.LessOrEqual(t, waits.Load(), int64(1000))
		}
		_, err := s.Receive(t.Context(), 1)
		require.ErrorIs(t, err, kafka.ErrClosed)
		require.ErrorIs(t, s.Close(t.Context()), kafka.ErrClosed)
	})
}

func TestNothingIsDeliveredAfterClose(t *testing.T) {
	c := fakeKafka(t, 1)
	produce(t, client(t, c.ListenAddrs()), 0, numbers(0, 10)...)
	s := newSource(t, c.ListenAddrs())
	ack(t, receive(t, s, 1)...) // the others came with it
	closeSource(t, s)
	ds, err := s.Receive(within(t, eventually), 10)
	require.ErrorIs(t, err, kafka.ErrClosed)
	require.Empty(t, ds)

	s = sourceOf(t, c.ListenAddrs(), "latest", []string{"t"}, func(o *kafka.SourceOptions) { o.FromLatest = true })
	waiting := make(chan error, 1)
	ctx := within(t, eventually)
	go func() {
		_, err := s.Receive(ctx, 1)
		waiting <- err
	}()
	require.Eventually(t, s.Connected, eventually, 10*time.Millisecond)
	closeSource(t, s)
	require.ErrorIs(t, <-waiting, kafka.ErrClosed)
}

// watchFetches is the longest, in ms, that a fetch lets the fake wait for data.
func watchFetches(w world) *atomic.Int64 {
	longest := new(atomic.Int64)
	if w.fake == nil {
		return longest
	}
	w.fake.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.fake.KeepControl()
		longest.Store(max(longest.Load(), int64(r.(*kmsg.FetchRequest).MaxWaitMillis)))
		return nil, nil, false
	})
	return longest
}

func TestCloseEndsWithItsContextWhenTheClientHangs(t *testing.T) {
	c := fakeKafka(t, 1)
	produce(t, client(t, c.ListenAddrs()), 0, "a")
	soon := func(o *kafka.SourceOptions) { o.SessionTimeout = time.Second } // is it taken for gone
	s := newSource(t, c.ListenAddrs(), soon)
	ds := receive(t, s, 1)
	var mute atomic.Bool
	mute.Store(true)
	for _, k := range []kmsg.Key{kmsg.OffsetCommit, kmsg.LeaveGroup, kmsg.Heartbeat, kmsg.FindCoordinator} {
		c.ControlKey(int16(k), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return nil, nil, mute.Load() // never answered
		})
	}
	ack(t, ds...)
	start := time.Now()
	err := s.Close(within(t, 500*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "kafka: close kafka/g: the client did not end in time")
	require.Less(t, time.Since(start), 8*time.Second)
	mute.Store(false)
	require.Equal(t, []string{"a"}, bodies(receive(t, newSource(t, c.ListenAddrs(), soon), 1)), "its acknowledgement is missing")
}

func TestCloseDoesNotWaitForOtherMembersToJoin(t *testing.T) {
	t.Parallel()
	c := fakeKafka(t, 1)
	c.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, nil, true
	})
	s := newSource(t, c.ListenAddrs(), func(o *kafka.SourceOptions) { o.SessionTimeout, o.RebalanceTimeout = time.Minute, time.Minute })
	nothing(t, s, 300*time.Millisecond)
	closeSource(t, s) // in 10 s
}
