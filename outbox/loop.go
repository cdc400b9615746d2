package outbox

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// loop is one Run. Its own goroutine has all the memory; three others do one thing at a time each: one
// reads the next batch and one writes back the last, while one publishes.
type loop struct {
	*Relay
	leases *leases
	lanes  *lanes
	mask   uint64 // shards that lanes are of

	found     chan read
	published chan batch
	written   chan written
	jobs      sync.WaitGroup

	reading, publishing, writing bool
	look                         bool      // there may be something to read
	lookAt                       time.Time // then it is looked for anyway
	batch                        int       // rows to read at once
	outages                      int       // in a row
	topics                       topics    // that do not take all
	badReads, badWrites          int       // in a row
	publishAt, readAt, writeAt   time.Time // not before, after one of those
	cut                          func()    // the statement that is written back by; nil: none
	sent                         []*row    // to write back
	failed                       []failure
	aside                        aside     // to write back when nobody has them locked
	stopped                      time.Time // when Run was told to end
}

// read is what a read found.
type read struct {
	rows []*row
	full bool
	took time.Duration
	err  error
}

// batch is what was given to the publisher at once.
type batch struct {
	rows []*row
	errs []error
	took time.Duration
	err  error
}

func newLoop(r *Relay, l *leases) *loop {
	return &loop{
		Relay: r, leases: l, lanes: newLanes(), look: true, batch: r.opts.Batch, topics: make(topics),
		found: make(chan read), published: make(chan batch), written: make(chan written),
	}
}

// maxLate bounds the lanes that wait for their next attempt, which each read has to name. Beyond it the
// broker takes so little that reading more does not help.
const maxLate = 10_000

// maxLateOfTopic bounds those of one topic, of which no more is read then.
const maxLateOfTopic = 5000

func (l *loop) run(ctx context.Context) {
	work := context.WithoutCancel(ctx) // what is under way is brought to its end, which has a limit of its own each time
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.jobs.Wait()
	done := ctx.Done()
	for {
		timer.Reset(l.start(ctx, work))
		if !l.stopped.IsZero() && l.finished() {
			return
		}
		select {
		case <-done:
			done = nil
			l.stopped = time.Now()
			l.keep(0)
			if l.writing {
				defer time.AfterFunc(cleanUp, l.cut).Stop()
			}
		case <-timer.C:
		case <-l.wake:
			l.look = true
		case <-l.leases.change:
			l.look = true
		case f := <-l.found:
			l.take(f)
		case b := <-l.published:
			l.judge(b)
		case w := <-l.written:
			l.wrote(w)
		}
	}
}

// finished: after the end of Run's context nothing is begun any more, and what the broker has is written
// back, for a while.
func (l *loop) finished() bool {
	if l.publishing || l.writing || l.reading {
		return false
	}
	rest := len(l.sent) + len(l.failed) + l.aside.len()
	if rest > 0 && time.Since(l.stopped) < cleanUp {
		return false
	}
	if rest > 0 {
		l.opts.Logger.Warn("outbox: the database was out of reach at the end; messages that were sent will be sent again", "table", l.o.table.String(), "messages", rest)
	}
	return true
}

