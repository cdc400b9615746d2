package kafka

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const (
	requestBytes   = 10 << 20
	partitionBytes = 1 << 20
	// besidesWait is how long a fetch waits for data while partitions are left out of it, which
	// must not be kept waiting once they are wanted again.
	besidesWait = 20 * time.Millisecond
	// requestsPerLeader: one waits for new data, the other goes on with what is wanted meanwhile.
	requestsPerLeader = 2
	stallAfter        = 30 * time.Second
)

// fetcher asks one leader for all partitions that it leads and that are wanted.
type fetcher struct {
	g      *generation
	leader int
	kick   chan struct{} // capacity 1
	turn   int
}

func (f *fetcher) wake() {
	if f == nil {
		return
	}
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *fetcher) run(ctx context.Context) {
	done := make(chan struct{})
	running := 0
	for ctx.Err() == nil {
		var retry <-chan time.Time
		if running < requestsPerLeader {
			parts, left, at := f.pick()
			if len(parts) > 0 {
				wait := maxWait
				switch {
				case parts[0].alone:
					wait = 0
				case running > 0 && left:
					wait = besidesWait
				}
				running++
				go func() {
					f.fetch(ctx, parts, wait)
					done <- struct{}{}
				}()
				continue
			}
			if !at.IsZero() {
				retry = time.After(time.Until(at))
			}
		}
		select {
		case <-ctx.Done():
		case <-done:
			running--
		case <-f.kick:
		case <-retry:
		}
	}
	for ; running > 0; running-- {
		<-done
	}
}

// pick takes the partitions for the next request and tells whether others of this leader are left
// out, and when the first one that failed may be tried again. The order turns, because a
// leader fills its answer from the front.
func (f *fetcher) pick() (parts []*partition, left bool, at time.Time) {
	f.g.mu.Lock()
	all := f.g.parts
	f.g.mu.Unlock()
	f.turn++
	now := time.Now()
	for i := range all {
		p := all[(i+f.turn)%len(all)]
		p.mu.Lock()
		switch {
		case p.loop != f:
		case !p.wanted():
			left = left || !p.fetching
		case p.retryAt.After(now):
			if at.IsZero() || p.retryAt.Before(at) {
				at = p.retryAt
			}
		case p.alone && len(parts) > 0:
			left = true
		default:
			p.fetching = true
			parts = append(parts, p)
		}
		alone := len(parts) == 1 && parts[0].alone
		p.mu.Unlock()
		if alone {
			return parts, true, at
		}
	}
	return parts, left, at
}

// fetch makes one request and hands out what it brings.
func (f *fetcher) fetch(ctx context.Context, parts []*partition, wait time.Duration) {
	req := &fetch.Request{
		ReplicaID: -1, MaxWaitTime: int32(wait / time.Millisecond), MinBytes: 1, MaxBytes: requestBytes,
		IsolationLevel: int8(kafka.ReadCommitted), SessionEpoch: -1,
	}
	asked := make(map[*partition]int64, len(parts))
	for _, p := range parts {
		p.mu.Lock()
		at := p.next + p.gap.step
		p.mu.Unlock()
		asked[p] = at
		i := slices.IndexFunc(req.Topics, func(t fetch.RequestTopic) bool { return t.Topic == p.topic })
		if i < 0 {
			i = len(req.Topics)
			req.Topics = append(req.Topics, fetch.RequestTopic{Topic: p.topic})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, fetch.RequestPartition{
			Partition: int32(p.id), CurrentLeaderEpoch: -1, FetchOffset: at, LogStartOffset: -1, PartitionMaxBytes: partitionBytes,
		})
	}
	// With a deadline the client gives up a connection that has gone silent.
	call, cancel := context.WithTimeout(ctx, wait+2*dialTimeout)
	defer cancel()
	res, err := f.g.src.pool.RoundTrip(call, f.g.src.client.Addr, req)
	if err == nil {
		if r := res.(*fetch.Response); r.ErrorCode != 0 {
			err = kafka.Error(r.ErrorCode)
		} else {
			f.answers(ctx, r, asked)
		}
	}
	if err != nil && ctx.Err() == nil {
		f.failed(parts, err)
	}
	for _, p := range parts {
		p.mu.Lock()
		p.fetching = false
		p.mu.Unlock()
	}
}

