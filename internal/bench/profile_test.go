package bench

import "testing"

// BenchmarkIdemq is the last line of BenchmarkConsume by itself, for profiles.
func BenchmarkIdemq(b *testing.B) {
	const n = 200_000
	e := newEnv(b)
	topic := fill(b, e, n, n)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		b.ReportMetric(n/runIdemq(b, e, topic, n).Seconds(), "msg/s")
	}
}
