package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup/memstore"
)

// nameless runs a message without a name that always fails after took, for two minutes, and returns which attempts
// there were and what was said of the message.
func nameless(t *testing.T, p consumer.Policy, deadline, took time.Duration) (attempts []int, words []word) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		s.hold, s.deadline = 5*time.Second, deadline
		stop := start(t, newConsumer(t, s, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			attempts = append(attempts, m.Attempt)
			time.Sleep(took)
			return errBoom
		}, &consumer.Options{AllowNoID: true, Policy: p}))
		s.publish(consumer.Message{Body: []byte("poison")})
		time.Sleep(2 * time.Minute)
		require.NoError(t, stop())
		s.kept(t)
		words = s.all()
	})
	return attempts, words
}

func TestNamelessMessageIsTriedWithinOneDelivery(t *testing.T) {
	p := consumer.Policy{MaxAttempts: 4, HandlerTimeout: time.Second, Backoff: []time.Duration{time.Second, 5 * time.Second, 30 * time.Minute}}
	attempts, words := nameless(t, p, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, []int{1, 2, 3, 4}, attempts)
	require.Len(t, words, 2)
	require.Equal(t, "dead letter", words[0].what)
	require.EqualError(t, words[0].cause, "boom")
	require.Equal(t, "ack", words[1].what)
	require.False(t, words[1].late)
}

func TestNamelessMessageWithNoTimeForItsNextAttemptIsDeadLettered(t *testing.T) {
	p := consumer.Policy{MaxAttempts: 9, HandlerTimeout: 5 * time.Second, Backoff: []time.Duration{time.Second}}
	attempts, words := nameless(t, p, 22*time.Second, 4*time.Second)
	require.Equal(t, []int{1, 2, 3}, attempts)
	require.Len(t, words, 2)
	require.Equal(t, "dead letter", words[0].what)
	require.ErrorContains(t, words[0].cause, "no time is left for attempt 4 of 9")
	require.ErrorIs(t, words[0].cause, errBoom)
	require.Equal(t, "ack", words[1].what)
	require.False(t, words[1].late)
}
