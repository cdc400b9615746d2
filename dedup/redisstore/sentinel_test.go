package redisstore_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A master dies, Sentinel promotes its replica, which knows no scripts, and the store goes on.
func TestSentinelFailoverWhileClaimsRun(t *testing.T) {
	t.Parallel()
	master := startRedis(t)
	replica := startRedis(t, "--replicaof", "127.0.0.1 "+master.port, "--repl-diskless-sync-delay", "0")
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(conf, []byte(
		"sentinel monitor idemq 127.0.0.1 "+master.port+" 1\n"+
			"sentinel down-after-milliseconds idemq 500\nsentinel failover-timeout idemq 3000\n"), 0o600))
	sentinel := startServer(t, "redis-sentinel", conf)
	client := closing(t, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "idemq", SentinelAddrs: []string{sentinel.addr}}))
	store := open(client)
	require.NoError(t, store.Ping(t.Context()))

	before := acquireAll(t, store, asks(10)...)
	finishAll(t, store, before[:5], dedup.Done)
	require.True(t, waitFor(10*time.Second, func() bool {
		return client.Wait(t.Context(), 1, time.Second).Val() == 1 && replica.client(t).DBSize(t.Context()).Val() >= 10
	}))
	during(t, store, func() {
		master.kill()
		require.True(t, waitFor(20*time.Second, func() bool { return store.Ping(t.Context()) == nil }), "no fail-over")
	})
	require.Greater(t, replica.client(t).DBSize(t.Context()).Val(), int64(10), "the promoted replica got no claims")
	for i, h := range before {
		v := claimAll(t, store, ask(h.Key))[0]
		if i < 5 {
			require.Equal(t, dedup.Done, v.State)
		} else {
			require.Equal(t, dedup.InProgress, v.State)
		}
	}
	for _, err := range finishAll(t, store, before[5:], dedup.Done) {
		require.NoError(t, err)
	}
}
