// Package kafka consumes and publishes with segmentio/kafka-go.
//
//	source, err := kafka.NewSource(kafka.Cluster{Brokers: brokers}, "billing", []string{"orders"}, nil)
//	c, err := consumer.New(source, guard, handler, nil)
//	err = c.Run(ctx)
//
// # Mapping of terms
//
//   - Scope: "kafka/" and the consumer group. Two groups both run a message.
//   - Message.ID, the broker's own name: topic/partition/offset. It is the same on each redelivery, but
//     not after the producer has sent again, and a topic made anew begins at 0 again; so it
//     counts as made by a machine, and a header of the application's own outranks it.
//   - Lane: the partition, or with SourceOptions.LaneByKey topic, partition and record key together: producers
//     that spread one key over partitions have no order to keep.
//   - Ack: part of the group's position, the lowest offset delivered and not acknowledged. The
//     position is committed each second, when partitions are taken away, and by Close, with the
//     generation of the group it belongs to: one that comes late is refused, so it never goes back.
//   - Retry: Kafka cannot postpone a message, so it waits in memory and holds the position. The
//     consumer therefore does its own waiting (Plan.Hold is negative).
//   - GiveBack: delivered again from memory; after a rebalance, by the broker to the next owner.
//   - Dead letter: a confirmed copy in the topic's name + ".dlt", made when it is first needed, for records of
//     twice the size that the topic takes (where the cluster lets clients choose that). The
//     key, the value (null or empty as it was) and all headers are kept.
//   - Session: the membership in the group, a member for all topics that exist.
//
// # Delivery guarantee
//
// At least once; package consumer makes it once. Fetches are read-committed: no record of an
// aborted transaction, and no marker, reaches a handler, and records of an open one are waited
// for. No record is dropped for looking like a marker. The position goes past what is left out.
//
// A topic that does not exist is waited for by name, while the others are consumed. Partitions
// that are added are read from their beginning within a few seconds, with FromLatest, too, where
// a member was running when they came; else a group without a position there begins at the end.
//
// # What happens if it dies here
//
//   - Process killed: the group waits SessionTimeout, then gives its partitions to others, who begin
//     at the last position: what was done since is dropped as done, what was not is run.
//   - Partitions move: fetching stops at once, Delivery.Lost is closed, and what was delivered has a
//     third of the shorter of SessionTimeout and RebalanceTimeout to be acknowledged. Later
//     acknowledgements are no-ops; the next owner asks for those messages and is told that they are done.
//   - Broker gone: fetching and committing are repeated, with a backoff of at most 2 s, until it is back.
//   - Position below the start of the log (retention has overtaken the group): an error is logged that says
//     how many offsets are lost, and reading goes on at the start.
//   - Position beyond the end (the topic was made anew, or an unclean leader election cut its tail): an error is logged, and reading
//     begins at the start, since what was written in the place of the lost tail could not be told from what was read. What is
//     older than the retention of dedup records then runs again: stop the consumer, and reset the position by hand where you know better.
//   - Dead letter larger than its topic takes (max.message.bytes; a copy has five headers more, one of which is
//     the ID): it is sent compressed, then without its cause. If that, too, is refused, an error is logged that
//     names topic, size and setting, and the message is kept and tried again each few seconds; it holds its partition's
//     position, while what is behind it goes on, up to the limits below. The way out is to raise the topic's
//     max.message.bytes (kafka-configs.sh --alter), which needs no restart; or, to let the message go, to stop
//     the group and move its position past it (kafka-consumer-groups.sh --reset-offsets). A topic that takes less
//     than its origin is pointed out at the start. A redrive of such a message may need more room in the origin, too.
//   - Records that cannot be decoded: their partition stands still, and says so each half minute. Nothing is skipped.
//   - Credentials or rights refused, a session timeout that the broker refuses, a compacted dead
//     letter topic: Receive returns the error.
//
// # Limits
//
// A group of this client rebalances eagerly: each member that comes or goes takes all partitions from all for a moment.
// At most MaxInFlight deliveries of a partition are unsettled, and no more than 64 times as many lie
// between the first unsettled and the last one; a partition at a limit is not fetched, the others go on.
// No record of more than 95 MiB, uncompressed, is dead-lettered: brokers take requests of 100 MiB by default.
// An offset reset, or positions that expire in an idle group (offsets.retention.minutes), brings back
// everything the topic retains, which no retention of dedup records covers.
//
// A [Publisher] is not idempotent in Kafka's own sense: after a lost answer a message may be there
// twice, under one ID. Keys choose their partition by FNV-1a, as kafka.Hash and Sarama do, not as Java clients do.
package kafka
