package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
)

func TestCallersBrokerListIsNotKept(t *testing.T) {
	c := fakeKafka(t, 1)
	mine := c.ListenAddrs()
	s, err := kafka.NewSource(kafka.Cluster{Brokers: mine}, "g", []string{"t"}, nil)
	require.NoError(t, err)
	p, err := kafka.NewPublisher(kafka.Cluster{Brokers: mine}, nil)
	require.NoError(t, err)
	defer closeSource(t, s)
	defer func() { require.NoError(t, p.Close()) }()
	mine[0] = "127.0.0.1:1"
	produce(t, client(t, c.ListenAddrs()), 0, "a")
	ack(t, receive(t, s, 1)...)
}
