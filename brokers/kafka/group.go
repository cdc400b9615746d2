package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
)

// run is the membership, from the first Receive to Close. ctx ends only when Close has no
// time left.
func (s *Source) run(ctx context.Context) {
	live, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.ending:
			cancel()
		case <-live.Done():
		}
	}()
	checked := false
	for live.Err() == nil {
		l, err := s.awaitTopics(live)
		if err == nil && !checked {
			err = s.checkDeadLetters(live, l)
			checked = err == nil
		}
		if err == nil {
			err = s.join(ctx, live, l)
		}
		if err != nil && live.Err() == nil {
			s.fail(err)
		}
	}
	s.setParts(nil)
}

// join is a member of the group for the topics of l until live ends or topics come or go.
// A returned error is one that waiting cannot mend.
func (s *Source) join(ctx, live context.Context, l layout) error {
	start := kafka.FirstOffset
	if s.opt.FromLatest {
		start = kafka.LastOffset
	}
	topics := slices.Sorted(maps.Keys(l))
	cg, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                s.group,
		Brokers:           s.cluster.Brokers,
		Dialer:            s.cluster.dialer(s.conns.dial),
		Topics:            topics,
		HeartbeatInterval: s.opt.heartbeat(),
		SessionTimeout:    s.opt.SessionTimeout,
		RebalanceTimeout:  s.opt.RebalanceTimeout,
		JoinGroupBackoff:  s.opt.joinBackoff(),
		Timeout:           s.opt.coordinatorTimeout(),
		StartOffset:       start,
	})
	if err != nil {
		return fmt.Errorf("kafka: join %s: %w", s.scope, err)
	}
	defer cg.Close() // waits for the client's goroutines; Close cuts their connections

	known := l.counts() // as it was before the group was joined
	for live.Err() == nil {
		gen, err := cg.Next(live)
		switch {
		case live.Err() != nil:
			return nil
		case err != nil && classify(err) == terminal:
			return s.explain(err)
		case err != nil:
			if s.quiet.allow("join") {
				s.log.Warn("kafka: the group cannot be joined, trying on", "brokers", s.cluster.String(), "error", err)
			}
			continue
		}
		s.quiet.forget("join")
		g := &generation{src: s, gen: gen, known: known, firstSeen: s.firstSeen(l)}
		over := make(chan struct{})
		gen.Start(func(ended context.Context) {
			defer close(over)
			g.run(ctx, live, ended)
		})
		<-over
		known = g.known
		if !slices.Equal(slices.Sorted(maps.Keys(known)), topics) {
			return nil // to join with the topics that there are now
		}
	}
	return nil
}

func (s *Source) explain(err error) error {
	if errors.Is(err, kafka.InvalidSessionTimeout) {
		return fmt.Errorf("kafka: join %s: SourceOptions.SessionTimeout %v is outside the broker's group.min.session.timeout.ms to group.max.session.timeout.ms; change either: %w", s.scope, s.opt.SessionTimeout, err)
	}
	return fmt.Errorf("kafka: join %s: %w", s.scope, err)
}

// firstSeen is how many partitions each topic had when this source first looked, l. With
// FromLatest, those that come later are read from their beginning: a group that is no
// longer new must not skip what was written before it noticed.
func (s *Source) firstSeen(l layout) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = l.counts()
	}
	return s.seen
}

// generation is this member's share between two rebalances.
type generation struct {
	src       *Source
	gen       *kafka.Generation
	known     map[string]int // partitions of each topic at the last look
	firstSeen map[string]int

	mu       sync.Mutex
	parts    []*partition
	fetchers map[int]*fetcher
	wg       sync.WaitGroup
	moved    chan struct{} // capacity 1: a leader is not where it was
	renewed  chan *partition
}

