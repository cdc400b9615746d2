package bench

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/internal/testenv"
)

// BenchmarkCommitToConsumer tells how long after its commit was begun a message is with a consumer, at 200 commits a
// second from PostgreSQL to RabbitMQ: where the commit wakes the relay, and where the relay polls.
func BenchmarkCommitToConsumer(b *testing.B) {
	for b.Loop() {
		latencies(b, full)
	}
}

const commitEvery = 5 * time.Millisecond

func latencies(tb testing.TB, s sizes) {
	modes := []struct {
		name  string
		woken bool
	}{{"woken by Outbox.InTx", true}, {"polled every 100 ms", false}}
	shares := []int{50, 95, 99}
	got := make([][][]float64, len(modes))
	for i := range got {
		got[i] = make([][]float64, len(shares))
	}
	for range s.rounds {
		for i, m := range modes {
			took := latency(tb, m.woken, s.commits)
			for j, share := range shares {
				got[i][j] = append(got[i][j], took[len(took)*share/100].Seconds())
			}
		}
	}
	t := newTable("commit to consumer", "p50", "p95", "p99")
	for i, m := range modes {
		cells := []string{m.name}
		for j := range shares {
			cells = append(cells, millis(time.Duration(median(got[i][j])*float64(time.Second))))
		}
		t.add(cells...)
	}
	t.print(fmt.Sprintf("PostgreSQL to RabbitMQ, one relay, %d commits a second, the commit itself included; medians of %d rounds of %s commits:",
		time.Second/commitEvery, s.rounds, count(float64(s.commits))))
}

// times are when the commit of each message was begun, and when it was with the consumer.
type times struct {
	mu       sync.Mutex
	begun    []time.Time
	received []time.Time
	left     int
	all      chan struct{}
}

func newTimes(n int) *times {
	return &times{begun: make([]time.Time, n), received: make([]time.Time, n), left: n, all: make(chan struct{})}
}

func (t *times) begin(i uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun[i] = time.Now()
}

func (t *times) receive(i uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.received[i].IsZero() {
		return
	}
	t.received[i] = time.Now()
	if t.left--; t.left == 0 {
		close(t.all)
	}
}

// latency returns, sorted, how long n messages were under way.
func latency(tb testing.TB, woken bool, n int) []time.Duration {
	const warming = 20 // not counted
	table, target := newOutbox(tb), newRabbitMQ(tb)
	queue, drop := target.create(tb)
	defer drop()
	p := target.publisher(tb)
	defer func() { require.NoError(tb, p.Close()) }()
	stop := table.start(tb, 0, 0, p)
	defer stop()
	t := newTimes(warming + n)
	defer receive(tb, queue, t)()

	var committing sync.WaitGroup
	tick := time.NewTicker(commitEvery)
	defer tick.Stop()
	for i := range uint32(warming + n) {
		<-tick.C
		committing.Go(func() { // however long it takes
			if err := table.commit(context.Background(), woken, queue, i, t); err != nil {
				tb.Errorf("commit: %v", err)
			}
		})
	}
	committing.Wait()
	select {
	case <-t.all:
	case <-time.After(2 * time.Minute):
		tb.Fatal("not all messages came")
	}
	took := make([]time.Duration, n)
	for i := range took {
		took[i] = t.received[warming+i].Sub(t.begun[warming+i])
	}
	slices.Sort(took)
	return took
}

// commit is a transaction with one message.
func (t *outboxTable) commit(ctx context.Context, woken bool, queue string, i uint32, to *times) error {
	write := func(ctx context.Context, tx *sql.Tx) error {
		m := newMessage(queue, int(i))
		binary.BigEndian.PutUint32(m.Body, i)
		err := t.Write(ctx, tx, m)
		to.begin(i)
		return err
	}
	if woken {
		return t.InTx(ctx, nil, write)
	}
	tx, err := t.pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// receive notes when messages come, until the function that it returns is called.
func receive(tb testing.TB, queue string, t *times) (stop func()) {
	cluster := rabbitmq.Cluster{URLs: []string{testenv.RabbitMQ(tb)}}
	s, err := rabbitmq.NewSource(cluster, queue, &rabbitmq.SourceOptions{Delays: waits, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			ds, err := s.Receive(ctx, window)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				tb.Errorf("receive: %v", err)
				return
			}
			for i := range ds {
				t.receive(binary.BigEndian.Uint32(ds[i].Body))
				if err := ds[i].Ack(ctx); err != nil && ctx.Err() == nil {
					tb.Errorf("ack: %v", err)
				}
			}
		}
	})
	return func() {
		cancel()
		ended.Wait()
		require.NoError(tb, s.Close(context.Background()))
	}
}
