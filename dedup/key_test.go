package dedup_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
)

func TestFingerprintsTellPartsApart(t *testing.T) {
	seen := map[dedup.Fingerprint]bool{{}: true}
	for _, parts := range [][][]byte{nil, {nil}, {nil, nil}, {[]byte("ab")}, {[]byte("a"), []byte("b")}, {[]byte("ab"), nil}, {bytes.Repeat([]byte("x"), 1<<20)}} {
		f := dedup.FingerprintOf(parts...)
		require.False(t, seen[f], "%q", parts)
		seen[f] = true
		require.Equal(t, f, dedup.FingerprintOf(parts...))
	}
}

func BenchmarkFingerprint(b *testing.B) {
	body := make([]byte, 512)
	b.ReportAllocs()
	for b.Loop() {
		dedup.FingerprintOf(body)
	}
}