// run delivers the assigned partitions until the generation ends, the source ends (live), or
// topics have changed; then it gives what was delivered a while to be settled, commits, and
// returns, which makes the client join anew.
func (g *generation) run(ctx, live, ended context.Context) {
	run, cancel := context.WithCancel(live)
	defer cancel()
	defer context.AfterFunc(ended, cancel)()
	g.fetchers = make(map[int]*fetcher)
	g.moved = make(chan struct{}, 1)
	g.renewed = make(chan *partition)

	if !g.assign(run) {
		g.look(live)
		return
	}
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		g.commitLoop(ctx, run.Done())
	}()
	g.src.connected.Store(true)
	g.manage(run)
	g.src.connected.Store(false)
	cancel()

	var idle []<-chan struct{}
	for _, p := range g.parts {
		idle = append(idle, p.revoke())
	}
	g.wg.Wait()
	g.drain(live, idle)
	g.commitLast(ctx)
	for _, p := range g.parts {
		p.detach()
	}
	g.src.setParts(nil)
	g.look(live)
}

// assign finds where each partition begins and makes them known to Receive.
func (g *generation) assign(ctx context.Context) bool {
	s := g.src
	for topic, as := range g.gen.Assignments {
		for _, a := range as {
			pos, committed := a.Offset, a.Offset
			if pos < 0 { // the group has no position here yet
				committed = -1
				first := pos == kafka.FirstOffset
				if n, ok := g.firstSeen[topic]; !ok || a.ID >= n {
					first = true
				}
				low, high, ok := g.bounds(ctx, topic, a.ID)
				if !ok {
					return false
				}
				if pos = high; first {
					pos = low
				}
			}
			g.parts = append(g.parts, newPartition(s, topic, a.ID, pos, committed))
		}
	}
	slices.SortFunc(g.parts, func(a, b *partition) int {
		if a.topic != b.topic {
			return map[bool]int{true: -1, false: 1}[a.topic < b.topic]
		}
		return a.id - b.id
	})
	names := make([]string, len(g.parts))
	for i, p := range g.parts {
		names[i] = p.name
	}
	s.log.Info("kafka: partitions assigned", "generation", g.gen.ID, "partitions", names)
	g.route(ctx, false)
	s.setParts(g.parts)
	return true
}

// bounds asks for the first offset of a log and the end of what is stable, some ten seconds long.
func (g *generation) bounds(ctx context.Context, topic string, id int) (low, high int64, ok bool) {
	for n := 1; n < 10 && ctx.Err() == nil; n++ {
		call, cancel := context.WithTimeout(ctx, dialTimeout)
		res, err := g.src.client.ListOffsets(call, &kafka.ListOffsetsRequest{
			Topics:         map[string][]kafka.OffsetRequest{topic: {kafka.FirstOffsetOf(id), kafka.LastOffsetOf(id)}},
			IsolationLevel: kafka.ReadCommitted,
		})
		cancel()
		if err == nil {
			for _, p := range res.Topics[topic] {
				if p.Partition != id {
					continue
				}
				if err = p.Error; err == nil && p.FirstOffset >= 0 && p.LastOffset >= 0 {
					return p.FirstOffset, p.LastOffset, true
				}
			}
		}
		if err != nil && g.src.quiet.allow("bounds "+topic) {
			g.src.log.Warn("kafka: the ends of a partition cannot be asked for, trying on", "topic", topic, "partition", id, "error", err)
		}
		sleep(ctx, backoff(n))
		g.src.pool.CloseIdleConnections()
	}
	return 0, 0, false
}

// manage follows leaders and topics until ctx ends or partitions were added.
func (g *generation) manage(ctx context.Context) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
			if g.look(ctx) {
				g.src.log.Info("kafka: topics or their partitions have changed, joining anew")
				return
			}
			g.route(ctx, false)
		case <-g.moved:
			failures++
			if g.route(ctx, true) {
				failures = 0
			}
			sleep(ctx, backoff(failures+1))
		case p := <-g.renewed:
			g.src.setParts(g.replace(p))
		}
	}
}

