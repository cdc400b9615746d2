package rabbitmq_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
)

// The server's channel process sends a quorum queue 32 acknowledgements at once and keeps the
// others to itself until the queue has applied those; a channel that is closed then loses them.
func TestCloseRightAfterManyAcksLosesNone(t *testing.T) {
	w := newWorld(t)
	p := w.publisher(t, nil)
	const n = 500
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = outbox.Message{ID: strconv.Itoa(i), Topic: w.queue}
	}
	for range 10 {
		for _, err := range publish(t, p, ms...) {
			require.NoError(t, err)
		}
		s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Prefetch = n })
		var all []consumer.Delivery
		for len(all) < n {
			ds, err := s.Receive(within(t, eventually), n)
			require.NoError(t, err)
			all = append(all, ds...)
		}
		for _, d := range all {
			require.NoError(t, d.Ack(t.Context()))
		}
		require.NoError(t, s.Close(within(t, eventually)))
		require.Zero(t, len(w.look(t, w.queue)), "acknowledged messages come again")
	}
}

// Another consumer stands by. It must not be given what comes later while the first is still
// closing, and holds what comes first.
func TestExclusiveQueueKeepsItsOrderWhenItsConsumerCloses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(top *rabbitmq.Topology) { top.Exclusive = true })
	exclusive := func(o *rabbitmq.SourceOptions) { o.Exclusive, o.Prefetch = true, 8 }
	const n = 200
	w.publishRaw(t, numbers(0, n)...)
	var got []string
	s := w.source(t, exclusive)
	for len(got) < n {
		next := w.source(t, exclusive)
		standing := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan []consumer.Delivery, 1)
		ds := receive(t, s, 1)
		go func() {
			ds, err := next.Receive(ctx, 1)
			first <- ds
			standing <- err
		}()
		require.Eventually(t, next.Connected, eventually, 5*time.Millisecond)
		for range 10 { // one after the other, as a lane is handled
			got = append(got, ds[0].ID)
			ack(t, ds[0])
			if ds = ds[1:]; len(ds) == 0 && len(got) < n {
				ds = receive(t, s, 1)
			} else if len(got) == n {
				break
			}
		}
		closeSource(t, s)
		if len(got) == n {
			cancel()
			<-first
			<-standing
			break
		}
		ds = <-first
		require.NoError(t, <-standing)
		cancel()
		require.Equal(t, "id-"+strconv.Itoa(len(got)), ds[0].ID, "the next one is the first that was not acknowledged")
		got = append(got, ds[0].ID)
		ack(t, ds[0])
		s = next
	}
	for i, id := range got {
		require.Equal(t, "id-"+strconv.Itoa(i), id)
	}
}
