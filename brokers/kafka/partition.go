package kafka

import (
	"strconv"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/segmentio/kafka-go"
)

// partition is one partition during one assignment to this member. When it is taken away, or
// its log begins anew, the object is dropped for good: a late settle finds it gone, so it can
// never move the offset of a later assignment.
type partition struct {
	src   *Source
	topic string
	id    int
	name  string        // "topic/partition": the lane
	lost  chan struct{} // closed by revoke

	mu          sync.Mutex
	track       tracker
	queue       []answer // fetched, not delivered
	queued      int      // records in queue
	outstanding int      // delivered, without a word yet
	committed   int64    // -1: not known, so the next commit sends it
	revoked     bool     // nothing is delivered any more; Ack still counts
	gone        bool     // nothing counts any more
	full        bool     // at MaxInFlight: not fetched until half of it is free
	blocked     bool     // Receive found records, but no room
	idle        chan struct{}

	// Of the fetcher.
	loop     *fetcher
	fetching bool
	next     int64 // where to fetch
	gap      gap
	alone    bool // its last answer could not be decoded: ask for it without the others
	failures int
	retryAt  time.Time
	stall    stall
}

func newPartition(s *Source, topic string, id int, pos int64, committed int64) *partition {
	p := &partition{
		src: s, topic: topic, id: id, name: topic + "/" + strconv.Itoa(id),
		lost: make(chan struct{}), next: pos, committed: committed,
	}
	p.track.pos = pos
	return p
}

// spanFactor bounds, in windows, how far deliveries may run ahead of one that is not settled:
// the memory of the tracker, and what is fetched again after a crash.
const spanFactor = 64

// room is how many records may be delivered now. With p.mu.
func (p *partition) room() int {
	limit := p.src.opt.MaxInFlight
	return min(limit-p.track.open, limit*spanFactor-p.track.span())
}

// wanted reports whether p should be part of a fetch: up to one answer waits behind the
// one that is being delivered, and none is asked for while p is full. With p.mu.
func (p *partition) wanted() bool {
	return !p.revoked && !p.fetching && !p.full && (len(p.queue) < 2 || p.queued < p.src.opt.MaxInFlight/2)
}

// push queues what a fetch brought.
func (p *partition) push(a answer) (accepted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked {
		return false
	}
	switch n := len(p.queue); {
	case len(a.records) > 0:
		p.queue = append(p.queue, a)
		p.queued += len(a.records)
	case n > 0: // nothing to deliver, but the position goes on once the queue is delivered
		p.queue[n-1].end = a.end
	default:
		p.track.advance(a.end)
	}
	return len(a.records) > 0
}

// take appends at most limit deliveries to ds.
func (p *partition) take(ds []consumer.Delivery, limit int) []consumer.Delivery {
	for limit > 0 {
		p.mu.Lock()
		if p.revoked || len(p.queue) == 0 {
			p.mu.Unlock()
			return ds
		}
		room := p.room()
		p.full = p.full || room <= 0
		if p.blocked = room <= 0; p.blocked {
			p.mu.Unlock()
			return ds
		}
		a := &p.queue[0]
		recs := a.records[:min(limit, room, len(a.records))]
		var seq uint64
		for i := range recs {
			if n := p.track.add(recs[i].Offset); i == 0 {
				seq = n
			}
		}
		high := a.high
		p.queued -= len(recs)
		p.outstanding += len(recs)
		if a.records = a.records[len(recs):]; len(a.records) == 0 {
			p.track.advance(a.end)
			p.queue[0] = answer{}
			if p.queue = p.queue[1:]; len(p.queue) == 0 {
				p.queue = nil
			}
		}
		loop := p.loop
		kick := p.wanted()
		p.mu.Unlock()
		if kick {
			loop.wake()
		}
		limit -= len(recs)
		ds = p.decode(ds, recs, seq, high)
	}
	return ds
}

// word is what a delivery is settled with, as far as the position is concerned.
type word int

const (
	acked word = iota
	kept       // it will come again: from memory, or from the broker if p is lost
)

// settled takes the word on the delivery numbered seq and reports whether p goes on, so that
// a kept message is delivered again from memory.
func (p *partition) settled(seq uint64, w word) (live bool) {
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return false
	}
	p.outstanding--
	if w == acked {
		p.track.settle(seq)
	}
	wake := p.blocked && p.room() > 0
	if wake {
		p.blocked = false
	}
	loop := p.loop
	kick := p.full && p.track.open <= p.src.opt.MaxInFlight/2
	if kick {
		p.full = false
	}
	if p.idle != nil && p.outstanding == 0 {
		close(p.idle)
		p.idle = nil
	}
	live = !p.revoked
	p.mu.Unlock()
	if wake {
		p.src.wake()
	}
	if kick {
		loop.wake()
	}
	return live
}

// again counts a kept message as delivered once more, or says that p is lost.
func (p *partition) again() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked {
		return false
	}
	p.outstanding++
	return true
}

// revoke ends delivery at once. The channel it returns is closed when everything delivered
// has its word.
func (p *partition) revoke() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := make(chan struct{})
	if p.revoked || p.outstanding == 0 {
		close(idle)
	} else {
		p.idle = idle
	}
	if p.revoked {
		return idle
	}
	p.revoked = true
	close(p.lost)
	for i := range p.queue {
		p.queue[i].close()
	}
	p.queue, p.queued = nil, 0
	return idle
}

// detach makes every later word on p's deliveries a no-op.
func (p *partition) detach() {
	p.revoke()
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
}

// due is the offset to commit, if it is not committed yet.
func (p *partition) due() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.track.watermark()
	return w, w != p.committed && !p.gone
}

func (p *partition) setCommitted(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.committed = offset
}

// raw copies a record out of the client's pages. The value is there twice: once for
// Raw, which stays as it came, once for Body, which belongs to the handler.
func (p *partition) raw(r *record, offset int64, k, v pages) (m kafka.Message, err error) {
	kn, vn := k.len(), v.len()
	buf := make([]byte, kn+2*vn)
	m = kafka.Message{Topic: p.topic, Partition: p.id, Offset: offset}
	if m.Key, err = k.read(buf[:kn:kn]); err != nil {
		return m, err
	}
	if m.Value, err = v.read(buf[kn : kn+vn : kn+vn]); err != nil {
		return m, err
	}
	if m.Value != nil {
		r.body = buf[kn+vn:]
		copy(r.body, m.Value)
	}
	return m, nil
}
