// Package outbox publishes messages that commit with your own rows.
//
//	out, err := outbox.New(db, outbox.PostgreSQL, nil)
//	err = out.Migrate(ctx)
//
//	err = out.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
//		// your own rows, then:
//		return out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: order.ID, Body: body})
//	})
//
// and, in this process or in others, as many as you like:
//
//	relay, err := outbox.NewRelay(out, publisher, nil) // kafka.NewPublisher, rabbitmq.NewPublisher, rocketmq.NewPublisher
//	err = relay.Run(ctx)
//
// In a transaction that somebody else begins, in consumer.NewInTx say, call Write with it, and
// Relay.Wake or Outbox.Wake after the commit, or leave it to the poll.
//
// # Mapping of terms
//
//   - Message.ID is the ID by which consumers deduplicate: what names a row here names the work there. With
//     consumer's Message.ChildID, a handler that runs twice writes the same rows, and Write ignores them.
//   - Lane: the messages of one key, in the order of their rows. A message without a key is a lane by itself.
//   - Shard: one of 64, by the lane's hash. A relay leases shards, at most 64 divided by the relays that live,
//     rounded up. So no two publish one key, and no row is claimed by a statement of its own.
//   - Token: what one run of a relay has its shards by. Every write-back compares it.
//   - Parked: a message that the broker will never take, or did not take MaxAttempts times. Its row keeps the last
//     error, and holds the later messages of its key (RelayOptions.LetFollowersGo lets them go). Requeue has it tried again.
//   - Outage: the publisher could not ask the broker. No message is charged with an attempt.
//   - Held: a topic of which the broker takes nothing.
//
// # Delivery guarantee
//
// A committed message is published at least once, one that was rolled back never. A message can be published again where a
// relay dies, or loses its shards, between the broker's word and its own note of it, and where the broker's word is
// lost (on RabbitMQ, one message to an exchange that is not there cuts off its neighbours' confirms); consumers drop it by its ID.
//
// First publications of a key are in the order of its rows, over relays and crashes: at most one message of a key
// is with the publisher at a time, and the next one goes when the broker has it. A late copy of an earlier message
// may follow newer ones. The order of rows is the order of commits only where transactions that write for
// one key exclude each other, that is, where the caller locks the aggregate (SELECT … FOR UPDATE, or an
// update of its row) before Write. Two that write for one key side by side may commit in the other order, and
// the one that was written first and committed last then comes last.
//
// A relay reads from the first pending row each time, so one that was written long ago and committed just now is
// found like any other.
//
// # What happens if it dies here
//
//   - The transaction: nothing was written.
//   - A relay, before the broker's word, or after it and before the write-back: its shards are taken over when their
//     lease is over, and the rows are published, or published again.
//   - A relay that stood still beyond its lease: it holds its shards for over by its own monotonic clock, and begins nothing; what it
//     was about to write back is refused, since the token is another's.
//   - The broker: relays try again, with a backoff up to RelayOptions.MaxBackoff. Rows wait.
//   - The database: what the broker has is noted when the database is back, as long as the lease may be ours; Run goes on. A
//     statement that is not answered within a third of the lease is given up, with its connection, and sent again by another.
//   - A stop: Run begins nothing more when its context ends, waits for the publisher, writes back and gives its shards to the others.
//
// Leases are compared with the database's clock only. On SQLite that is the clock of the machine.
//
// # Limits
//
// An ID has at most 255 bytes, a topic 512, a key 1024, all of it, and headers, valid UTF-8 without NUL. One
// Write takes at most 1,000 messages with 6 MiB together. A relay has a few times RelayOptions.Batch
// messages in memory, of large ones some tens of MiB. Brokers have limits of their own: a message beyond one is parked.
//
// A topic that takes nothing, a missing one say, is held: one of its messages is tried at a time, with a backoff of the topic's own, another
// one each time, while the other topics go on. Where the topic is missing each try costs its message an attempt, and parks it after
// RelayOptions.MaxAttempts; where the broker said that it is unavailable ([Unavailable]) it costs nothing. What has the key of a message that is held
// waits with it, earlier messages too. Of a topic that takes some, while a partition of it is away, at most 5,000 wait each by itself; then no more of it is
// read. Reads pass over all that is held, so that they become slower where that are hundreds of thousands.
//
// An ID is remembered as long as its row: RelayOptions.Retention after it was sent. Content is topic, key, headers and body,
// without headers of tracing (traceparent, tracestate, baggage, b3, x-b3-*, uber-trace-id): a handler that runs again is another trace.
// A message that was published before its ID came again is not published again.
//
// Return the error of every statement from the transaction, also of one that does not matter to you: at a deadlock MySQL takes back the
// whole transaction, SQLite at some errors, too, and what is written after that commits by itself, a message without its rows for one.
// InTx finds that out, at two round trips more on MySQL, and returns dedup.ErrTxEnded; a transaction of your own does not.
//
// On MySQL and SQLite an ID that is there already is locked until the transaction that wrote it again ends: a relay's note
// about that row waits for it, a second on MariaDB and with it the notes of the same batch, which then go on without it. MySQL has no such limit for one statement: the
// wait is a third of the lease, or innodb_lock_wait_timeout where that is shorter; set it to a few seconds. On PostgreSQL nothing waits.
//
// Rows behind a parked message are passed over with each read, and so are dead entries of the index while a
// transaction of hours keeps the server from removing them: then reads become slower, and a relay waits four times as
// long as its last read took. On MySQL each read gathers the lanes of all that is parked, which takes seconds where that are
// a million. The order of rows is that of one server's numbers; a cluster that is written to on several nodes at once
// has no such order. Statements are for the primary.
//
// # PostgreSQL's NOTIFY
//
// With Options.Notify, InTx notifies Outbox.Channel after its commits, on another connection of the pool and at most once in
// 10 ms. A relay hears it by RelayOptions.Listen, on a connection that the program makes, so that this package needs no driver; with pgx:
//
//	Listen: func(ctx context.Context, channel string, notified func()) error {
//		c, err := pgx.Connect(ctx, dsn)
//		if err != nil {
//			return err
//		}
//		defer c.Close(context.WithoutCancel(ctx))
//		if _, err := c.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
//			return err
//		}
//		for {
//			if _, err := c.WaitForNotification(ctx); err != nil {
//				return err
//			}
//			notified()
//		}
//	}
//
// Relays poll besides, so nothing depends on a notification.
//
// # Schema
//
// The table of messages, idemq_outbox:
//
//	seq         the order of rows
//	id          the message's ID, unique
//	topic, msg_key, headers (JSON), body   the message; msg_key is null where it has none, body is null where it is nil
//	state       0 pending, 1 sent, 2 parked
//	attempts    how often the broker did not take it
//	last_error  why, the last time
//	lane        the key's hash, or the ID's; shard is lane modulo 64
//	content     the hash by which two messages of one ID are told apart
//	other       always 0: the constraint on it refuses another message under an ID that is there
//	created_at, sent_at   microseconds since 1970, by the database's clock
//
// Beside it, idemq_outbox_shards: shard (0 to 63, and 64 for the right to sweep), token (whose), lease_until; and
// idemq_outbox_relays: token, name, alive_until. Migrate notes the version of all three in idemq_schema. Reading all of them is safe, and so is deleting rows of state 1 or 2. For what
// is parked:
//
//	SELECT id, topic, attempts, last_error FROM idemq_outbox WHERE state = 2
package outbox
