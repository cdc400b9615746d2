package rocketmq

// tracker knows which of a queue's delivered offsets are settled, and with them the offset that
// may be committed. It follows the order of delivery, not integers: messages that a tag filter
// left out leave gaps that nobody will ever settle. Its owner locks it.
type tracker struct {
	window []slot // delivered and not below the watermark
	first  uint64 // sequence number of window[0]
	open   int    // slots not done
	pos    int64  // everything below it was delivered or left out
}

type slot struct {
	offset int64
	done   bool
}

// add records the delivery of offset and returns the number that settle takes.
func (t *tracker) add(offset int64) uint64 {
	t.window = append(t.window, slot{offset: offset})
	t.open++
	t.advance(offset + 1)
	return t.first + uint64(len(t.window)) - 1
}

// advance says that everything below pos was delivered or needs no delivery.
func (t *tracker) advance(pos int64) { t.pos = max(t.pos, pos) }

// settle marks a delivery as never to come again. A number below the watermark changes nothing.
func (t *tracker) settle(seq uint64) {
	if seq < t.first || seq-t.first >= uint64(len(t.window)) {
		return
	}
	s := &t.window[seq-t.first]
	if s.done {
		return
	}
	s.done = true
	t.open--
	n := 0
	for n < len(t.window) && t.window[n].done {
		n++
	}
	t.first += uint64(n)
	if t.window = t.window[n:]; len(t.window) == 0 {
		t.window = nil
	}
}

// watermark is the offset to commit: the lowest delivered one that is not settled, else the
// position behind everything delivered or left out. It never falls.
func (t *tracker) watermark() int64 {
	if len(t.window) > 0 {
		return t.window[0].offset
	}
	return t.pos
}

// span is how many deliveries lie at or above the watermark: what comes again after a crash.
func (t *tracker) span() int { return len(t.window) }
