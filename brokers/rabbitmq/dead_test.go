package rabbitmq_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/outbox"
)

func TestSourceOfADeadLetterQueueKnowsItForOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dead := w
	dead.queue = w.queue + ".dead"
	require.Equal(t, []error{nil}, publish(t, w.publisher(t, nil), outbox.Message{ID: "a", Topic: dead.queue}))
	var l log
	s := dead.source(t, func(o *rabbitmq.SourceOptions) {
		o.Exclusive, o.DeadLetterQueue, o.Logger = true, w.queue, l.logger()
	})
	d := receive(t, s, 1)
	require.Equal(t, "a", d[0].Headers[rabbitmq.IDHeader])
	ack(t, d...)
	require.NotContains(t, l.String(), "delivery limit")
}
