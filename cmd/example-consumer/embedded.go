package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"
)

// embedded hosts a Kafka and a Redis that speak the real protocols on loopback.
type embedded struct {
	servers
	kafka *kfake.Cluster
	redis *miniredis.Miniredis
	stop  chan struct{}
	clock sync.WaitGroup
}

func startEmbedded() (*embedded, error) {
	kafka, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
	if err != nil {
		return nil, fmt.Errorf("embedded Kafka: %w", err)
	}
	redis, err := miniredis.Run()
	if err != nil {
		kafka.Close()
		return nil, fmt.Errorf("embedded Redis: %w", err)
	}
	e := &embedded{kafka: kafka, redis: redis, stop: make(chan struct{})}
	e.servers = servers{Kind: kafkaName, Brokers: kafka.ListenAddrs(), Redis: redis.Addr()}
	e.clock.Go(e.tick)
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

func (e *embedded) close() {
	close(e.stop)
	e.clock.Wait()
	e.redis.Close()
	e.kafka.Close()
}
