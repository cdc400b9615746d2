// Package rabbitmq consumes and publishes with rabbitmq/amqp091-go.
//
//	cluster := rabbitmq.Cluster{URLs: urls}
//	err := rabbitmq.Topology{Queue: "orders"}.Declare(ctx, cluster) // once, by whoever may
//	source, err := rabbitmq.NewSource(cluster, "orders", nil)
//	c, err := consumer.New(source, guard, handler, nil)
//	err = c.Run(ctx)
//
// # Mapping of terms
//
//   - Scope: "rabbitmq/" and the queue, with the virtual host before it where that is not "/". A
//     message that an exchange puts into two queues is run by both.
//   - Message.ID, the broker's own name: the MessageId property. RabbitMQ makes none, so it counts as
//     set by an application, and the same one with another body is dead-lettered. A message that no
//     rule names is dead-lettered, too, unless consumer.Options.AllowNoID lets it run unprotected.
//   - Message.Topic: exchange/routing key, or the queue alone where it came through the default
//     exchange. A retried or redriven message has that of its first publishing.
//   - Message.Key: the header [KeyHeader]. Message.Headers are text; Raw has them with their types.
//   - Lane: none, or with SourceOptions.Exclusive the queue.
//   - Ack: basic.ack. Those that follow each other without a gap while the ones before are being
//     written are said as one (multiple), which takes nothing that is unsettled.
//   - Retry: a copy, confirmed, in the wait queue with the shortest delay that is long enough, and
//     then the ack. There is a wait queue for each delay of the policy's Backoff, named after the
//     queue: "orders.wait.30s". What is asked for later than the longest comes after that, and is logged.
//   - GiveBack: basic.nack with requeue.
//   - Dead letter: a confirmed copy in the queue's name + ".dead", never a reject. A copy has all properties
//     and headers as they came, types included, but not what the server would act upon: Expiration, CC
//     and BCC, the broker's own x-death and x-delivery-count, and a UserId that is not our user's.
//   - Session: a connection and a channel that consume. Publishing has a connection of its own.
//
// # Delivery guarantee
//
// At least once; package consumer makes it once. A message is in the queue, in a wait queue or
// dead-lettered, and it leaves one only when the next has confirmed it. Wait queues are quorum queues
// that dead-letter at least once (RabbitMQ 3.10 and newer, feature flag stream_queue): when the queue
// is missing, they keep what is due, and the server tries again every 3 minutes, so that is part of Plan.Window.
//
// An acknowledgement has no answer. What was acknowledged just before a session was lost may come again.
//
// # What happens if it dies here
//
//   - Process killed: the server sees the connection end, and delivers what was unsettled again, at once.
//   - Killed between a retry's copy and the ack: both come, under one ID; one is a duplicate.
//   - Connection cut, server restarted, channel closed: Delivery.Lost is closed, words on the old session
//     are no-ops, and a new one is made after half a second, doubled up to half a minute. Running
//     handlers end, and write their verdict.
//   - Server silent: its heartbeats are missed within half a minute. No call waits longer than 10 s.
//   - Handler longer than the server's consumer_timeout: no handler starts that could be. If the option
//     HandlerLimit is wrong, the server closes the channel, and all that was unsettled comes again; what is done is dropped.
//   - Queue deleted: it is waited for. Wait and dead letter queues are declared again when they are
//     missed; where they may not be, a message stays unsettled and is tried again.
//   - Server low on memory or disk space: it stops publishers, so retries and dead letters wait, and
//     their messages stay unsettled; acknowledgements go on.
//   - Credentials or rights refused, a wait queue with other settings, an exclusive source on a queue
//     that is shared: Receive returns the error.
//
// # Limits
//
// A quorum queue gives a message up by itself after its delivery limit: 20 deliveries by default since
// RabbitMQ 4.0. Retries do not count, being new messages, but crashes, lost sessions and messages given back do. Topology
// sets 100,000, and sends what exceeds it to the dead letter queue, whose own limit is 2,147,483,647. An operator's policy can lower the
// limit, which no client can see: set delivery-limit in policies that match these queues to 100000 or not
// at all. The same holds for max-length with drop-head, message-ttl and expires: with them the server drops messages,
// dead letters included. With overflow reject-publish a full dead letter queue keeps messages condemned and unsettled until there is room.
//
// The order of a queue is kept by Exclusive only, and there one message at a time is handled, and
// waits in memory between its attempts; a wait beyond consumer_timeout gives it, and all behind it, back. Without it, retries
// overtake nobody and are overtaken.
//
// A source of a dead letter queue, for consumer.Redrive, is one of a queue like any other and declares wait
// and dead letter queues for it. Where they are not wanted: &SourceOptions{Exclusive: true, DeadLetterQueue: queue}
// declares none, since it waits in memory and gives nothing up.
//
// A process holds at most Prefetch messages. Headers of a message and its copy must fit into one frame (128 KiB, frame_max). A
// message whose headers leave no room for those of a dead letter, some 300 bytes, cannot be given up: it stays unsettled, holds a place
// of Prefetch, and the log says so. Bound the headers of producers.
package rabbitmq
