package memstore_test

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/stretchr/testify/require"
)

// fill claims n keys and ends them as done.
func fill(t *testing.T, s dedup.Store, n int, retention time.Duration) {
	t.Helper()
	in, out, errs := make([]dedup.ClaimRequest, 1), make([]dedup.Verdict, 1), make([]error, 1)
	for i := range n {
		in[0] = dedup.ClaimRequest{Owner: dedup.Owner{1}, Lease: time.Millisecond, Retention: retention}
		binary.BigEndian.PutUint64(in[0].Key[:], uint64(i))
		require.NoError(t, s.Claim(t.Context(), in, out))
		require.Equal(t, dedup.Acquired, out[0].State)
		word := []dedup.FinishRequest{{Held: dedup.Held{ClaimRequest: in[0], Epoch: out[0].Epoch, Attempt: 1}, State: dedup.Done}}
		require.NoError(t, s.Finish(t.Context(), word, errs))
		require.NoError(t, errs[0])
	}
}

func TestExpiredRecordsAreDroppedAsOthersAreClaimed(t *testing.T) {
	s := newForkable()
	fill(t, s, 1_000, time.Second)
	s.Advance(time.Second)
	require.Equal(t, 1_000, s.Len())
	in := []dedup.ClaimRequest{{Key: dedup.Key{0xff}, Owner: dedup.Owner{1}, Lease: time.Hour, Retention: time.Hour}}
	for range 20_000 {
		require.NoError(t, s.Claim(t.Context(), in, make([]dedup.Verdict, 1)))
	}
	require.Less(t, s.Len(), 50, "of 1,000 expired records, after 20,000 claims of one key")
}

func TestRecordBytesIsAboutWhatARecordCosts(t *testing.T) {
	const n = 50_000
	s := memstore.New()
	before := heap()
	fill(t, s, n, time.Hour)
	cost := float64(heap()-before) / n
	t.Logf("%.0f bytes a record", cost)
	require.InEpsilon(t, cost, s.RecordBytes(), 0.5)
	runtime.KeepAlive(s)
}

func TestMemoryFollowsTheLiveRecordsDown(t *testing.T) {
	const n = 20_000
	s := newForkable()
	before := int64(heap())
	fill(t, s.Store, n, time.Second)
	full := int64(heap()) - before
	s.Advance(time.Second)
	in := []dedup.ClaimRequest{{Key: dedup.Key{0xff}, Owner: dedup.Owner{1}, Lease: time.Hour, Retention: time.Hour}}
	out := make([]dedup.Verdict, 1)
	for range 20 * n {
		require.NoError(t, s.Claim(t.Context(), in, out))
	}
	require.Less(t, s.Len(), n/100)
	require.Less(t, int64(heap())-before, full/10, "of a burst that is over, room included")
	runtime.KeepAlive(s)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
