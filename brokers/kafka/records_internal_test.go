package kafka

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// logBatch is one batch of a simulated log, as it is after compaction.
type logBatch struct {
	base, last int64
	offsets    []int64 // of the records that are left
	producer   int64   // of a transaction; 0: none
	marker     bool    // a control batch
	abort      bool    // the marker of an aborted transaction
}

func (b logBatch) reader() protocol.RecordReader {
	if b.marker {
		kind := int16(1)
		if b.abort {
			kind = abortMarker
		}
		c := protocol.NewControlBatch(protocol.ControlRecord{Offset: b.base, Type: kind, Data: make([]byte, 6)})
		c.BaseOffset, c.ProducerID, c.Attributes = b.base, b.producer, protocol.Control|protocol.Transactional
		return c
	}
	var rs []protocol.Record
	for _, o := range b.offsets {
		rs = append(rs, protocol.Record{Offset: o, Value: protocol.NewBytes([]byte{byte(o)})})
	}
	r := &protocol.RecordBatch{BaseOffset: b.base, Records: protocol.NewRecordReader(rs...)}
	if b.producer != 0 {
		r.ProducerID, r.Attributes = b.producer, protocol.Transactional
	}
	return r
}

// fetchLog answers as a broker does: from the batch that holds at, or the first behind it, on.
func fetchLog(log []logBatch, at int64, batches int, aborted []fetch.ResponseTransaction) *fetch.ResponsePartition {
	p := new(fetch.ResponsePartition)
	for _, a := range aborted { // those that end behind the fetch offset
		end := slices.IndexFunc(log, func(b logBatch) bool {
			return b.marker && b.abort && b.base > a.FirstOffset && b.producer == a.ProducerID
		})
		if log[end].base >= at {
			p.AbortedTransactions = append(p.AbortedTransactions, a)
		}
	}
	if n := len(log); n > 0 {
		p.LastStableOffset = log[n-1].last + 1
	}
	i := slices.IndexFunc(log, func(b logBatch) bool { return b.last >= at })
	if i < 0 {
		return p
	}
	s := new(protocol.RecordStream)
	for _, b := range log[i:min(len(log), i+batches)] {
		s.Records = append(s.Records, b.reader())
	}
	p.RecordSet.Records = s
	return p
}

func offsets(rs []protocol.Record) []int64 {
	var os []int64
	for _, r := range rs {
		os = append(os, r.Offset)
	}
	return os
}

func TestAbortedRecordsAndMarkersAreLeftOut(t *testing.T) {
	log := []logBatch{
		{base: 0, last: 1, offsets: []int64{0, 1}, producer: 7},
		{base: 2, last: 2, producer: 7, marker: true},
		{base: 3, last: 4, offsets: []int64{3, 4}, producer: 7}, // aborted
		{base: 5, last: 5, offsets: []int64{5}},
		{base: 6, last: 6, offsets: []int64{6}, producer: 9}, // committed, while 7 is open
		{base: 7, last: 7, producer: 7, marker: true, abort: true},
		{base: 8, last: 8, offsets: []int64{8}, producer: 7},
		{base: 9, last: 9, producer: 9, marker: true},
		{base: 10, last: 10, producer: 7, marker: true},
	}
	f, err := readAnswer(fetchLog(log, 0, 99, []fetch.ResponseTransaction{{ProducerID: 7, FirstOffset: 3}}), 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1, 5, 6, 8}, offsets(f.records))
	require.EqualValues(t, 11, f.end)
}

func TestRecordThatLooksLikeAMarkerIsARecord(t *testing.T) {
	p := &fetch.ResponsePartition{LastStableOffset: 1}
	p.RecordSet.Records = &protocol.RecordStream{Records: []protocol.RecordReader{&protocol.RecordBatch{
		Records: protocol.NewRecordReader(protocol.Record{
			Key: protocol.NewBytes([]byte{0, 0, 0, 1}), Value: protocol.NewBytes(make([]byte, 6)),
		}),
	}}}
	f, err := readAnswer(p, 0)
	require.NoError(t, err)
	require.Len(t, f.records, 1)
}

func TestRecordsBelowTheFetchOffsetAreDropped(t *testing.T) {
	f, err := readAnswer(fetchLog([]logBatch{{base: 0, last: 4, offsets: []int64{0, 1, 2, 3, 4}}}, 3, 1, nil), 3)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 4}, offsets(f.records))
	require.EqualValues(t, 5, f.end)
}

