package rocketmq_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
)

func TestNewGroupBeginsAtTheBeginningOrByOptionAtTheEnd(t *testing.T) {
	w := newWorld(t, 2)
	w.publish(t, "", "old-1", "old-2", "old-3")
	early := w.sourceOf(t, w.group+"-early", []string{w.topic})
	ack(t, receive(t, early, 3)...)

	latest := func(o *rocketmq.SourceOptions) { o.FromLatest = true }
	late := w.sourceOf(t, w.group, []string{w.topic}, latest)
	nothing(t, late, 500*time.Millisecond)
	require.True(t, late.Connected())
	closeSource(t, late)
	w.publish(t, "", "new") // while nobody is there: the end was committed
	require.Equal(t, []string{"new"}, bodies(receive(t, w.source(t, latest), 1)))
}

// What was there before the group stays outside of it, also where the broker does not answer at the first look.
func TestNewGroupBeginsAtTheEndThoughTheBrokerWasAwayAtFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.publish(t, "", "old-1", "old-2", "old-3")
	far, broker := w.behind(t, 0)
	broker.away.Store(true)
	s := far.source(t, func(o *rocketmq.SourceOptions) { o.FromLatest = true })
	nothing(t, s, 10*time.Millisecond)
	require.Eventually(t, func() bool { return broker.dials.Load() > 2 }, eventually, 10*time.Millisecond, "it has not looked twice")
	broker.away.Store(false)
	require.Eventually(t, s.Connected, eventually, 10*time.Millisecond)
	w.publish(t, "", "new-1", "new-2")
	require.ElementsMatch(t, []string{"new-1", "new-2"}, bodies(receive(t, s, 2)))
}

// "Aa" and "BB" are one number to a broker, which compares hashes.
func TestTagsChooseMessages(t *testing.T) {
	w := newWorld(t, 1)
	for _, tag := range []string{"BB", "Aa", "other", "", "C", "Aa", "BB"} {
		m := w.messages("tag " + tag)[0]
		m.Headers = map[string]string{"TAGS": tag}
		if tag == "" {
			m.Headers = nil
		}
		send(t, w.publisher(t), m)
	}
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.Tags = " Aa || C" })
	ds := receive(t, s, 3)
	require.Equal(t, []string{"tag Aa", "tag C", "tag Aa"}, bodies(ds))
	require.NoError(t, ds[0].Retry(t.Context(), time.Second, nil))
	ack(t, ds[1:]...)
	again := receive(t, s, 1)
	require.Equal(t, []string{"tag Aa"}, bodies(again))
	ack(t, again...)
	closeSource(t, s)
	require.EqualValues(t, 7, w.committed(t, w.topic, 0), "what is left out need not be settled")
}

func TestNameServersByHostNameAndAsAList(t *testing.T) {
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	w.cluster.NameServers = []string{"127.0.0.1:1", byName(t, w.cluster.NameServers[0])} // nobody listens on the first
	ack(t, receive(t, w.source(t), 1)...)
	w.publish(t, "", "b")
}

func TestNamespaceKeepsNamesApart(t *testing.T) {
	w := newWorld(t, 0)
	inside := w
	inside.cluster.Namespace = "ns"
	w.create(t, w.topic, 1)
	inside.create(t, w.topic, 1)
	w.publish(t, "", "outside")
	inside.publish(t, "", "inside")
	s := inside.source(t)
	d := receive(t, s, 1)[0]
	require.Equal(t, "inside", string(d.Body))
	require.Equal(t, w.topic, d.Topic)
	require.Equal(t, "rocketmq/ns%"+w.group, d.Scope)
	require.NoError(t, d.Retry(t.Context(), time.Second, nil))
	d = receive(t, s, 1)[0]
	require.Equal(t, w.topic, d.Topic)
	require.NoError(t, d.DeadLetter(t.Context(), 1, errors.New("no")))
	ack(t, d)
	dead := receive(t, inside.sourceOf(t, w.group+"-graves", []string{w.group + "-dead"}), 1)[0]
	require.Equal(t, w.topic, dead.Headers[consumer.OriginHeader])
	require.NoError(t, inside.publisher(t).Redrive(t.Context(), dead.Message))
	require.Equal(t, "inside", string(receive(t, s, 1)[0].Body))
}

func TestDeliveriesAreBounded(t *testing.T) {
	w := newWorld(t, 2)
	w.publish(t, "", numbers(0, 400)...)
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.MaxInFlight = 10 })
	ds := receive(t, s, 20)
	nothing(t, s, 300*time.Millisecond)
	ack(t, ds[0])
	receive(t, s, 1)
	nothing(t, s, 100*time.Millisecond)
}

// One queue whose head waits must not keep the others from being read.
func TestStuckQueueHoldsNoOtherUp(t *testing.T) {
	w := newWorld(t, 2)
	s := w.source(t, func(o *rocketmq.SourceOptions) { o.Ordered, o.MaxInFlight = true, 10 })
	w.publish(t, "a", numbers(0, 1000)...)
	held := receive(t, s, 10)
	for _, key := range []string{"b", "c", "d", "e"} { // one of them goes to the other queue
		w.publish(t, key, key)
	}
	d := receive(t, s, 1)[0]
	require.NotEqual(t, held[0].Lane, d.Lane)
}

func TestCloseBeforeAndAfterAndTwice(t *testing.T) {
	w := newWorld(t, 1)
	s := w.source(t)
	closeSource(t, s)
	require.ErrorIs(t, s.Close(t.Context()), rocketmq.ErrClosed)
	_, err := s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, rocketmq.ErrClosed)
	_, err = w.source(t).Receive(t.Context(), 0)
	require.ErrorContains(t, err, "ask for at least one")
}

func TestMembersHaveIDsOfTheirOwn(t *testing.T) {
	ids := map[string]bool{}
	for range 100 {
		id := rocketmq.MemberID()
		require.False(t, ids[id], fmt.Sprint(id, " twice"))
		ids[id] = true
	}
}
