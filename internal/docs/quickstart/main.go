package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	store := redisstore.New(redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true}), nil)
	guard, err := dedup.New("billing", store, nil)
	check(err)
	source, err := kafka.NewSource(kafka.Cluster{Brokers: []string{"localhost:9092"}}, "billing", []string{"orders"}, nil)
	check(err)
	c, err := consumer.New(source, guard, charge, nil)
	check(err)
	check(c.Run(ctx)) // drains on SIGTERM
}

func charge(ctx context.Context, m *consumer.Message) error {
	log.Printf("charging order %s: %s", m.ID, m.Body)
	return nil // an error: again, by policy; consumer.Permanent(err): dead-lettered now
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
