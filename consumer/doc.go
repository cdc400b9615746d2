// Package consumer runs handlers on a broker's messages, each message's effect once.
//
// A [Consumer] ties a [Source] (Kafka, and others behind the same port) to a [Handler] under a
// [dedup.Guard]. It claims every message in the Guard's store before the handler runs, writes
// the verdict after it, and acknowledges last:
//
//	receive -> name -> claim -> handle -> finish -> settle
//
// The stages overlap and work in batches: a claim call and a finish call carry hundreds of
// messages at full load, and one each when the system is idle.
//
// # What a claim's answer leads to
//
//	acquired               run the handler
//	done                   acknowledge: a duplicate
//	in progress elsewhere  hold it in memory and ask again after 50ms, doubling to 1s; for at most
//	                       Plan.Hold, then back to the broker for later (Kafka: no end). Never acknowledged
//	failed for good        acknowledge: its dead letter was confirmed before
//	condemned              send the dead letter, write Failed, acknowledge
//	mismatch               another content under this ID: dead-lettered under ID and content; run if redriven
//	(not asked)            a redrive of what another group of the topic gave up: acknowledge
//	store down             nothing runs and nothing is acknowledged; after 10s receiving pauses
//
// # What a handler's word leads to
//
//	nil                    Done is written, then acknowledged
//	error, panic           Retryable is written, then again after Policy.Backoff; [RetryAfter] says when
//	[Permanent], or        Condemned is written, the dead letter sent and confirmed,
//	attempts over          Failed written, then acknowledged
//	no word (a crash)      the lease runs out and another consumer takes over
//	an error after its     released, uncounted
//	context was cancelled
//
// Without the store's answer there is no acknowledgement. Where the store answers that another
// owner has taken over, the message is claimed again and that answer obeyed.
//
// # Order
//
// Deliveries of one lane (Kafka: the partition, or the key with LaneByKey) are handled one after
// the other. A message that waits holds its lane, and nothing behind it stays claimed: two lanes
// could otherwise wait for each other for ever. Where a lease is lost a message may run again
// after its successors; among first runs order is kept.
//
// # Messages that kill
//
// A message whose owner vanished is a suspect: it runs while no other handler of this consumer
// runs, so that the next crash, if it comes, is its own. After Policy.MaxCrashes such crashes it is
// dead-lettered without running. Healthy messages that were in progress when the process died
// are not counted down with it: the first crash of any message is free.
//
// A handler that does not return within its timeout and 5s more is a zombie: its slot is freed,
// it shows in [Stats], its message is taken over, and its late word is fenced. Once there are as many
// zombies as slots, Run returns an error, because only a restart can help.
//
// # Names
//
// The first of Options.MessageID with an answer names a message, and that name with the source's
// scope is its record. [HeaderID] takes a header that your producers set: the best choice, since a
// message sent twice carries it twice. [BrokerID] (coordinates) recognises redeliveries only.
// The body's hash tells a duplicate from another message under the same ID, so an ID must come with
// the same bytes each time; where an ID names a piece of business however it is worded, set
// IDRule.BusinessKey.
//
// # Start and end
//
// [New] checks what is declared. Run waits for broker and store, reads what they say of themselves and
// returns an error before the first message if that contradicts the plan. When its ctx ends, it
// stops receiving, gives back what was not begun, lets handlers end for Options.DrainTimeout, then cancels
// their contexts with cause [ErrDrained], and closes the source.
package consumer
