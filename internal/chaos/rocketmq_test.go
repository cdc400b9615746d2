package chaos

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/mqadmin"
	"github.com/idemq/idemq/internal/testenv"
)

type rocketTopic struct {
	admin        mqadmin.Cluster
	topic, group string
	server       *testenv.RocketMQServer // nil: the shared one
}

func startRocketMQ(t *testing.T, s *childSpec, queues int) broker {
	return newRocketTopic(t, s, queues, testenv.RocketMQ(t), nil)
}

func startOwnRocketMQ(t *testing.T, s *childSpec, queues int) broker {
	server := testenv.StartRocketMQ(t)
	return newRocketTopic(t, s, queues, []string{server.Addr}, server)
}

func newRocketTopic(t *testing.T, s *childSpec, queues int, nameServers []string, server *testenv.RocketMQServer) broker {
	s.Brokers = nameServers
	r := &rocketTopic{admin: nameServers, topic: s.Topic, group: s.Group, server: server}
	require.NoError(t, r.admin.Create(t.Context(), r.topic, queues))
	t.Cleanup(func() {
		if server != nil {
			return // it ends, too
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = r.admin.Delete(ctx, r.topic, r.group+"-retry", r.group+"-dead")
		_ = r.admin.DeleteGroups(ctx, r.group)
	})
	return r
}

func openRocketMQ(s *childSpec, log *slog.Logger) (consumer.Source, error) {
	return rocketmq.NewSource(rocketmq.Cluster{NameServers: s.Brokers}, s.Group, []string{s.Topic}, &rocketmq.SourceOptions{Logger: log})
}

func (r *rocketTopic) publish(t *testing.T, all []published) {
	p, err := rocketmq.NewPublisher(rocketmq.Cluster{NameServers: r.admin}, nil)
	require.NoError(t, err)
	publishAll(t, p, r.topic, all)
	require.NoError(t, p.Close())
}

func (r *rocketTopic) left() (sum int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, topic := range []string{r.topic, r.group + "-retry"} {
		n, err := r.admin.Left(ctx, topic, r.group)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (r *rocketTopic) deadLetters() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return r.admin.Messages(ctx, r.group+"-dead")
}

func (r *rocketTopic) restart() { r.server.Broker.Restart() }