// start begins what can be begun, and returns how long nothing else will come by itself.
func (l *loop) start(ctx, work context.Context) time.Duration {
	now := time.Now()
	wait := time.Hour
	until := func(t time.Time) bool {
		if d := t.Sub(now); d > 0 {
			wait = min(wait, d)
			return false
		}
		return true
	}
	if !l.writing && l.aside.len() > 0 && until(l.aside.at) {
		l.write(work, true)
	}
	if !l.writing && len(l.sent)+len(l.failed) > 0 && until(l.writeAt) {
		l.write(work, false)
	}
	if !l.stopped.IsZero() {
		until(l.stopped.Add(cleanUp))
		return wait
	}
	mask := l.leases.mask()
	if mask != l.mask {
		l.keep(mask)
	}
	some, next := l.lanes.wake(now)
	l.look = l.look || some
	if !next.IsZero() {
		until(next)
	}
	some, next = l.topics.due(now, l.opts.MaxBackoff)
	l.look = l.look || some
	if !next.IsZero() {
		until(next)
	}
	if !l.publishing && len(l.lanes.ready) > 0 && until(l.publishAt) {
		l.publish(work)
	}
	if !l.reading && l.lanes.rows < l.opts.Batch && l.lanes.bytes < readBytes && len(l.sent)+len(l.failed) < 2*l.opts.Batch && len(l.lanes.late)+l.aside.len() < maxLate && mask != 0 &&
		(l.look || until(l.lookAt)) && until(l.readAt) && until(l.writeAt) && until(l.publishAt) {
		l.read(ctx, mask)
	}
	return wait
}

// keep drops what was read of shards that are not in mask.
func (l *loop) keep(mask uint64) {
	l.mask = mask
	l.lanes.keep(mask)
	l.topics.reopen()
}

func (l *loop) read(ctx context.Context, mask uint64) {
	l.reading, l.look = true, false
	q := reading{strict: !l.opts.LetFollowersGo, mask: mask, lanes: l.lanes.ids(), topics: l.topics.closed(time.Now(), l.lanes.waiting), limit: l.batch}
	limit := l.limit(l.badReads)
	l.jobs.Go(func() {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		rows, full, err := l.o.read(ctx, q)
		l.found <- read{rows, full, time.Since(began), err}
	})
}

// take begins with the rows that were read. A slow read is not repeated at once: it may be slow for
// all that is held in the table.
func (l *loop) take(f read) {
	l.reading = false
	l.lookAt = time.Now().Add(max(l.opts.Poll, 4*f.took))
	if f.err != nil {
		l.topics.shut(false)
		l.look = true
		if l.stopped.IsZero() {
			l.badReads++
			l.readAt = l.fault("read", l.badReads, f.err)
		}
		return
	}
	l.badReads = 0
	l.fit(f.rows)
	l.look = l.look || f.full
	mine := f.rows[:0]
	for _, r := range f.rows {
		if l.mask&(1<<shardOf(r.lane)) != 0 {
			mine = append(mine, r)
		}
	}
	l.lanes.add(l.topics.admit(mine))
	for _, name := range l.topics.shut(!f.full) {
		l.lanes.release(name)
		l.look = true
	}
}

// fit makes the next read ask for as many rows as it can keep: what it cannot costs it the connection.
func (l *loop) fit(rows []*row) {
	size := 0
	for _, r := range rows {
		size += r.size
	}
	switch {
	case size >= readBytes:
		l.batch = max(len(rows), 1)
	case size < readBytes/2 && len(rows) == l.batch:
		l.batch = min(2*l.batch, l.opts.Batch)
	}
}

// publishTimeout is above those of the broker packages' Publishers.
const publishTimeout = 30 * time.Second

func (l *loop) publish(work context.Context) {
	b := batch{rows: l.lanes.next(l.opts.Batch)}
	for _, r := range b.rows {
		l.leases.hold(r.lane, 1)
	}
	l.publishing = true
	l.jobs.Go(func() {
		began := time.Now()
		b.errs, b.err = l.ask(work, b.rows)
		b.took = time.Since(began)
		l.published <- b
	})
}

// ask gives rows to the publisher, but for those that could not be read.
func (l *loop) ask(work context.Context, rows []*row) (errs []error, err error) {
	errs = make([]error, len(rows))
	ms, at := make([]Message, 0, len(rows)), make([]int, 0, len(rows))
	for i, r := range rows {
		if errs[i] = r.damage; r.damage == nil {
			ms, at = append(ms, r.Message), append(at, i)
		}
	}
	if len(ms) == 0 {
		return errs, nil
	}
	ctx, cancel := context.WithTimeout(work, publishTimeout)
	defer cancel()
	answers := make([]error, len(ms))
	if err := l.p.Publish(ctx, ms, answers); err != nil {
		return nil, err
	}
	for i, err := range answers {
		errs[at[i]] = err
	}
	return errs, nil
}

