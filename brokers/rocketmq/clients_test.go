package rocketmq_test

import (
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	rmq "github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/stretchr/testify/require"
)

// clientProducer is the client library's own, as other applications use it.
type clientProducer struct {
	w world
	p interface {
		Start() error
		Shutdown() error
	}
	sendAll func(t testing.TB, ms ...*primitive.Message)
}

func newClientProducer(t testing.TB, w world) clientProducer {
	t.Helper()
	p, err := rmq.NewDefaultProducer(rmq.WithNsResolver(primitive.NewPassthroughResolver(w.cluster.NameServers)),
		rmq.WithInstanceName(w.topic), rmq.WithGroupName(w.group+"-producer"))
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	return clientProducer{w: w, p: p, sendAll: func(t testing.TB, ms ...*primitive.Message) {
		t.Helper()
		res, err := p.SendSync(within(t, eventually), ms...)
		require.NoError(t, err)
		require.Equal(t, primitive.SendOK, res.Status)
	}}
}

// send sends ms, all in one batch if there are more than one.
func (c clientProducer) send(t testing.TB, ms ...*primitive.Message) {
	t.Helper()
	c.sendAll(t, ms...)
}
