package testenv_test

import (
	"context"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idemq/idemq/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeaksOfProxies()...) }

func redisClient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: time.Second, DialerRetries: 1})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func kafkaClient(t *testing.T, addrs ...string) *kafka.Client {
	t.Helper()
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(addrs...), Transport: transport, Timeout: 10 * time.Second}
}

func createTopic(t *testing.T, c *kafka.Client, topic string) {
	t.Helper()
	answer, err := c.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
	})
	require.NoError(t, err)
	require.NoError(t, answer.Errors[topic])
}

func partitions(t *testing.T, c *kafka.Client, topic string) int {
	t.Helper()
	answer, err := c.Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{topic}})
	require.NoError(t, err)
	require.Len(t, answer.Topics, 1)
	return len(answer.Topics[0].Partitions)
}

func TestSharedServersAnswer(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		require.NoError(t, redisClient(t, testenv.Redis(t)).Ping(t.Context()).Err())
	})
	t.Run("redis cluster", func(t *testing.T) {
		addrs := testenv.RedisCluster(t)
		require.Len(t, addrs, 6)
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		defer c.Close()
		shards, err := c.ClusterShards(t.Context()).Result()
		require.NoError(t, err)
		require.Len(t, shards, 3)
		for _, s := range shards {
			require.Len(t, s.Nodes, 2, "a master and a replica")
		}
	})
	t.Run("kafka", func(t *testing.T) {
		answer, err := kafkaClient(t, testenv.Kafka(t)...).Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{"testenv-no-such-topic"}})
		require.NoError(t, err)
		require.NotEmpty(t, answer.Brokers)
		require.ErrorIs(t, answer.Topics[0].Error, kafka.UnknownTopicOrPartition, "asking for a topic must not create it")
	})
	t.Run("rabbitmq", func(t *testing.T) {
		c, err := amqp.Dial(testenv.RabbitMQ(t))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

func TestOwnRabbitMQKeepsItsQueuesOverAKill(t *testing.T) {
	t.Parallel()
	s := testenv.StartRabbitMQ(t, "heartbeat = 7")
	declareQueue(t, s.URL, "kept", false)
	require.Contains(t, s.Ctl("list_queues", "name"), "kept")
	s.Restart()
	declareQueue(t, s.URL, "kept", true)
	require.Contains(t, s.Ctl("eval", "application:get_env(rabbit, heartbeat)."), "7", "its own settings")
}

func declareQueue(t *testing.T, url, name string, passive bool) {
	t.Helper()
	c, err := amqp.Dial(url)
	require.NoError(t, err)
	defer c.Close()
	ch, err := c.Channel()
	require.NoError(t, err)
	declare := ch.QueueDeclare
	if passive {
		declare = ch.QueueDeclarePassive
	}
	_, err = declare(name, true, false, false, false, nil)
	require.NoError(t, err)
}

func TestSharedRocketMQAnswers(t *testing.T) {
	for _, addr := range testenv.RocketMQ(t) {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func TestOwnRocketMQComesBackOnItsPorts(t *testing.T) {
	t.Parallel()
	s := testenv.StartRocketMQ(t, "brokerName=mine")
	s.Broker.Restart()
	s.NameServer.Restart()
	conn, err := net.DialTimeout("tcp", s.BrokerAddr, time.Second)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestOwnRedisIsKilledAndComesBackEmpty(t *testing.T) {
	s := testenv.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	c := redisClient(t, s.Addr)
	require.Equal(t, "allkeys-lru", c.ConfigGet(t.Context(), "maxmemory-policy").Val()["maxmemory-policy"])
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())

	s.Kill()
	require.False(t, s.Running())
	require.Error(t, c.Ping(t.Context()).Err())

	s.Start()
	require.True(t, s.Running())
	require.ErrorIs(t, c.Get(t.Context(), "k").Err(), redis.Nil)
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	s := testenv.StartRedis(t)
	c := redisClient(t, s.Addr)
	require.NoError(t, c.Ping(t.Context()).Err())
	s.Pause()
	requireTimeout(t, c.Ping(t.Context()).Err())
	s.Resume()
	require.NoError(t, c.Ping(t.Context()).Err())
}

func TestOwnKafkaKeepsItsTopicsOverAKill(t *testing.T) {
	t.Parallel()
	s := testenv.StartKafka(t, "num.partitions=7")
	c := kafkaClient(t, s.Addr)
	createTopic(t, c, "kept")
	s.Restart()
	require.Equal(t, 1, partitions(t, c, "kept"))
}

func TestKafkaBehindAProxyIsReachedThroughItOnly(t *testing.T) {
	t.Parallel()
	s, proxy := testenv.StartKafkaBehind(t)
	c := kafkaClient(t, s.Addr)
	createTopic(t, c, "behind")
	proxy.Cut()
	_, err := c.ListGroups(t.Context(), &kafka.ListGroupsRequest{}) // metadata it would have in its cache
	require.Error(t, err)
	proxy.Mend()
	require.Equal(t, 1, partitions(t, c, "behind"))
}

func TestProxyCutsAndMends(t *testing.T) {
	c, proxy := behindProxy(t)
	require.NoError(t, c.Ping(t.Context()).Err())
	proxy.Cut()
	require.Error(t, c.Ping(t.Context()).Err())
	proxy.Mend()
	require.NoError(t, c.Ping(t.Context()).Err())
}

func TestProxyDelaysAnswers(t *testing.T) {
	c, proxy := behindProxy(t)
	require.NoError(t, c.Ping(t.Context()).Err())
	proxy.Delay(200 * time.Millisecond)
	before := time.Now()
	require.NoError(t, c.Ping(t.Context()).Err())
	require.GreaterOrEqual(t, time.Since(before), 200*time.Millisecond)
	proxy.Delay(0)
	proxy.Delay(10 * time.Second)
	requireTimeout(t, c.Ping(t.Context()).Err())
	proxy.Delay(0)
	require.NoError(t, c.Ping(t.Context()).Err())
}

func TestProxyDropsAnswersButNotRequests(t *testing.T) {
	s := testenv.StartRedis(t)
	proxy := testenv.NewProxy(t, s.Addr)
	through, direct := redisClient(t, proxy.Addr), redisClient(t, s.Addr)
	require.NoError(t, through.Ping(t.Context()).Err())

	proxy.DropAnswers()
	requireTimeout(t, through.Incr(t.Context(), "n").Err())
	require.Equal(t, "1", direct.Get(t.Context(), "n").Val(), "the request arrived")

	proxy.PassAnswers()
	require.Equal(t, int64(2), through.Incr(t.Context(), "n").Val())
}

func behindProxy(t *testing.T) (*redis.Client, *testenv.Proxy) {
	t.Helper()
	proxy := testenv.NewProxy(t, testenv.StartRedis(t).Addr)
	return redisClient(t, proxy.Addr), proxy
}

func requireTimeout(t *testing.T, err error) {
	t.Helper()
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "%v", err)
}

// fakeT records what a test would have done: Skip and Fatal end the goroutine, as they do in a test.
type fakeT struct {
	testing.TB
	skipped, failed string
}

func (f *fakeT) Helper()                  {}
func (f *fakeT) Skip(a ...any)            { f.skipped = a[0].(string); panic(f) }
func (f *fakeT) Fatal(a ...any)           { f.failed = a[0].(string); panic(f) }
func (f *fakeT) Context() context.Context { return context.Background() }

func ask(get func(testing.TB)) (f *fakeT) {
	f = &fakeT{}
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
	}()
	get(f)
	return f
}

func TestMissingServerIsASkipThatSaysHowToStartIt(t *testing.T) {
	t.Setenv("IDEMQ_REDIS_CLUSTER_ADDRS", "")
	t.Setenv("IDEMQ_REQUIRE_SERVICES", "")
	f := ask(func(tb testing.TB) { testenv.RedisCluster(tb) })
	require.Contains(t, f.skipped, "IDEMQ_REDIS_CLUSTER_ADDRS")
	require.Contains(t, f.skipped, "scripts/services.sh start redis-cluster")
	require.Empty(t, f.failed)
}

func TestMissingServerFailsWhereServersAreRequired(t *testing.T) {
	t.Setenv("IDEMQ_REQUIRE_SERVICES", "1")
	t.Setenv("IDEMQ_REDIS_CLUSTER_ADDRS", "")
	t.Setenv("IDEMQ_KAFKA_LIB", "")
	t.Setenv("IDEMQ_RABBITMQ_URL", "")
	t.Setenv("IDEMQ_POSTGRES_DSN", "")
	t.Setenv("IDEMQ_MYSQL_DSN", "")
	t.Setenv("IDEMQ_ROCKETMQ_LIB", "")
	t.Setenv("IDEMQ_CHROMIUM", "")
	t.Setenv("PATH", t.TempDir())
	for name, get := range map[string]func(testing.TB){
		"cluster":      func(tb testing.TB) { testenv.RedisCluster(tb) },
		"own redis":    func(tb testing.TB) { testenv.StartRedis(tb) },
		"own kafka":    func(tb testing.TB) { testenv.StartKafka(tb) },
		"rabbitmq":     func(tb testing.TB) { testenv.RabbitMQ(tb) },
		"own rocketmq": func(tb testing.TB) { testenv.StartRocketMQ(tb) },
		"postgres":     func(tb testing.TB) { testenv.PostgreSQL(tb) },
		"mysql":        func(tb testing.TB) { testenv.MySQL(tb) },
		"browser":      func(tb testing.TB) { testenv.Chromium(tb) },
	} {
		f := ask(get)
		require.Contains(t, f.failed, "scripts/services.sh start", name)
		require.Empty(t, f.skipped, name)
	}
}

func TestAddressesComeFromTheEnvironment(t *testing.T) {
	t.Setenv("IDEMQ_CHROMIUM", "/opt/chromium")
	require.Equal(t, "/opt/chromium", testenv.Chromium(t))
	t.Setenv("IDEMQ_KAFKA_BROKERS", "a:1,b:2")
	require.Equal(t, []string{"a:1", "b:2"}, testenv.Kafka(t))
}
