package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// plain is a Source that only plans.
type plain struct{ Source }

func (plain) Plan(p Policy) (Plan, error) {
	p, err := p.Complete(Policy{MaxAttempts: 3, Backoff: []time.Duration{time.Second}})
	return Plan{Policy: p, Scope: "test", Hold: -1, Window: time.Hour}, err
}

func TestDuplicateThatComesAfterItsTwinHasRunLeavesNoLaneBehind(t *testing.T) {
	g, err := dedup.New("app", memstore.New(), nil)
	require.NoError(t, err)
	c, err := New(plain{}, g, func(context.Context, *Message) error { return nil }, nil)
	require.NoError(t, err)
	e := newEngine(c)
	arrived := func() *task {
		d := &task{Delivery: Delivery{Message: &Message{ID: "a", Scope: "test"}, Lane: "key"}}
		d.work = d.Message.Work()
		e.arrive(d)
		return d
	}

	leader := arrived()
	early := arrived()
	require.Len(t, e.lanes, 1)
	e.pass(leader) // its handler has returned, and its outcome is on the way to the store
	require.Empty(t, e.lanes)
	late := arrived()
	require.Equal(t, []*task{early, late}, leader.followers)
	require.Empty(t, e.lanes, "a lane that nobody is in stays for ever")
}
