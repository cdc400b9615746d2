package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
)

const minMajor = 7

// checkSetUp says why this client or these options can never work.
func checkSetUp(client redis.UniversalClient, o *Options) error {
	unfit := func(format string, args ...any) error {
		return fmt.Errorf("redisstore: %w: "+format, append([]any{dedup.ErrUnsafeStore}, args...)...)
	}
	missing := unfit("the Redis client is nil; pass one, such as redis.NewClient(&redis.Options{Addr: addr})")
	switch c := client.(type) {
	case nil:
		return missing
	case *redis.Client:
		if c == nil {
			return missing
		}
	case *redis.Ring:
		return unfit("redis.Ring moves keys to another server when one fails, so what was done would be done again; use one node, Sentinel or Cluster")
	case *redis.ClusterClient:
		if c == nil {
			return missing
		}
		o := c.Options()
		for _, route := range []struct {
			name string
			set  bool
		}{{"RouteByLatency", o.RouteByLatency}, {"RouteRandomly", o.RouteRandomly}, {"ReadOnly", o.ReadOnly}} { // the first two imply the last
			if route.set {
				return unfit("redis.ClusterOptions.%s sends reads to replicas, which lag behind: a finished message would look new; leave it off for this client", route.name)
			}
		}
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		return unfit("Options.Prefix %q contains a brace, which would move all keys to one Cluster slot; leave it out", o.Prefix)
	}
	return nil
}

// Ping implements dedup.Pinger: every master answers, is Redis >= 7.0 or Valkey, and will not evict
// records. What a server does not tell is logged as a warning, once.
func (s *Store) Ping(ctx context.Context) error {
	if s.unfit != nil {
		return s.unfit
	}
	err := errors.New("redisstore: ping: no answer")
	if e := await(ctx, func() { err = s.pingAll(ctx) }); e != nil {
		return fmt.Errorf("redisstore: ping: %w", e)
	}
	if err != nil {
		return err
	}
	// A look at a key that nobody has also shows that scripts may be run here.
	if _, err := s.Inspect(ctx, dedup.Key{}); err != nil && !errors.Is(err, dedup.ErrNotFound) {
		return err
	}
	return nil
}

func (s *Store) pingAll(ctx context.Context) error {
	if c, ok := s.client.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return s.pingNode(ctx, node, node.Options().Addr)
		})
	}
	return s.pingNode(ctx, s.client, "server")
}

func (s *Store) pingNode(ctx context.Context, node redis.Cmdable, name string) error {
	info, err := node.Info(ctx).Result()
	var refused redis.Error
	switch {
	case errors.As(err, &refused) && (redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "ERR")):
		info = "" // hidden by an ACL or by the service
	case err != nil:
		return fmt.Errorf("redisstore: ping %s: %w", name, err)
	}
	unknown, err := s.judge(parseInfo(info))
	if err != nil {
		return fmt.Errorf("redisstore: ping %s: %w", name, err)
	}
	if len(unknown) > 0 && !s.warned.Swap(true) {
		s.opts.Logger.Warn("redisstore: the server does not tell how it is set up; see to it yourself that it is Redis >= 7.0 or Valkey with maxmemory-policy noeviction",
			"server", name, "unknown", strings.Join(unknown, ", "))
	}
	return nil
}

// judge decides by what INFO says; unknown are the fields it does not show.
func (s *Store) judge(info map[string]string) (unknown []string, err error) {
	unsafe := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{dedup.ErrUnsafeStore}, args...)...)
	}
	version, policy := info["redis_version"], info["maxmemory_policy"]
	major, e := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	switch {
	case version == "" || e != nil:
		unknown = append(unknown, "redis_version")
	case major < minMajor:
		return nil, unsafe("redis_version %s is below %d.0; update the server", version, minMajor)
	}
	switch {
	case info["redis_mode"] == "sentinel":
		return nil, unsafe("this is a Sentinel, not a Redis server; use redis.NewFailoverClient with SentinelAddrs")
	case info["redis_mode"] == "cluster" && !s.cluster:
		return nil, unsafe("the server is part of a Cluster and the client is %T; use redis.NewClusterClient", s.client)
	case info["role"] == "slave":
		return nil, errors.New("this is a replica; connect to the master (it may change in a fail-over: use Sentinel or Cluster)")
	}
	switch {
	case policy == "":
		unknown = append(unknown, "maxmemory_policy")
	case policy != "noeviction" && !s.opts.AllowEviction:
		return nil, unsafe("maxmemory-policy is %s: under memory pressure the server drops records, and what was done is done again; run CONFIG SET maxmemory-policy noeviction, or accept it with Options.AllowEviction", policy)
	}
	return unknown, nil
}

func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}
