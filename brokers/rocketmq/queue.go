package rocketmq

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
)

// queue is one queue during one assignment to this member, on one connection to its broker.
// When it is taken away, or the connection breaks, the object is dropped for good: a late
// settle finds it gone, so it can never move the offset of a later assignment.
type queue struct {
	src  *Source
	of   queueOf
	name string
	cn   *conn
	kind kind
	lost chan struct{} // closed by detach
	kick chan struct{} // capacity 1: the fetcher may go on
	stop context.CancelFunc

	mu        sync.Mutex
	track     tracker
	ready     []fetched // not delivered
	end       int64     // the position behind ready
	committed int64
	gone      bool // nothing counts any more
	blocked   bool // Receive found messages, but no room
}

// kind is where a queue's messages come from.
type kind int

const (
	original kind = iota
	retried       // our own copies
	bounced       // the broker's copies, for a push consumer that had the group before
)

func newQueue(s *Source, of queueOf, k kind, cn *conn, pos, committed int64, stop context.CancelFunc) *queue {
	q := &queue{
		src: s, stop: stop, of: of, name: of.String(), cn: cn, kind: k, end: pos, committed: committed,
		lost: make(chan struct{}), kick: make(chan struct{}, 1),
	}
	q.track.pos = pos
	return q
}

// spanFactor bounds, in windows, how far deliveries may run ahead of one that is not settled:
// the memory of the tracker, and what is fetched again after a crash.
const spanFactor = 64

// room is how many messages may be delivered now. With q.mu.
func (q *queue) room() int {
	limit := q.src.opt.MaxInFlight
	return min(limit-q.track.open, limit*spanFactor-q.track.span())
}

// wanted reports whether more should be fetched: while less than half a window waits. With q.mu.
func (q *queue) wanted() bool {
	return !q.gone && len(q.ready) < max(q.src.opt.MaxInFlight/2, pullCount)
}

func (q *queue) nudge() {
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// awaitWanted waits until more should be fetched; false: never again.
func (q *queue) awaitWanted(ctx context.Context) bool {
	for {
		q.mu.Lock()
		wanted, gone := q.wanted(), q.gone
		q.mu.Unlock()
		switch {
		case gone:
			return false
		case wanted:
			return true
		}
		select {
		case <-q.kick:
		case <-q.lost:
			return false
		case <-q.cn.broken:
			return true // the fetch finds out
		case <-ctx.Done():
			return false
		}
	}
}

// push queues what a pull brought, and the position behind it.
func (q *queue) push(ms []fetched, end int64) {
	q.mu.Lock()
	if q.gone {
		q.mu.Unlock()
		return
	}
	q.ready = append(q.ready, ms...)
	if q.end = max(q.end, end); len(q.ready) == 0 {
		q.track.advance(q.end)
	}
	q.mu.Unlock()
	if len(ms) > 0 {
		q.src.wake()
	}
}

// take appends at most limit deliveries to ds.
func (q *queue) take(ds []consumer.Delivery, limit int) []consumer.Delivery {
	q.mu.Lock()
	if q.gone || len(q.ready) == 0 {
		q.mu.Unlock()
		return ds
	}
	n := min(limit, q.room(), len(q.ready))
	if q.blocked = n <= 0; q.blocked {
		q.mu.Unlock()
		return ds
	}
	ms := q.ready[:n]
	var seq uint64
	for i, m := range ms {
		if s := q.track.add(m.QueueOffset); i == 0 {
			seq = s
		}
	}
	if q.ready = q.ready[n:]; len(q.ready) == 0 {
		q.ready = nil
		q.track.advance(q.end)
	}
	wanted := q.wanted()
	q.mu.Unlock()
	if wanted {
		q.nudge()
	}
	for i, m := range ms {
		ds = append(ds, (&record{queue: q, seq: seq + uint64(i), raw: m.MessageExt}).delivery(m.props))
	}
	return ds
}

// settled marks a delivery as never to come again.
func (q *queue) settled(seq uint64) {
	q.mu.Lock()
	if q.gone {
		q.mu.Unlock()
		return
	}
	q.track.settle(seq)
	wake := q.blocked && q.room() > 0
	if wake {
		q.blocked = false
	}
	q.mu.Unlock()
	if wake {
		q.src.wake()
	}
}

func (q *queue) live() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.gone
}

// detach ends the assignment: nothing is delivered any more, and every later word is a no-op.
func (q *queue) detach() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.gone {
		q.gone = true
		q.ready = nil
		close(q.lost)
		q.stop()
	}
}

