// Package redisstore is a dedup.Store on Redis >= 7.0 or Valkey: one node, Sentinel or Cluster.
//
//	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
//	guard, err := dedup.New("billing", redisstore.New(client, nil), nil)
//
// It is the usual SETNX with a TTL for each message, with an owner and a state added, so that a
// message whose consumer died is taken over instead of being taken for done.
//
// # Clients
//
// redis.NewClient for one node, redis.NewFailoverClient for Sentinel, redis.NewClusterClient for a
// Cluster. Refused are redis.Ring, which moves keys to another server when one fails, and a
// ClusterClient with ReadOnly, RouteByLatency or RouteRandomly, whose reads lag behind. The refusal
// is the error of every call, [Store.Ping] included.
//
// Set ContextTimeoutEnabled, so that a call whose context ends frees its connection at once.
// Without it calls return just as soon, and the connection is held until the client's ReadTimeout.
// The client's own retries are welcome: every call may be repeated.
//
// # Guarantee
//
// Every rule of the port, as long as the server keeps its records. Leases and epochs are by the
// server's clock; no client's clock is sent. What makes a server lose records:
//
//   - Eviction: any maxmemory-policy but noeviction. Ping refuses it, unless Options.AllowEviction.
//     With noeviction a full server fails writes, whole batches at a time; what is done is
//     still answered, and nothing new runs.
//   - Fail-over: replication is asynchronous, so the newest writes may be missing on the new master.
//     WAIT does not change that, and min-replicas-to-write narrows the window only.
//   - FLUSHALL, or a restart without AOF; with appendfsync everysec about the last second is lost.
//
// A lost claim is made again by its owner's next beat, a lost verdict by a Finish that was not yet
// answered; both report dedup.ErrRecordLost, which a Guard counts. Until then, and for finished
// work, whose record nobody writes again, a redelivery runs once more: at most one extra effect for each
// lost record. Where that is too much, let a database decide, with Redis in front of it or not at all.
//
// # What it costs
//
// A batch of any size up to 4,096 is one script call and one round trip on one node or Sentinel. On a Cluster
// keys carry one of 64 hash tags, so a batch is at most 64 calls, sent in one pipeline to each node,
// side by side. A call that fails there is the error of its own items, which is dedup.ErrUnavailable since it may have been done; the others are
// answered.
// While a slot moves, a call with keys on both sides is repeated key by key. Scripts are called by
// digest, and sent whole to a server that does not know them.
//
// A finished record without a result takes 120 to 136 bytes by MEMORY USAGE, 16 more with a fingerprint, and about 57
// in the server's two tables: 177 and 193 MB of used_memory for each million IDs within their retention
// (Debian's Redis 7.0.15, BenchmarkBytesPerID; 16 less where jemalloc is Redis's own). A result
// adds its length; a claim that is held adds its holder's name and 7 bytes.
//
// Results have no limit of this package's own, and a batch is not cut by their size: a call with all of them is one request, which
// the server takes up to client-query-buffer-limit (1 GB), and runs while everybody waits. Above some 100 KB keep a result
// elsewhere and store where it is.
//
// # In front of a database
//
// A Store is also the front of a tierstore.Store: [Store.Lookup] and [Store.Remember] keep copies of what a
// database has decided, under names of their own. There an eviction or a fail-over costs speed only.
//
// # Settings of the server
//
// maxmemory-policy noeviction; maxmemory above retention x rate x 200 bytes; AOF with everysec or a
// replica, if a restart must not forget. An ACL user needs EVALSHA, EVAL, INFO (for Ping; without
// it, or where it hides the policy, Ping logs a warning), and in the scripts TIME, MGET, GET,
// SET, DEL, EXISTS, PTTL, PEXPIRETIME, on keys that begin with Options.Prefix; DEL for Forget and SCAN and UNLINK for FlushFront also outside. On a Cluster also CLUSTER SLOTS or SHARDS.
//
// # Record
//
// The name is Prefix, the hash tag in braces, and the 32 bytes of the key: "idemq:{2a}…". The tag
// is the key's first byte modulo 64 in hex, on every kind of server. The value is a string; numbers
// are big-endian:
//
//	0   version: 1
//	1   state: 2 in progress, 3 done, 4 retryable, 5 failed, 6 released, 7 condemned
//	2   flags: which of the following parts there are, in this order; 32 is alone
//	3   epoch, 7 bytes
//	10  owner, 16 bytes
//	    1   fingerprint, 16 bytes
//	    2   end of the lease, in microseconds, 7 bytes
//	    4   attempts, crashes, redrive number, 4 bytes each
//	    8   holder, 2 bytes length and text
//	    16  last error, 2 bytes length and text
//	    result, the rest: when done
//
// The expiry is the key's own, and every write sets it. A value that cannot be read so is an error
// of its item, which names the key in hex; it is neither acquired nor done, is not overwritten, and
// [Store.Forget] removes it.
package redisstore
