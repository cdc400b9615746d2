package kafka

// tracker knows which of a partition's delivered offsets are settled, and with them the
// offset that may be committed. It follows the order of delivery, not integers: transaction
// markers, aborted records and compaction leave gaps that nobody will ever settle.
// Its owner locks it.
type tracker struct {
	entries []entry // ring[head:] are delivered and not below the watermark
	head    int
	base    uint64 // sequence number of entries[head]
	open    int    // entries not done
	pos     int64  // everything below it was delivered or skipped
}

type entry struct {
	offset int64
	done   bool
}

// add records the delivery of offset and returns the number that settle takes.
func (t *tracker) add(offset int64) uint64 {
	if t.head > 0 && len(t.entries) == cap(t.entries) && t.head >= len(t.entries)/2 {
		t.entries = t.entries[:copy(t.entries, t.entries[t.head:])]
		t.head = 0
	}
	t.entries = append(t.entries, entry{offset: offset})
	t.open++
	t.advance(offset + 1)
	return t.base + uint64(len(t.entries)-t.head) - 1
}

// advance says that everything below pos was delivered or needs no delivery.
func (t *tracker) advance(pos int64) { t.pos = max(t.pos, pos) }

// settle marks a delivery as never to come again. A number that is below the watermark
// already changes nothing.
func (t *tracker) settle(seq uint64) {
	if seq < t.base || seq-t.base >= uint64(len(t.entries)-t.head) {
		return
	}
	e := &t.entries[t.head+int(seq-t.base)]
	if e.done {
		return
	}
	e.done = true
	t.open--
	for t.head < len(t.entries) && t.entries[t.head].done {
		t.head++
		t.base++
	}
	if t.head == len(t.entries) {
		t.entries, t.head = t.entries[:0], 0
	}
}

// watermark is the offset to commit: the lowest delivered one that is not settled, else the
// position behind everything delivered or skipped. It never falls, because deliveries come
// in ascending order and an entry never opens again.
func (t *tracker) watermark() int64 {
	if t.head < len(t.entries) {
		return t.entries[t.head].offset
	}
	return t.pos
}

// span is how many deliveries lie at or above the watermark, settled ones included: what
// comes again after a crash.
func (t *tracker) span() int { return len(t.entries) - t.head }
