package deduptest

import "testing"

// CheckModel drives a Store at random against a model of the rules.
func CheckModel(t *testing.T, c Config) { t.Helper() }

// BenchmarkStore measures the fast paths at several batch sizes.
func BenchmarkStore(b *testing.B, c Config) { b.Helper() }
