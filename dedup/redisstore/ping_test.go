package redisstore_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestPingRefusesEviction(t *testing.T) {
	server := startRedis(t, "--maxmemory-policy", "allkeys-lru")
	client := server.client(t)
	err := open(client).Ping(t.Context())
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	require.ErrorContains(t, err, "maxmemory-policy is allkeys-lru")
	require.ErrorContains(t, err, "CONFIG SET maxmemory-policy noeviction")
	require.NoError(t, redisstore.New(client, &redisstore.Options{AllowEviction: true}).Ping(t.Context()))
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.NoError(t, open(client).Ping(t.Context()))
}

func TestPingOfWhatCannotWork(t *testing.T) {
	cluster := func(o redis.ClusterOptions) redis.UniversalClient {
		o.Addrs = []string{"127.0.0.1:1"}
		return closing(t, redis.NewClusterClient(&o))
	}
	one := closing(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}))
	for want, store := range map[string]*redisstore.Store{
		"redis.Ring":                    open(closing(t, redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}))),
		"ClusterOptions.ReadOnly":       open(cluster(redis.ClusterOptions{ReadOnly: true})),
		"ClusterOptions.RouteByLatency": open(cluster(redis.ClusterOptions{RouteByLatency: true})),
		"ClusterOptions.RouteRandomly":  open(cluster(redis.ClusterOptions{RouteRandomly: true})),
		"client is nil":                 open(nil),
		"nil; pass one":                 open((*redis.Client)(nil)),
		"brace":                         redisstore.New(one, &redisstore.Options{Prefix: "{idemq}:"}),
	} {
		t.Run(want, func(t *testing.T) {
			k := newKey()
			_, inspected := store.Inspect(t.Context(), k)
			for _, err := range []error{
				store.Ping(t.Context()),
				store.Claim(t.Context(), asks(1), make([]dedup.Verdict, 1)),
				store.Extend(t.Context(), make([]dedup.ExtendRequest, 1), make([]error, 1)),
				store.Finish(t.Context(), make([]dedup.FinishRequest, 1), make([]error, 1)),
				store.Forget(t.Context(), k),
				inspected,
			} {
				require.ErrorIs(t, err, dedup.ErrUnsafeStore)
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestPingOfTheWrongServer(t *testing.T) {
	master := startRedis(t)
	replica := startRedis(t, "--replicaof", "127.0.0.1 "+master.port)
	err := open(replica.client(t)).Ping(t.Context())
	require.ErrorContains(t, err, "replica")
	require.NotErrorIs(t, err, dedup.ErrUnsafeStore, "it may become the master")

	node := startRedis(t, "--cluster-enabled", "yes")
	err = open(node.client(t)).Ping(t.Context())
	require.ErrorIs(t, err, dedup.ErrUnsafeStore)
	require.ErrorContains(t, err, "redis.NewClusterClient")
}

// A managed service may hide INFO, or leave fields out of it.
func TestPingWarnsOnceOfWhatItCannotRead(t *testing.T) {
	server := startRedis(t)
	admin := server.client(t)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-info").Err())
	hidden := closing(t, redis.NewClient(&redis.Options{Addr: server.addr, Username: "app", Password: "secret"}))
	for name, client := range map[string]*redis.Client{"INFO forbidden": hidden, "fields missing": startMini(t).client(t)} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			store := redisstore.New(client, &redisstore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, store.Ping(t.Context()))
			require.Contains(t, log.String(), "maxmemory_policy")
			require.Contains(t, log.String(), "redis_version")
			log.Reset()
			require.NoError(t, store.Ping(t.Context()))
			require.Empty(t, log.String(), "one warning is enough")
		})
	}
}

func TestPingNeedsScripts(t *testing.T) {
	server := startRedis(t)
	require.NoError(t, server.client(t).Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-eval", "-evalsha").Err())
	client := closing(t, redis.NewClient(&redis.Options{Addr: server.addr, Username: "app", Password: "secret"}))
	require.ErrorContains(t, open(client).Ping(t.Context()), "NOPERM")
}

func TestPingOfTheCluster(t *testing.T) {
	require.NoError(t, open(realCluster(t)).Ping(t.Context()))
}
