package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
	kafkago "github.com/segmentio/kafka-go"
)

func TestThin(t *testing.T) {
	db, err := sql.Open("pgx", testenv.PostgreSQL(t))
	require.NoError(t, err)
	defer db.Close()
	o, err := outbox.New(db, outbox.PostgreSQL, &outbox.Options{Table: fmt.Sprintf("thin_%d", time.Now().UnixNano())})
	require.NoError(t, err)
	require.NoError(t, o.Migrate(t.Context()))
	require.NoError(t, o.Migrate(t.Context()))
	brokers := testenv.Kafka(t)
	topic := fmt.Sprintf("thin-%d", time.Now().UnixNano())
	c, err := kafkago.Dial("tcp", brokers[0])
	require.NoError(t, err)
	require.NoError(t, c.CreateTopics(kafkago.TopicConfig{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}))
	c.Close()
	p, err := kafka.NewPublisher(kafka.Cluster{Brokers: brokers}, nil)
	require.NoError(t, err)
	defer p.Close()
	r, err := outbox.NewRelay(o, p, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	for i := range 100 {
		require.NoError(t, o.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			return o.Write(ctx, tx, outbox.Message{Topic: topic, Key: fmt.Sprint(i % 10), Body: []byte(fmt.Sprint(i))})
		}))
	}
	require.Eventually(t, func() bool {
		s, err := r.Stats(t.Context())
		require.NoError(t, err)
		return s.Pending == 0
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}
