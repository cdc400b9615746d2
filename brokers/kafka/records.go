package kafka

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const abortMarker = 0 // ControlRecord.Type of a transaction that was aborted

// answer is what one fetch brought of one partition, without what nobody shall see: markers
// of transactions, aborted records, and records below the position that was asked for.
// Keys and values are still in the client's pages.
type answer struct {
	records []protocol.Record
	high    int64 // the partition's high watermark
	end     int64 // where to fetch next, and where the watermark may go once all records are settled
}

// close returns the pages of what was not read.
func (a *answer) close() {
	for i := range a.records {
		closeRecord(&a.records[i])
	}
	a.records = nil
}

func closeRecord(r *protocol.Record) {
	if r.Key != nil {
		r.Key.Close()
	}
	if r.Value != nil {
		r.Value.Close()
	}
}

// filter reads the batches of one partition's answer.
type filter struct {
	answer
	from    int64                       // the offset that was asked for
	aborted []fetch.ResponseTransaction // by FirstOffset; those before the batch at hand are in now
	now     map[int64]bool              // producers whose current transaction was aborted

	first int64 // base offset of the first batch
	last  int64 // base offset of the last batch
	batch int   // batches read
}

// readAnswer decodes what came for a fetch from offset from. It never drops a record for
// its looks: only a control batch is a marker, and only a transactional batch of a producer
// that the broker names in AbortedTransactions is aborted.
func readAnswer(p *fetch.ResponsePartition, from int64) (*filter, error) {
	f := &filter{answer: answer{end: from}, from: from}
	if p.RecordSet.Records == nil {
		return f, nil
	}
	f.aborted = slices.Clone(p.AbortedTransactions)
	slices.SortFunc(f.aborted, func(a, b fetch.ResponseTransaction) int { return int(min(1, max(-1, a.FirstOffset-b.FirstOffset))) })
	batches := []protocol.RecordReader{p.RecordSet.Records}
	if s, ok := p.RecordSet.Records.(*protocol.RecordStream); ok {
		batches = s.Records
	}
	for _, b := range batches {
		if err := f.read(b); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

func (f *filter) read(b protocol.RecordReader) error {
	switch b := b.(type) {
	case *protocol.ControlBatch:
		f.begin(b.BaseOffset)
		return f.marker(b)
	case *protocol.RecordBatch:
		f.begin(b.BaseOffset)
		return f.data(b, b.Attributes.Transactional() && f.now[b.ProducerID])
	case *protocol.MessageSet: // format of brokers before 0.11, which knew no transactions
		f.begin(b.BaseOffset)
		return f.data(b, false)
	default:
		return fmt.Errorf("records of unknown kind %T", b)
	}
}

// begin takes note of the transactions that begin at or before the next batch, whose first
// one has its base offset.
func (f *filter) begin(base int64) {
	if f.batch == 0 {
		f.first = base
	}
	f.last = base
	f.batch++
	for len(f.aborted) > 0 && f.aborted[0].FirstOffset <= base {
		if f.now == nil {
			f.now = make(map[int64]bool)
		}
		f.now[f.aborted[0].ProducerID] = true
		f.aborted = f.aborted[1:]
	}
}

func (f *filter) marker(b *protocol.ControlBatch) error {
	for {
		r, err := b.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.end = max(f.end, r.Offset+1)
		c, err := protocol.ReadControlRecord(r) // closes r
		if err == nil && c.Type == abortMarker {
			delete(f.now, b.ProducerID)
		}
	}
}

func (f *filter) data(b protocol.RecordReader, aborted bool) error {
	for {
		r, err := b.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case r.Offset < f.end: // the batch began below what was asked for
			closeRecord(r)
		case aborted:
			f.end = r.Offset + 1
			closeRecord(r)
		default:
			f.end = r.Offset + 1
			f.records = append(f.records, *r)
		}
	}
}

// gap finds the end of a stretch of a log that holds no record any more. Compaction leaves
// batches without records, and the client does not tell where they end; but a fetch from
// inside such a batch brings it again, and one from behind it brings another. So the fetches
// gallop, 1, 2, 4 … offsets ahead of the position, and begin anew when one went too far.
type gap struct {
	base int64 // base offset of the batch that was empty
	step int64 // how far ahead of the position the next fetch begins; 0: no gap
}

// seen takes what a fetch from pos+step brought and returns the new position, and whether the
// records of f are to be delivered. stable is the end of what a fetch can bring.
func (g *gap) seen(f *filter, pos, stable int64) (next int64, deliver bool) {
	at := pos + g.step
	switch {
	case f.batch == 0, g.step > 0 && f.first != g.base:
		// Nothing came, not even a batch (the end, or the first one did not fit), or the
		// probe has left the empty batch: what lies between pos and at is not known.
		g.step = 0
		return pos, false
	case f.end > at:
		g.step = 0
		return f.end, true
	case f.last > at: // only empty batches, of which the last begins further on
		g.step = 0
		return f.last, false
	case at >= stable:
		g.step = 0
		return pos, false
	}
	g.base = f.first
	g.step = max(1, 2*g.step)
	if at+1+g.step >= stable {
		g.step = 0
	}
	return at + 1, false
}