// look compares the topics with what was known before the group was joined.
func (g *generation) look(ctx context.Context) (changed bool) {
	l, err := lookUp(ctx, g.src.client, g.src.pool, g.src.topics, false)
	if err != nil {
		return false
	}
	g.src.warnMissing(l)
	now := l.counts()
	changed = !maps.Equal(now, g.known)
	g.known = now
	return changed
}

// drain waits for what was delivered to be settled, so that its acknowledgements still
// count. Close is called after the last settle and need not wait.
func (g *generation) drain(live context.Context, idle []<-chan struct{}) {
	t := time.NewTimer(g.src.opt.drain())
	defer t.Stop()
	for _, c := range idle {
		select {
		case <-c:
		case <-t.C:
			return
		case <-live.Done():
			return
		}
	}
}

// commitLoop brings a commit that is under way at the end to its answer: cut off, it could reach the coordinator after the
// last one, by another connection, and move the position back.
func (g *generation) commitLoop(ctx context.Context, end <-chan struct{}) {
	g.commit(ctx) // where a new group begins is a position, too
	t := time.NewTicker(commitEvery)
	defer t.Stop()
	for {
		select {
		case <-end:
			return
		case <-t.C:
			g.commit(ctx)
		}
	}
}

// commitLast is the commit before the partitions are let go. No later one makes up for it, and
// its connection may have died unnoticed since the one before: so it tries on, for as long as
// one call to the coordinator may take.
func (g *generation) commitLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.src.opt.coordinatorTimeout())
	defer cancel()
	for n := 1; !g.commit(ctx) && ctx.Err() == nil; n++ {
		g.src.pool.CloseIdleConnections()
		sleep(ctx, backoff(n))
	}
}

// commit sends the watermarks that have moved and reports whether trying again would change nothing. Group, generation and member travel with
// them, so the coordinator refuses them once the group has gone on without this member.
// The client's own Generation.CommitOffsets takes no context; its Client.OffsetCommit claims
// leader epoch 0, on which other clients of the group may later see a truncated log.
func (g *generation) commit(ctx context.Context) (final bool) {
	g.mu.Lock()
	parts := g.parts
	g.mu.Unlock()
	byTopic := make(map[string]int)
	req := &offsetcommit.Request{GroupID: g.gen.GroupID, GenerationID: g.gen.ID, MemberID: g.gen.MemberID, RetentionTimeMs: -1}
	sent := make(map[*partition]int64)
	for _, p := range parts {
		offset, due := p.due()
		if !due {
			continue
		}
		i, ok := byTopic[p.topic]
		if !ok {
			i = len(req.Topics)
			byTopic[p.topic] = i
			req.Topics = append(req.Topics, offsetcommit.RequestTopic{Name: p.topic})
		}
		sent[p] = offset
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, offsetcommit.RequestPartition{
			PartitionIndex: int32(p.id), CommittedOffset: offset, CommittedLeaderEpoch: -1,
		})
	}
	if len(sent) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, g.src.opt.coordinatorTimeout())
	defer cancel()
	res, err := g.src.pool.RoundTrip(ctx, g.src.client.Addr, req)
	if err != nil {
		return g.commitFailed(err)
	}
	final = true
	failed := make(map[string]error)
	for _, t := range res.(*offsetcommit.Response).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				failed[fmt.Sprint(t.Name, "/", p.PartitionIndex)] = kafka.Error(p.ErrorCode)
			}
		}
	}
	for p, offset := range sent {
		if err := failed[p.name]; err != nil {
			final = g.commitFailed(err) && final
			continue
		}
		p.setCommitted(offset)
	}
	return final
}

// commitFailed is never fatal: the next commit, or the next owner, does it again. It is
// final where this generation's word no longer counts.
func (g *generation) commitFailed(err error) (final bool) {
	if lostMembership(err) || errors.Is(err, context.Canceled) {
		return true
	}
	if g.src.quiet.allow("commit") {
		g.src.log.Warn("kafka: offsets could not be committed, trying again", "error", err)
	}
	return false
}
