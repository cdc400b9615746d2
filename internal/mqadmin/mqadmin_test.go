package mqadmin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/internal/mqadmin"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

func TestTopicIsMadeCountedAndDeleted(t *testing.T) {
	servers := testenv.RocketMQ(t)
	c := mqadmin.Cluster(servers)
	topic := fmt.Sprintf("mqadmin-%d", time.Now().UnixNano())
	require.NoError(t, c.Create(t.Context(), topic, 2))
	require.NoError(t, c.Create(t.Context(), topic, 2), "it is there")

	p, err := rocketmq.NewPublisher(rocketmq.Cluster{NameServers: servers}, nil)
	require.NoError(t, err)
	defer p.Close()
	errs := make([]error, 3)
	require.NoError(t, p.Publish(t.Context(), []outbox.Message{{ID: "a", Topic: topic}, {ID: "b", Topic: topic}, {ID: "c", Topic: topic}}, errs))
	require.Equal(t, make([]error, 3), errs)
	for want, ask := range map[string]func() (int64, error){
		"messages": func() (int64, error) { return c.Messages(t.Context(), topic) },
		"left":     func() (int64, error) { return c.Left(t.Context(), topic, topic+"-group") },
	} {
		n, err := ask()
		require.NoError(t, err)
		require.EqualValues(t, 3, n, want)
	}

	require.NoError(t, c.Delete(t.Context(), topic, topic+"-never-there"))
	require.NoError(t, c.DeleteGroups(t.Context(), topic+"-group"))
	n, err := c.Messages(t.Context(), topic)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestServerThatIsAwayIsAnError(t *testing.T) {
	_, err := mqadmin.Cluster{"127.0.0.1:1"}.Messages(t.Context(), "any")
	require.ErrorContains(t, err, "127.0.0.1:1")
}