// judge decides what becomes of each row of a batch.
func (l *loop) judge(b batch) {
	l.publishing = false
	if b.err != nil {
		l.outages++
		wait := l.backoff(l.outages)
		l.publishAt = time.Now().Add(wait)
		for _, r := range b.rows {
			l.lanes.unsent(r)
			l.leases.hold(r.lane, -1)
		}
		l.lanes.keep(l.mask)
		l.emit("outage", len(b.rows), b.took, b.err)
		l.opts.Logger.Warn("outbox: the broker cannot be asked; trying again", "table", l.o.table.String(), "after", wait, "error", b.err)
		return
	}
	l.outages = 0
	begun := l.weigh(&b)
	sent, again := 0, 0
	var first error
	for i, r := range b.rows {
		r.done()
		switch err := b.errs[i]; {
		case err == nil:
			sent++
			l.lanes.sent(r)
			l.sent = append(l.sent, r)
			continue
		case IsUnavailable(err) && !IsPermanent(err):
			l.lanes.postponed(r, l.unavailable(r))
			l.leases.hold(r.lane, -1)
		case !l.refused(r, err):
			continue
		}
		again++
		first = cmp.Or(first, b.errs[i])
	}
	for _, topic := range begun {
		l.lanes.drop(topic, l.mask)
		l.opts.Logger.Warn("outbox: a topic takes nothing; one message at a time is tried", "table", l.o.table.String(), "topic", topic)
	}
	l.emit("sent", sent, b.took, nil)
	l.emit("failed", again, b.took, first)
	if again > 0 { // one line, for a missing topic may have thousands of messages
		l.opts.Logger.Warn("outbox: messages not sent; trying again", "table", l.o.table.String(), "messages", again, "error", first)
	}
}

// weigh returns the topics that are held from now on.
func (l *loop) weigh(b *batch) (begun []string) {
	now := time.Now()
	for name, n := range tallies(b) {
		began, ended := l.topics.weigh(name, n, now, l.opts.MaxBackoff, l.backoff)
		if began {
			begun = append(begun, name)
		}
		if ended {
			l.look = true
			l.lanes.release(name)
		}
	}
	return begun
}

// aroundHeld is after how many MaxBackoff a held topic's message is tried again, so that others of it have their turn before.
const aroundHeld = 16

// until is when a message's next attempt may begin. Where its topic is held it waits for others', or for the end of that.
func (l *loop) until(r *row, attempt int) time.Time {
	if t := l.topics[r.Topic]; t != nil && t.held {
		return t.until.Add(aroundHeld * l.opts.MaxBackoff)
	}
	return time.Now().Add(l.backoff(attempt))
}

// unavailable is until for a message that says nothing of its own: it waits longer with each batch of its topic.
func (l *loop) unavailable(r *row) time.Time {
	t := l.topics[r.Topic]
	if t.held {
		return l.until(r, 1)
	}
	return l.until(r, t.fails)
}

// refused counts an attempt, and parks a row for which there is no other. It reports whether there is one.
func (l *loop) refused(r *row, err error) (again bool) {
	attempt := r.attempts + 1
	f := failure{row: r, state: statePending, attempts: int64(attempt), reason: err.Error()}
	until := l.until(r, attempt)
	again = !IsPermanent(err) && attempt < l.opts.MaxAttempts
	if !again {
		f.state, until = stateParked, time.Time{}
		l.opts.Logger.Error("outbox: message parked", "table", l.o.table.String(), "id", r.ID, "topic", r.Topic, "attempts", attempt, "error", err)
		l.emit("parked", 1, 0, err)
	}
	l.lanes.failed(r, until)
	l.failed = append(l.failed, f)
	return again
}
