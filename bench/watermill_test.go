package bench

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
)

// watermillTable is a forwarder's topic in PostgreSQL, with the schema that watermill-sql has for strict order and
// any number of subscribers. Its documentation says that a larger SubscribeBatchSize is quicker and repeats more after a
// crash; here it is the relay's. The payload's type is the default, JSON, which is what the forwarder's envelope is.
type watermillTable struct {
	pool, admin *pool
	topic       string
	schema      wsql.DefaultPostgreSQLSchema
	offsets     wsql.DefaultPostgreSQLOffsetsAdapter
}

func newWatermillTable(tb testing.TB) *watermillTable {
	tb.Helper()
	t := &watermillTable{pool: newPool(tb), admin: newPool(tb), topic: newName(), schema: wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: window}}
	require.NoError(tb, t.subscriber(tb).SubscribeInitialize(t.topic))
	tb.Cleanup(func() {
		for _, name := range []string{t.schema.MessagesTable(t.topic), t.offsets.MessagesOffsetsTable(t.topic)} {
			_, err := t.admin.Exec("DROP TABLE " + name)
			require.NoError(tb, err)
		}
	})
	return t
}

func (t *watermillTable) subscriber(tb testing.TB) *wsql.Subscriber {
	tb.Helper()
	s, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(t.pool.DB), wsql.SubscriberConfig{
		SchemaAdapter: t.schema, OffsetsAdapter: t.offsets,
		PollInterval: 100 * time.Millisecond, // the relay's, instead of 1 s
	}, watermill.NopLogger{})
	require.NoError(tb, err)
	return s
}

// write is what a business transaction does to send messages.
func (t *watermillTable) write(tx *sql.Tx, topic string, ms ...*message.Message) error {
	p, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: t.schema}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return forwarder.NewPublisher(p, forwarder.PublisherConfig{ForwarderTopic: t.topic}).Publish(topic, ms...)
}

func newWatermillMessage(i int) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), make([]byte, bodySize))
	m.Metadata.Set("key", fmt.Sprint("customer-", i))
	return m
}

// forward is how long watermill's forwarder needs for rows that are committed, until their offset is, too. The
// publisher waits for confirms, and has its channel in a pool: without one it would open a channel for every message. There is one
// forwarder, which hands messages on one at a time: others would wait for the lock on the consumer group's offset that it holds
// while it publishes.
func forward(tb testing.TB, topic string, n int) drained {
	t := newWatermillTable(tb)
	for at := 0; at < n; {
		ms := make([]*message.Message, 0, 1000)
		for ; at < n && len(ms) < cap(ms); at++ {
			ms = append(ms, newWatermillMessage(at))
		}
		tx, err := t.admin.Begin()
		require.NoError(tb, err)
		require.NoError(tb, t.write(tx, topic, ms...))
		require.NoError(tb, tx.Commit())
	}
	_, err := t.admin.Exec("VACUUM ANALYZE " + t.schema.MessagesTable(t.topic))
	require.NoError(tb, err)

	config := amqp.NewDurableQueueConfig(testenv.RabbitMQ(tb)) // persistent, to the queue of the topic's name, which is there
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 1
	p, err := amqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(tb, err)
	defer func() { require.NoError(tb, p.Close()) }()
	f, err := forwarder.NewForwarder(t.subscriber(tb), p, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: t.topic})
	require.NoError(tb, err)
	ended := make(chan error, 1)
	w := newWatch(tb, t.pool, t.admin)
	go func() { ended <- f.Run(context.Background()) }()
	await(tb, t.admin, fmt.Sprintf("SELECT coalesce((SELECT max(offset_acked) FROM %s), 0) >= %d", t.offsets.MessagesOffsetsTable(t.topic), n), func() {})
	d := w.stop(tb)
	require.NoError(tb, f.Close())
	require.NoError(tb, <-ended)
	return d
}