func TestMessageSetOfOldBrokersIsRead(t *testing.T) {
	p := &fetch.ResponsePartition{LastStableOffset: -1}
	p.RecordSet.Records = &protocol.RecordStream{Records: []protocol.RecordReader{&protocol.MessageSet{
		BaseOffset: 2, Records: protocol.NewRecordReader(protocol.Record{Offset: 2}, protocol.Record{Offset: 3}),
	}}}
	f, err := readAnswer(p, 2)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, offsets(f.records))
}

// follow fetches a whole log and returns what was delivered, and in how many fetches.
func follow(t require.TestingT, log []logBatch, start int64, batches func() int, aborted []fetch.ResponseTransaction) (got []int64, pos int64, fetches int) {
	var g gap
	pos = start
	end := log[len(log)-1].last + 1
	for pos < end {
		fetches++
		require.Less(t, fetches, 10_000, "no end at %d of %d", pos, end)
		at := pos + g.step
		p := fetchLog(log, at, batches(), aborted)
		f, err := readAnswer(p, at)
		require.NoError(t, err)
		next, deliver := g.seen(f, pos, p.LastStableOffset)
		require.GreaterOrEqual(t, next, pos)
		require.LessOrEqual(t, next, end)
		if deliver {
			got = append(got, offsets(f.records)...)
		}
		pos = next
	}
	return got, pos, fetches
}

func TestLargeCompactedGapTakesFewFetches(t *testing.T) {
	log := []logBatch{
		{base: 0, last: 4, offsets: []int64{0, 1}},
		{base: 5, last: 99_999}, // compacted away, but the batch is still there
		{base: 200_000, last: 200_001, offsets: []int64{200_000}},
		{base: 200_002, last: 200_002, offsets: []int64{200_002}},
	}
	got, _, fetches := follow(t, log, 0, func() int { return 1 }, nil)
	require.Equal(t, []int64{0, 1, 200_000, 200_002}, got)
	require.Less(t, fetches, 200)
}

func TestEveryVisibleRecordIsDeliveredOnceWhateverCompactionLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log []logBatch
		var want []int64
		var aborted []fetch.ResponseTransaction
		next := int64(0)
		for range rapid.IntRange(1, 12).Draw(t, "batches") {
			next += rapid.Int64Range(0, 4).Draw(t, "hole")
			b := logBatch{base: next, last: next + rapid.Int64Range(0, 40).Draw(t, "length")}
			kind := rapid.SampledFrom([]string{"plain", "aborted", "committed", "empty"}).Draw(t, "kind")
			for o := b.base; o <= b.last && kind != "empty"; o++ {
				if rapid.Bool().Draw(t, "kept") {
					b.offsets = append(b.offsets, o)
				}
			}
			next = b.last + 1
			switch kind {
			case "plain":
				want = append(want, b.offsets...)
				log = append(log, b)
				continue
			case "empty":
				log = append(log, b)
				continue
			case "committed":
				want = append(want, b.offsets...)
			case "aborted":
				aborted = append(aborted, fetch.ResponseTransaction{ProducerID: 5, FirstOffset: b.base})
			}
			b.producer = 5
			log = append(log, b, logBatch{base: next, last: next, producer: 5, marker: true, abort: kind == "aborted"})
			next++
		}
		got, _, _ := follow(t, log, 0, func() int { return rapid.IntRange(1, 3).Draw(t, "answer") }, aborted)
		require.Equal(t, want, got)
	})
}

func TestAnswerWithoutABatchMovesNothing(t *testing.T) {
	// The first batch may not have fitted; the client drops a cut one without a word.
	var g gap
	f, err := readAnswer(&fetch.ResponsePartition{LastStableOffset: 50}, 10)
	require.NoError(t, err)
	next, deliver := g.seen(f, 10, 50)
	require.EqualValues(t, 10, next)
	require.False(t, deliver)
}

func TestStallIsToldFromWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s stall
		require.False(t, s.seen(false))
		time.Sleep(stallAfter)
		require.False(t, s.seen(false))
		time.Sleep(time.Millisecond)
		require.True(t, s.seen(false))
		require.False(t, s.seen(true))
		require.False(t, s.seen(false), "it begins anew")
	})
}

func TestBackoffGrowsToTwoSecondsAndIsJittered(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond, 6: 2 * time.Second, 1000: 2 * time.Second} {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := backoff(n)
			require.GreaterOrEqual(t, d, want/2)
			require.Less(t, d, want)
			seen[d] = true
		}
		require.Greater(t, len(seen), 10)
	}
}
