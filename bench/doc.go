// Package bench measures idemq beside other libraries, which only this module brings along: the outbox beside
// watermill's forwarder and beside the brokers' client libraries alone, the HTTP middleware beside fiber's. It has
// benchmarks and nothing else. "make bench" in the folder above starts the servers and runs them; some of it, or less of it:
//
//	make bench-rivals BENCH=Drain BENCHFLAGS="-rows 10000 -rounds 1"
//
// What is compared with each other takes turns within one run, a round each, and the tables, in Markdown, have the medians
// of the rounds: the machine's moods hit all alike, so the ratios hold where the numbers do not.
package bench
