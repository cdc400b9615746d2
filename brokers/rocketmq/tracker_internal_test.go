package rocketmq

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The watermark is the lowest delivered offset that is not settled, and never falls, in whatever
// order deliveries are settled and whatever a filter leaves out.
func TestWatermarkIsTheLowestUnsettledOffset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr tracker
		open := map[uint64]int64{}
		offset, last := int64(rapid.IntRange(0, 100).Draw(t, "start")), int64(0)
		tr.pos = offset
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				open[tr.add(offset)] = offset
				offset++
			case 1: // left out
				offset += int64(rapid.IntRange(1, 40).Draw(t, "gap"))
				tr.advance(offset)
			default:
				seq := uint64(rapid.IntRange(0, 300).Draw(t, "settle"))
				tr.settle(seq) // also one that was never given out, or settled before
				delete(open, seq)
			}
			want := offset
			for _, o := range open {
				want = min(want, o)
			}
			require.Equal(t, want, tr.watermark())
			require.Equal(t, len(open), tr.open)
			require.GreaterOrEqual(t, tr.span(), tr.open)
			require.GreaterOrEqual(t, tr.watermark(), last, "it fell")
			last = tr.watermark()
		}
	})
}