// failed puts off what was asked for in vain. An answer that cannot be decoded takes the
// partitions of the whole request with it; each is then asked for alone, so that only the
// one with the corrupt batch stands still.
func (f *fetcher) failed(parts []*partition, err error) {
	s := f.g.src
	broken := !network(err) && classify(err) == retryable
	for _, p := range parts {
		p.mu.Lock()
		at, again := p.next, p.alone
		p.failures++
		if !broken || again {
			p.retryAt = time.Now().Add(backoff(p.failures))
		}
		p.alone = again || broken
		p.mu.Unlock()
		if broken && again && s.quiet.allow("corrupt "+p.name) {
			s.log.Error("kafka: records cannot be decoded; the partition stands still until they can, or are gone",
				"topic", p.topic, "partition", p.id, "offset", at, "error", err)
		}
	}
	if broken {
		return
	}
	if s.quiet.allow("fetch") {
		s.log.Warn("kafka: fetching failed, trying on", "leader", f.leader, "error", err)
	}
	f.g.reroute()
}

// network reports whether err is of a connection rather than of what came through it.
func network(err error) bool {
	var n net.Error
	var f *fetch.Error // no leader is known
	var code kafka.Error
	return errors.As(err, &n) || errors.As(err, &f) || errors.As(err, &code) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// answers hands each partition its part of the response.
func (f *fetcher) answers(ctx context.Context, res *fetch.Response, asked map[*partition]int64) {
	got := false
	for i := range res.Topics {
		t := &res.Topics[i]
		for j := range t.Partitions {
			rp := &t.Partitions[j]
			for p, at := range asked {
				if p.id != int(rp.Partition) || p.topic != t.Topic {
					continue
				}
				if rp.ErrorCode != 0 {
					f.refused(ctx, p, kafka.Error(rp.ErrorCode), at)
				} else if f.take(p, rp, at) {
					got = true
				}
			}
		}
	}
	if got {
		f.g.src.wake()
	}
}

func (f *fetcher) take(p *partition, rp *fetch.ResponsePartition, at int64) (got bool) {
	r, err := readAnswer(rp, at)
	if err != nil {
		f.failed([]*partition{p}, err)
		return false
	}
	p.mu.Lock()
	pos := p.next
	next, deliver := p.gap.seen(r, pos, rp.LastStableOffset)
	p.next = next
	p.failures, p.alone, p.retryAt = 0, false, time.Time{}
	stalled := p.stall.seen(next > pos || next >= rp.LastStableOffset)
	p.mu.Unlock()
	if stalled && f.g.src.quiet.allow("stall "+p.name) {
		f.g.src.log.Error("kafka: a partition has records but its fetches bring nothing", "topic", p.topic, "partition", p.id,
			"offset", next, "stable", rp.LastStableOffset)
	}
	if !deliver {
		r.close()
	}
	if next == pos {
		return false
	}
	return p.push(answer{records: r.records, high: rp.HighWatermark, end: next})
}

// stall notices a partition that has data but no progress.
type stall struct{ since time.Time }

func (s *stall) seen(progress bool) bool {
	switch {
	case progress:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = time.Now()
	}
	return !s.since.IsZero() && time.Since(s.since) > stallAfter
}

// refused handles the error of one partition.
func (f *fetcher) refused(ctx context.Context, p *partition, code kafka.Error, at int64) {
	if code == kafka.OffsetOutOfRange {
		p.mu.Lock()
		probing := p.gap.step > 0
		p.gap.step = 0
		p.mu.Unlock()
		if !probing {
			f.g.outOfRange(ctx, p, at)
		}
		return
	}
	if classifyCode(code) == terminal {
		f.g.src.fail(fetchRefused(p, code))
		return
	}
	p.mu.Lock()
	p.failures++
	p.retryAt = time.Now().Add(backoff(p.failures))
	n := p.failures
	p.mu.Unlock()
	if classifyCode(code) == stale {
		f.g.reroute()
	}
	if n > 3 && f.g.src.quiet.allow("refused "+p.name) {
		f.g.src.log.Warn("kafka: a partition cannot be fetched, trying on", "topic", p.topic, "partition", p.id, "error", code)
	}
}
