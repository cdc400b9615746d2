package redisstore_test

import (
	"testing"

	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/redis/go-redis/v9"
)

func realRedis(t testing.TB) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:21379"})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func open(c redis.UniversalClient) *redisstore.Store { return redisstore.New(c, nil) }
