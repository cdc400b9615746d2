// Package deduptest is the conformance suite for implementations of dedup.Store: who writes a Store
// needs this page, the port's doc comments and a green run.
//
//	func TestStore(t *testing.T) {
//		deduptest.TestStore(t, deduptest.Config{Open: func(tb testing.TB) dedup.Store { return open(tb) }})
//	}
//
// Run it on everything that claims to be the store: a fake and the real server alike. Keys are
// random, so a server may be shared; nothing is cleaned up, since every record expires.
//
// # The rules
//
// A failing subtest is named after the rule that is broken.
//
//  1. Of any number of simultaneous claims of one key exactly one acquires. The read of a record
//     and its write are one atomic step.
//  2. Every call may be repeated by its owner and then changes nothing: a Claim that finds its own
//     token in progress answers Acquired with the same epoch, in a finished record that record's
//     state; a Finish that finds its own verdict answers nil.
//  3. Extend and Finish compare the owner token and the state. On anything but the owner's own live
//     claim they answer ErrSuperseded and nothing changes; a late beat revives nothing. On a
//     condemned record only Failed finishes. Released gives it back: it stays condemned for the next
//     owner, and the former one can neither beat nor finish it.
//  4. An owner whose lease is over, but whom nobody followed, may still beat and finish.
//  5. A missing record does not supersede, nor does one of a lower epoch than the caller's that is
//     not done (the store went back in time): Finish writes its verdict, Extend makes the claim
//     again, from what the request carries, and both answer ErrRecordLost. A Finish that a condemned
//     claim does not allow is ErrSuperseded here too, and writes nothing.
//  6. A takeover is compare-and-set: it never overwrites a finished record.
//  7. What is in progress is never answered as done, and carries the time left of its lease.
//  8. Every write carries an expiry: the retention of the request that wrote, and not before its lease ends.
//     A record that cannot be decoded is an item's error, never an answer.
//  9. The deadline of a lease stands in the record and is compared with the store's own clock;
//     nothing that an asker brings moves it.
//  10. out[i] answers in[i]. A bad item, such as a Finish as a state that is no outcome, gets an error
//     of its own and spoils no other. An ended context is an error.
//  11. Once retention is over the key is new: nothing of the old life is remembered, and a late owner of it
//     cannot touch the new one. Retention begins with the verdict; no asking prolongs it.
//  12. Each claim that acquires has a higher epoch than every one before it on its key, also across a lost
//     record: max(previous + 1, the store's clock in milliseconds).
//  13. A claim with a higher redrive number takes what failed for good, and what is condemned once nobody
//     holds it; never what is done or runs. The record's number never falls; a higher one starts attempts and
//     crashes anew.
//  14. Retryable counts an attempt and starts crashes anew. A takeover of running work counts a crash
//     if there was none yet or if its owner had said Alone; a takeover of a condemned record and a release
//     count nothing. Done starts both anew.
//
// Beside them stand the cases Claim (fingerprints, MustExist), Content (results, reasons), and one
// group for each optional port, dedup.Admin and dedup.Pinger, left out where the Store is none.
//
// # Time
//
// Leases that must not end last a minute. Those that must end last Config.Lease, and Config.Advance
// then moves the store's clock past them; by its default the case sleeps, so that nothing about
// the store needs to be faked. No case depends on being fast.
//
// # More than the cases
//
// [CheckModel] drives any Store through random runs and compares it with a model of the rules.
// [Explore] does the same for every order of a few calls, for stores in memory that can be copied.
// [BenchmarkStore] measures. [Faulty] wraps a Store to lose calls and replies, for tests of what
// stands on a Store.
package deduptest
