// Package consumertest has an in-memory broker for tests of handlers, and the conformance suite
// for whoever writes a consumer.Source.
//
// # Testing a handler
//
// A [Broker] stands in for Kafka, RocketMQ or RabbitMQ. With it, dedup/memstore and
// testing/synctest, a test drives a handler through everything that a broker does to it, in
// virtual time: leases, retries and backoff cost nothing.
//
//	func TestOrderIsChargedOnce(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			b := consumertest.NewBroker() // inside the bubble, like everything it meets
//			order := consumer.Message{ID: "order-1", Body: []byte(`{"cents":100}`)}
//			b.Publish(order, order) // the producer sent it twice
//
//			guard, err := dedup.New("billing", memstore.New(), nil)
//			require.NoError(t, err)
//			c, err := consumer.New(b, guard, handle, nil)
//			require.NoError(t, err)
//			stats := b.Drain(t, c)
//			require.EqualValues(t, 1, stats.Duplicates)
//			require.Empty(t, b.DeadLetters())
//		})
//	}
//
// What to test, and how:
//
//   - a failure and its retries: the handler returns an error at first. By default there are 5
//     attempts, 1s, 2s, 4s and 8s apart.
//   - a producer's duplicate: Publish the same ID and body twice. The same ID with another body
//     is dead-lettered.
//   - a broker's duplicate: [Broker.Redeliver] brings everything once more, acknowledged or not,
//     as after a session whose acknowledgements were lost. [Broker.Cut] does so to what is not settled.
//   - a restart: Drain a second Consumer, with the same store, on the same Broker.
//   - a poison message: return consumer.Permanent, then look at [Broker.DeadLetters].
//   - a redrive: Publish what DeadLetters returned.
//   - a broker that fails: [Broker.Fail].
//   - a broker like Kafka, which cannot postpone a message: [Broker.Hold] = -1.
//   - several processes: each has a Guard and a Consumer, on a [Broker.Member] of its own.
//
// [Broker.Drain] returns once everything is settled for good, so nothing needs to be waited for
// by hand; what handlers publish meanwhile is part of it. Without a synctest bubble all of this
// works, too, in real time.
//
// # Writing a Source
//
// A Source has three methods, its deliveries four words, and [TestSource] holds the rules that
// these keep. The test of an adapter gives it one function, which makes a new topic or queue for
// each rule:
//
//	func TestSource(t *testing.T) {
//		consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
//			topic := newTopic(tb)
//			return consumertest.Config{
//				Open:        func(tb testing.TB) consumer.Source { return newSource(tb, topic) },
//				Publish:     topic.publish,
//				DeadLetters: topic.deadLetters,
//				Cut:         topic.cut,
//			}
//		})
//	}
//
// Run it on a fake of the broker, for speed, and on the real one, so that the fake cannot drift.
// Every case waits for events, for as long as Config.Patience; only silence is waited out. A
// failing subtest is named after the rule:
//
//   - Plan…: what a policy and the broker's settings mean together, and what cannot be meant.
//   - EveryMessage…, MessageArrives…, Receive…, MadeTells…, OrderIsKept…: what arrives, and as what.
//   - SecondSettle…, OneOfMany…, Settles…: the one final word, from any goroutine.
//   - Acknowledged…, Unsettled…, Watermark…, ID…: what comes again, and under which ID.
//   - Retry…, GiveBack…: later, or at once, and never an end.
//   - DeadLetter…: a confirmed copy, which is not the last word.
//   - Members…, Lost…, Close…, Cut…, SettleOnALostSession…: sessions and their loss.
//
// Before any word is said, a delivery is named as a Consumer names it, which changes its ID: a
// Source that makes copies (Retry) or dead letters must be ready for that. At most ten
// deliveries are unsettled at once, so smaller bounds than that cannot be tested.
//
// Beyond the suite are faults that only a test of the adapter can cause: repeated headers, a
// server that restarts or refuses, settings read from it, limits of its delays, and connections that
// are silent rather than broken.
package consumertest
