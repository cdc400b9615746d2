package bench

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	rc "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/mqadmin"
	"github.com/idemq/idemq/internal/testenv"
)

func newRocketMQ(tb testing.TB) broker {
	servers := testenv.RocketMQ(tb)
	admin := mqadmin.Cluster(servers)
	addrs, err := admin.Brokers(context.Background())
	require.NoError(tb, err)
	cluster := rocketmq.Cluster{NameServers: servers}
	return broker{
		name: "rocketmq", addr: addrs[0], messages: 100_000, shares: partitions,
		create: func(tb testing.TB) (string, func()) {
			topic := newName()
			require.NoError(tb, admin.Create(context.Background(), topic, partitions))
			return topic, func() { _ = admin.Delete(context.Background(), topic) }
		},
		publish: func(tb testing.TB) publisher {
			p, err := rocketmq.NewPublisher(cluster, &rocketmq.PublisherOptions{Timeout: 5 * time.Minute})
			require.NoError(tb, err)
			return p
		},
		source: func(tb testing.TB, topic string) consumer.Source {
			group := newName()
			tb.Cleanup(func() { forget(admin, group) })
			s, err := rocketmq.NewSource(cluster, group, []string{topic}, &rocketmq.SourceOptions{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(tb, err)
			return s
		},
		clients: []client{
			{"push consumer of the client library", func(tb testing.TB, topic string, handle func(string, []byte)) func() {
				group := newName()
				tb.Cleanup(func() { forget(admin, group) })
				return push(tb, servers, topic, group, handle)
			}},
		},
	}
}

func forget(admin mqadmin.Cluster, group string) {
	_ = admin.Delete(context.Background(), group+"-retry", "%RETRY%"+group)
	_ = admin.DeleteGroups(context.Background(), group)
}

func push(tb testing.TB, servers []string, topic, group string, handle func(string, []byte)) func() {
	c, err := rc.NewPushConsumer(rc.WithGroupName(group), rc.WithInstance(group), rc.WithConsumeFromWhere(rc.ConsumeFromFirstOffset),
		rc.WithNsResolver(primitive.NewPassthroughResolver(servers)))
	require.NoError(tb, err)
	var stopped atomic.Bool // it goes on with what it has in memory
	require.NoError(tb, c.Subscribe(topic, rc.MessageSelector{}, func(_ context.Context, ms ...*primitive.MessageExt) (rc.ConsumeResult, error) {
		for _, m := range ms {
			if !stopped.Load() {
				handle(m.GetProperty(rocketmq.IDHeader), m.Body)
			}
		}
		return rc.ConsumeSuccess, nil
	}))
	require.NoError(tb, c.Start())
	return func() {
		stopped.Store(true)
		if !raced { // its Shutdown writes, without a lock, what its rebalancing reads: then it ends with the process
			require.NoError(tb, c.Shutdown())
		}
	}
}
