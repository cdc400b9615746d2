package kafka

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/stretchr/testify/require"
)

func TestPartitionWhoseFetchesBringNothingIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		o := (&SourceOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))}).fill()
		s := &Source{opt: o, log: o.Logger, signal: make(chan struct{}, 1)}
		f := &fetcher{g: &generation{src: s}}
		p := newPartition(s, "t", 3, 10, -1)
		nothing := &fetch.ResponsePartition{LastStableOffset: 50}
		const report = `level=ERROR msg="kafka: a partition has records but its fetches bring nothing" topic=t partition=3 offset=10 stable=50`

		require.False(t, f.take(p, nothing, 10))
		time.Sleep(stallAfter)
		require.False(t, f.take(p, nothing, 10))
		require.Empty(t, out.String(), "it may be slow")
		time.Sleep(time.Second)
		require.False(t, f.take(p, nothing, 10))
		require.Contains(t, out.String(), report)
		f.take(p, nothing, 10)
		require.Equal(t, 1, strings.Count(out.String(), "level=ERROR"), "not at each fetch")
		time.Sleep(warnEvery)
		f.take(p, nothing, 10)
		require.Equal(t, 2, strings.Count(out.String(), "level=ERROR"), "it is still so")

		require.True(t, f.take(p, fetchLog([]logBatch{{base: 10, last: 10, offsets: []int64{10}}}, 10, 1, nil), 10))
		time.Sleep(time.Hour)
		require.False(t, f.take(p, &fetch.ResponsePartition{LastStableOffset: 11}, 11))
		require.Equal(t, 2, strings.Count(out.String(), "level=ERROR"), "all is read")
	})
}
