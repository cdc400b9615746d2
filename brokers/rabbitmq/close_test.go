package rabbitmq_test

import (
	"strconv"
	"testing"

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
