package rabbitmq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
)

// A delivery that the consumer finds overdue must end its session: delivered again from memory it would be overdue
// again, at once and over and over.
func TestExclusiveDeliveryThatIsOverdueForTheConsumerEndsItsSession(t *testing.T) {
	s, err := NewSource(Cluster{URLs: []string{"amqp://guest:guest@127.0.0.1:1/"}}, "q", &SourceOptions{Exclusive: true, HandlerLimit: 40 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	p, err := s.Plan(consumer.Policy{HandlerTimeout: 2 * time.Second, Backoff: []time.Duration{time.Second}})
	require.NoError(t, err)
	e := &session{src: s, lost: make(chan struct{})}
	s.live = e
	given := func(left time.Duration) {
		d := &delivery{of: e, at: time.Now().Add(left - s.opt.usable())}
		d.place = &d.own
		require.NoError(t, d.GiveBack(t.Context()))
	}
	given(p.Room() + time.Minute)
	require.Len(t, s.held, 1, "there is time for it")
	require.Nil(t, s.again)
	given(p.Room())
	require.Len(t, s.held, 1)
	require.Same(t, e, s.again)
}
