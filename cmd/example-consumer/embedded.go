package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/idemq/idemq/dedup/sqlstore"
)

// embedded hosts what real servers lack: a Kafka and a Redis that speak the real protocols on
// loopback, and a SQLite database.
type embedded struct {
	servers
	kafka  *kfake.Cluster
	redis  *miniredis.Miniredis
	folder string // of the database
	stop   chan struct{}
	clock  sync.WaitGroup
}

func startEmbedded(real servers) (e *embedded, err error) {
	e = &embedded{servers: real, stop: make(chan struct{})}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.Kind == "" {
		e.kafka, err = kfake.NewCluster(
			kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond),
			kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
		if err != nil {
			return e, fmt.Errorf("embedded Kafka: %w", err)
		}
		e.Kind, e.Brokers = kafkaName, e.kafka.ListenAddrs()
	}
	if e.Redis == "" { // the SETNX loop needs one whatever the store is
		if e.redis, err = miniredis.Run(); err != nil {
			return e, fmt.Errorf("embedded Redis: %w", err)
		}
		e.Redis = e.redis.Addr()
		e.clock.Go(e.tick)
	}
	if e.Dialect == "" {
		if e.folder, err = os.MkdirTemp("", "idemq-example-"); err != nil {
			return e, fmt.Errorf("embedded SQLite: %w", err)
		}
		e.Dialect, e.DSN = sqlstore.SQLite, sqliteDSN(filepath.Join(e.folder, "example.db"))
	}
	return e, nil
}

// tick lets keys expire in real time: miniredis answers TIME from the machine's clock, but counts
// a key's time to live down only when it is told to.
func (e *embedded) tick() {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-e.stop:
			return
		case now := <-t.C:
			e.redis.FastForward(now.Sub(last))
			last = now
		}
	}
}

func (e *embedded) close() error {
	close(e.stop)
	e.clock.Wait()
	if e.redis != nil {
		e.redis.Close()
	}
	if e.kafka != nil {
		e.kafka.Close()
	}
	if e.folder == "" {
		return nil
	}
	return os.RemoveAll(e.folder)
}
