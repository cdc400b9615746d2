package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWatermarkIsTheLowestUnsettledDelivery(t *testing.T) {
	tr := tracker{pos: 5}
	require.EqualValues(t, 5, tr.watermark())
	a, b, c := tr.add(5), tr.add(9), tr.add(10) // 6 to 8 are markers, or compacted away
	tr.settle(c)
	tr.settle(b)
	require.EqualValues(t, 5, tr.watermark())
	require.Equal(t, 1, tr.open)
	require.Equal(t, 3, tr.span())
	tr.settle(a)
	require.EqualValues(t, 11, tr.watermark())
	require.Zero(t, tr.span())
}

func TestWatermarkGoesPastWhatIsSkipped(t *testing.T) {
	tr := tracker{pos: 0}
	tr.advance(7)
	require.EqualValues(t, 7, tr.watermark())
	a := tr.add(7)
	tr.advance(12)
	require.EqualValues(t, 7, tr.watermark(), "a skipped record passed an unsettled one")
	tr.settle(a)
	require.EqualValues(t, 12, tr.watermark())
	tr.advance(3)
	require.EqualValues(t, 12, tr.watermark(), "the position went back")
}

func TestWatermarkFollowsDeliveryUnderAnyOrderOfSettling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Int64Range(0, 50).Draw(t, "start")
		tr := tracker{pos: start}
		type sent struct {
			offset int64
			seq    uint64
			done   bool
		}
		var all []sent
		next, low := start, start
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				next += rapid.Int64Range(0, 3).Draw(t, "gap")
				all = append(all, sent{offset: next, seq: tr.add(next)})
				next++
			case 2:
				if len(all) > 0 {
					i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
					all[i].done = true
					tr.settle(all[i].seq)
				}
			case 3:
				next += rapid.Int64Range(0, 3).Draw(t, "skip")
				tr.advance(next)
			}
			want, open := next, 0
			for i := len(all) - 1; i >= 0; i-- {
				if !all[i].done {
					want = all[i].offset
					open++
				}
			}
			if open == 0 {
				want = tr.pos
			}
			require.Equal(t, want, tr.watermark())
			require.Equal(t, open, tr.open)
			require.GreaterOrEqual(t, tr.watermark(), low, "the watermark fell")
			low = tr.watermark()
		}
	})
}

func TestTrackerKeepsNoMemoryOfWhatIsBelowTheWatermark(t *testing.T) {
	var tr tracker
	var window []uint64
	for i := range int64(100_000) {
		window = append(window, tr.add(i))
		if len(window) == 256 {
			tr.settle(window[0])
			window = window[1:]
		}
	}
	require.LessOrEqual(t, cap(tr.entries), 2048)
}