// commit tells the broker the position, if it does not know it; with again, in any case: a
// member that had the queue before may have set it back meanwhile.
func (q *queue) commit(ctx context.Context, again bool) error {
	q.mu.Lock()
	at, due := q.track.watermark(), !q.gone
	due = due && (again || at != q.committed)
	q.mu.Unlock()
	if !due {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := q.cn.commit(ctx, q.src.wireGroup, q.of, at); err != nil {
		return err
	}
	q.mu.Lock()
	q.committed = at
	q.mu.Unlock()
	return nil
}

// fetch pulls messages until the assignment ends.
func (q *queue) fetch(ctx context.Context) {
	s := q.src
	log := s.log.With("topic", s.cluster.bare(q.of.topic), "broker", q.of.broker, "queue", q.of.id)
	proved := false // the connection brings answers
	for failures := 0; q.awaitWanted(ctx); {
		q.mu.Lock()
		at := q.end
		q.mu.Unlock()
		p, err := q.cn.pull(ctx, s.wireGroup, q.of, at, q.tags())
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errUnread): // only this queue's; passing over what cannot be read would lose it
			if failures++; s.quiet.allow("unread " + q.name) {
				log.Error("rocketmq: what the broker answers to a pull cannot be read, so the queue stands still; trying again", "position", at, "error", err)
			}
			q.pause(ctx, backoff(failures))
			continue
		case err != nil && (!q.cn.alive() || !refused(err)):
			q.cn.fail(err) // a pull that stays without an answer tells of a dead connection, too
			s.broke(q.cn, err)
			s.lose(q)
			return
		case isCode(err, codeNoTopic):
			s.client.forgetRoute(q.of.topic)
			q.pause(ctx, backoff(3))
			s.lose(q)
			return
		case isCode(err, codeNoPermission):
			if failures++; failures == 1 {
				s.rebalance() // which finds out what may be read now
			}
			if s.quiet.allow("permission " + q.name) {
				log.Warn("rocketmq: the broker lets the group not read this queue; its topic or group may be switched off, trying again", "error", err)
			}
			q.pause(ctx, backoff(failures))
			continue
		case err != nil && classify(err) == terminal:
			s.fail(s.errorf("pull from %s: %w", q.name, err))
			return
		case err != nil:
			if failures++; s.quiet.allow("pull " + q.name) {
				log.Warn("rocketmq: pull refused; trying again", "error", err)
			}
			q.pause(ctx, backoff(failures))
			if failures > 3 { // the queue may be elsewhere by now
				s.lose(q)
				return
			}
			continue
		case p.moved:
			q.moved(ctx, at, p)
			return
		}
		if failures = 0; !proved {
			proved = true
			s.healed(q.cn)
		}
		q.push(q.filter(p.messages), p.next)
	}
}

func (q *queue) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.lost:
	case <-ctx.Done():
	}
}

// moved finds a new position for a queue whose offset the broker refused. The watermark cannot
// go back, so the queue begins again as a new one, from what is committed here.
func (q *queue) moved(ctx context.Context, at int64, p pulled) {
	s := q.src
	log := s.log.With("topic", s.cluster.bare(q.of.topic), "broker", q.of.broker, "queue", q.of.id,
		"position", at, "queue_start", p.min, "queue_end", p.max)
	to := p.next
	switch {
	case at < p.min:
		to = p.min
		if at > 0 {
			log.Error("rocketmq: data loss: the queue was cut off above the group's position before it was read; going on at its start", "lost", p.min-at)
		}
	case at > p.max:
		// The topic was made anew, or the broker lost what it had not flushed. Which of the two, and since when, nobody
		// can tell, so there is no later place to begin at of which it is certain that nothing before it is unread.
		to = p.min
		log.Error("rocketmq: the group's position lies beyond the end of the queue, which has begun anew or lost its tail; going on at its start: what was handled longer ago than dedup remembers is handled again")
	default:
		log.Warn("rocketmq: the group's position was reset by an operator", "to", to)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := q.cn.commit(ctx, s.wireGroup, q.of, to); err != nil {
		log.Warn("rocketmq: the new position could not be committed; trying again", "error", err)
		q.pause(ctx, backoff(1))
	}
	s.lose(q)
}

func (q *queue) tags() string {
	if q.kind == original {
		return q.src.opt.Tags
	}
	return allTags
}

// filter leaves out messages whose tag only looks like a wanted one: brokers compare hashes.
func (q *queue) filter(ms []fetched) []fetched {
	if q.kind != original || q.src.tags == nil {
		return ms
	}
	wanted := ms[:0]
	for _, m := range ms {
		if q.src.tags[m.GetTags()] {
			wanted = append(wanted, m)
		}
	}
	return wanted
}
