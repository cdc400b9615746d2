// Package rocketmq consumes from and publishes to RocketMQ by its remoting protocol, which brokers
// of 4.x and 5.x speak. The gRPC proxy of 5.x does not.
//
//	source, err := rocketmq.NewSource(rocketmq.Cluster{NameServers: servers}, "billing", []string{"orders"}, nil)
//	c, err := consumer.New(source, guard, handler, nil)
//	err = c.Run(ctx)
//
// # Mapping of terms
//
//   - Scope: "rocketmq/" and the consumer group, namespace included. Two groups both run a message.
//   - Message.ID, the broker's own name: the UNIQ_KEY that the producer's client made, else the ID of the
//     first copy that a broker stored. It is the same on each redelivery and on every copy. But clients
//     repeat themselves (a counter of 16 bits; whole batches under one key), so it counts as made
//     by a machine, and a header of the application's own outranks it.
//   - Headers: the user properties, TAGS and KEYS among them, but not those by which clients and brokers steer a message.
//   - Key: SHARDING_KEY.
//   - Lane: none, or with SourceOptions.Ordered the queue.
//   - Ack: part of the group's position in the queue, the lowest offset delivered and not acknowledged. The
//     position is committed each second, when a queue goes to another member, and by Close.
//   - Retry: a confirmed copy in the topic group + "-retry", which the same group reads; the broker
//     delivers it after the next longer of its delay levels (messageDelayLevel). Then the original
//     is acknowledged. No counter of the broker's is spent. With Ordered a retry waits in memory
//     and holds its queue (Plan.Hold is negative), and so does one much shorter than the shortest level.
//   - GiveBack: delivered again from memory; after a rebalance, by the broker to the next owner.
//   - Dead letter: a confirmed copy in the topic group + "-dead". Key, body, tag, keys and headers are kept; a delay is not.
//   - Session: the connection to a broker, for all queues that are there.
//
// The topic of retries is created when the group begins, that of dead letters when the first is written. Where a broker does not
// allow it the log, or the error of the dead letter, names the topic; then create it.
//
// # Delivery guarantee
//
// At least once; package consumer makes it once. Only the clustering model is there: broadcasting
// drops failed messages, so no option chooses it. No limit of the client or broker ends a slow
// handler's delivery, so Delivery.Deadline is never set.
//
// A topic that does not exist is waited for by name, while the others are consumed, and is read
// from its beginning once it is there. What the broker copied to its own %RETRY% topic for a push
// consumer that had the group before is consumed, too.
//
// # What happens if it dies here
//
//   - Process killed: brokers see the connection break and tell the other members, who begin at the last
//     position: what was done since is dropped as done, what was not is run. A process that just
//     hangs is dropped after two minutes. So is one that was killed while the broker took in its heartbeat, sent
//     every 5 s and when members change: the broker (5.3.3) then misses the end of the connection, and messages of its queues wait that long.
//   - Between the copy of a retry and the acknowledgement of the original: both come, under one name.
//   - Queues move: nothing starts any more, Delivery.Lost is closed, and later acknowledgements are no-ops.
//     There is no handover, so for a moment two members can read a queue; the next owner asks for messages
//     that are in progress or done and is told so.
//   - Connection to a broker breaks: its queues are lost and begun anew at their positions, which takes
//     less than a second once the broker answers; where connections break one after the other, up to 2 s pass between them.
//     A call that stays without an answer breaks it, too.
//   - An answer to a pull cannot be read: its queue stands still and asks again, an error is logged, the others go on.
//   - Broker killed: it writes positions each 5 s (flushConsumerOffsetInterval), so that what was
//     acknowledged since comes again and is dropped as done. With asynchronous flushing and no copy
//     (flushDiskType, brokerRole) a machine's crash loses messages; that is the broker's to set.
//   - Name servers gone: the routes known before are good.
//   - Position below the start of a queue (the broker deletes what is older than fileReservedTime): an
//     error is logged that says how many offsets are lost, and reading goes on at the start.
//   - Position beyond the end of a queue (the topic was made anew, or a machine's crash took the tail): an error is logged, and reading begins
//     at the start, since nothing tells which of the queue's messages are new. Where only the tail was lost all that the broker
//     still keeps (fileReservedTime, by default three days) comes again: what dedup remembers is dropped as done, what is older than its
//     retention runs again. To spare that, stop the group and set its position by time, to before the crash (mqadmin resetOffsetByTime).
//   - Permission to read taken from a topic (perm) or from the group (consumeEnable), as operators do to pause it or to empty a broker:
//     its queues are given up, or tried again and again; the log says so, and reading goes on once it is back.
//   - Rights refused by access control, TLS that does not fit: Receive returns the error.
//
// # Limits
//
// At most MaxInFlight deliveries of a queue are unsettled, and no more than 64 times as many lie
// between the first unsettled and the last one; a queue at a limit is not read, the others go on.
// Delays are those of the broker's levels; a longer one is cut and logged. Messages are read
// from masters only. Bodies compressed with LZ4 or ZSTD, which some Java producers can be set
// to, arrive compressed: only zlib is known here, as in the client library. An operator's offset reset takes
// effect while the group runs where the broker does it by itself (5.x, useServerSideResetOffset);
// else stop the group before. What it brings back may be older than any retention of dedup records.
//
// Key and headers of a message and its copy have room for 32,000 bytes. A message that leaves none for those of a
// dead letter, some 300 bytes, cannot be given up: it stays unsettled and the position does not pass it, until its
// queue is no longer read; the log says so. Bound the headers of producers.
//
// A [Publisher] may write a message twice, under one ID, after a lost answer. Properties cannot hold
// every value, so headers that are empty, binary or named like a steering property, and such
// keys, go encoded in the property "idemq-headers"; an empty body goes compressed, since brokers
// fail at a message without one.
//
// # Transactions
//
// A [TransactionProducer] makes a message visible if and only if a local database transaction commits. It sends a half
// message, which consumers do not see, runs the transaction, in which it writes a marker row, and tells the
// broker how that ended. A broker that is told nothing asks (transactionTimeOut, transactionCheckInterval), and any
// process of the producer group answers: "commit" where it finds the marker. Where it finds none it first
// commits a tombstone under the marker's key, then says "rollback": from then on the transaction cannot commit.
//
//	orders, err := rocketmq.NewTransactionProducer(cluster, "shop-orders", db, sqlstore.PostgreSQL, nil)
//	err = orders.Migrate(ctx)
//	go func() { errs <- orders.Run(ctx) }() // answers check-backs, too
//	err = orders.Send(ctx, outbox.Message{Topic: "orders", Body: body}, func(ctx context.Context, tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, id)
//		return err
//	})
//
// Guarantee: what is visible is committed, as long as the database keeps its commits. What is committed becomes visible while a process of the group answers
// before the broker gives up, which is after transactionCheckMax questions: some 8 minutes by default, 16 with
// brokers of 4.x. After that the marker row still has the message: [TransactionProducer.Unconfirmed] lists it and
// [TransactionProducer.Resend] sends it; Run logs how many there are. A message may become visible twice, under one ID,
// so consumers must deduplicate, as package consumer does.
//
// What happens if it dies here:
//
//   - Between the half message and the transaction, or within: the database has no marker; rolled back when the broker asks.
//   - After the commit, before the broker is told: the marker is found, and the message becomes visible when the broker asks.
//   - The answer to COMMIT is lost: the process does not know what happened and does not say; the marker decides. Send
//     looks once, and else returns dedup.ErrUnavailable.
//   - The transaction runs while the broker asks: its marker is locked, so there is no answer, and the broker asks again.
//   - It has not begun, because all connections are taken, say: it is rolled back, and Send returns [ErrRolledBack].
//   - The process stands still and goes on after hours: a transaction older than TransactionOptions.Limit is not committed.
//   - The database is away when the broker asks: no answer; the broker asks again, each time one time less.
//   - The broker is killed: it asks when it is there again, also about commits that it has forgotten.
//   - After the broker has confirmed, within the tens of milliseconds in which that is not yet noted: the marker counts as
//     unconfirmed, and Resend sends its message once more.
//
// Limits: all processes of a group use one table of one database, and the group has no other producers; a half message of
// another table is never answered, and logged. Where a broker asks earlier than it takes note of answers
// (transactionOpBatchInterval, 3 s by default, against a transactionTimeOut of 6 s), it makes copies of what is committed. There is no order
// among transactions, and no delay. On MySQL a statement that defines tables commits what came before it. A
// Send costs the database two statements in the transaction, the marker and a look whether it is still there, and a share of an
// update for many at once; markers stay for TransactionOptions.Retention, without their message once a broker has it.
//
// # Why not the client library's consumers
//
// Messages and credentials are of the types of apache/rocketmq-client-go, but its
// consumers, push and pull, cannot carry the guarantee (v2.1.3, December 2025): when one queue goes
// to another member, the positions of all others that were not yet written are forgotten
// (remoteBrokerOffsetStore.persist), so that after an orderly Shutdown most of what was acknowledged
// comes again; positions are sent without waiting for an answer; calls on a broken connection wait
// for their timeout instead of failing; a queue cannot be held back alone, so one stuck queue stops
// all; and Shutdown closes a channel that is still sent to. So this package speaks the protocol
// itself: remoting.go is the frame, calls.go the dozen calls it needs, messages.go what pulls bring.
package rocketmq
