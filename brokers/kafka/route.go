package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"
)

// reroute asks manage to find the leaders anew.
func (g *generation) reroute() {
	select {
	case g.moved <- struct{}{}:
	default:
	}
}

// route puts every partition into the hands of the fetcher of its leader.
func (g *generation) route(ctx context.Context, fresh bool) bool {
	l, err := lookUp(ctx, g.src.client, g.src.pool, g.src.topics, fresh)
	if err != nil {
		if ctx.Err() == nil {
			g.reroute()
		}
		return false
	}
	whole := true
	for _, p := range g.parts {
		leader := -1
		if ls := l[p.topic]; p.id < len(ls) {
			leader = ls[p.id]
		}
		if leader < 0 {
			whole = false
			continue
		}
		f := g.fetchers[leader]
		if f == nil {
			f = &fetcher{g: g, leader: leader, kick: make(chan struct{}, 1)}
			g.fetchers[leader] = f
			g.wg.Add(1)
			go func() {
				defer g.wg.Done()
				f.run(ctx)
			}()
		}
		p.mu.Lock()
		p.loop = f
		p.mu.Unlock()
		f.wake()
	}
	if !whole && ctx.Err() == nil {
		g.reroute()
	}
	return whole
}

func fetchRefused(p *partition, code kafka.Error) error {
	return fmt.Errorf("kafka: fetch %s of group %s: %w", p.name, p.src.group, code)
}

// outOfRange finds a new position for a partition whose log does not reach at.
func (g *generation) outOfRange(ctx context.Context, p *partition, at int64) {
	low, _, ok := g.bounds(ctx, p.topic, p.id)
	if !ok {
		return
	}
	high, ok := g.end(ctx, p.topic, p.id)
	switch log := g.src.log.With("topic", p.topic, "partition", p.id); {
	case !ok:
		return
	case at < low:
		log.Error("kafka: data loss: the log was cut off above the group's position before it was read; going on at its start",
			"position", at, "log_start", low, "lost", low-at)
		p.mu.Lock()
		p.next = max(p.next, low)
		p.mu.Unlock()
		p.push(answer{end: low})
	case at > high:
		// The topic was made anew, or an unclean leader election cut it. Nothing that was not
		// read must be skipped, and dedup drops what was done; so it begins again, as a new
		// partition, because the watermark of the old one cannot go back.
		log.Error("kafka: the group's position lies beyond the end of the log, which must have begun anew; going on at its start",
			"position", at, "log_start", low, "log_end", high)
		n := newPartition(g.src, p.topic, p.id, low, -1)
		p.mu.Lock()
		n.loop = p.loop
		p.mu.Unlock()
		p.detach()
		select {
		case g.renewed <- n:
		case <-ctx.Done():
		}
	}
}

// end is the high watermark: a fetch from up to there is in range.
func (g *generation) end(ctx context.Context, topic string, id int) (int64, bool) {
	call, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	res, err := g.src.client.ListOffsets(call, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(id)}},
	})
	if err != nil {
		return 0, false
	}
	for _, p := range res.Topics[topic] {
		if p.Partition == id && p.Error == nil {
			return p.LastOffset, true
		}
	}
	return 0, false
}

// replace puts n in the place of the partition whose name it has.
func (g *generation) replace(n *partition) []*partition {
	g.mu.Lock()
	defer g.mu.Unlock()
	parts := slices.Clone(g.parts)
	i := slices.IndexFunc(parts, func(p *partition) bool { return p.name == n.name })
	parts[i] = n
	g.parts = parts
	n.loop.wake()
	return parts
}
