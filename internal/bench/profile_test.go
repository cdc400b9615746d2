package bench

import "testing"

// BenchmarkIdemq is the last line of BenchmarkConsume by itself, for profiles, and BenchmarkSource the
// line before it.
func BenchmarkIdemq(b *testing.B) { profiled(b, "idemq") }

func BenchmarkSource(b *testing.B) { profiled(b, "Source alone") }

func profiled(b *testing.B, name string) {
	e := newEnv(b)
	for _, of := range e.brokers {
		b.Run(of.name, func(b *testing.B) {
			topic, drop := of.fill(b, of.messages, of.messages)
			defer drop()
			for _, s := range e.subjects(of) {
				if s.name == name {
					b.ReportAllocs()
					b.ResetTimer()
					b.ReportMetric(float64(of.messages)/s.time(b, topic, of.messages).Seconds(), "msg/s")
				}
			}
		})
	}
}
