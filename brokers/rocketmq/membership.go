package rocketmq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// silence is how long a broker may stay without an answer to a heartbeat until its connection counts as dead.
const silence = 2 * callTimeout

// heartbeats tells all brokers that the member lives and answers the connections of those that heard it.
func (s *Source) heartbeats(ctx context.Context, routes map[string]route, errs *[]error) map[string]*conn {
	heard, tried := make(map[string]*conn), make(map[string]bool)
	for _, r := range routes {
		for _, b := range r.Brokers {
			addr := b.Addrs["0"]
			if addr == "" || tried[b.Name] {
				continue
			}
			tried[b.Name] = true
			cn, err := s.reach(ctx, addr)
			if err == nil {
				err = s.greet(ctx, cn)
			}
			if err != nil {
				*errs = append(*errs, fmt.Errorf("rocketmq: heartbeat to broker %s: %w", b.Name, err))
				continue
			}
			heard[b.Name] = cn
		}
	}
	return heard
}

func (s *Source) reach(ctx context.Context, addr string) (*conn, error) {
	if err := s.reconnectable(addr); err != nil {
		return nil, err
	}
	return s.client.connect(ctx, addr)
}

// greet sends a heartbeat, and reads the broker's settings if it is the first one. A connection
// that stays without an answer is dead. The answer is awaited beyond the end of ctx: a broker that takes in a
// heartbeat after the member has said goodbye, or its connection has ended, counts it for two minutes more.
func (s *Source) greet(ctx context.Context, cn *conn) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), silence)
	defer cancel()
	if err := cn.heartbeat(call, s.id, s.membership()); err != nil {
		silent(ctx, cn, err)
		return err
	}
	s.mu.Lock()
	asked := s.asked[cn.addr]
	s.mu.Unlock()
	if asked {
		return nil
	}
	all, err := cn.config(call)
	if err != nil && !refused(err) {
		return err
	}
	if err != nil {
		s.log.Info("rocketmq: the broker does not let its settings be read; the retry window is computed from what is declared or usual", "broker", cn.addr, "error", err)
	}
	s.learn(cn.addr, all)
	return nil
}

// silent breaks a connection on which a call was not answered in time: the next ones would not be, either.
func silent(ctx context.Context, cn *conn, err error) {
	if err != nil && !refused(err) && ctx.Err() == nil {
		cn.fail(err)
	}
}

// learn takes over a broker's settings.
func (s *Source) learn(addr string, all map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[addr] = true
	if text := all["messageDelayLevel"]; text != "" {
		levels, err := parseLevels(text)
		switch {
		case err != nil:
			s.log.Warn("rocketmq: a setting of the broker cannot be read", "broker", addr, "error", err)
		case s.read.levels != nil && !slices.Equal(s.read.levels, levels):
			s.log.Error("rocketmq: the brokers differ in messageDelayLevel, so retries come at other times than the retention is computed from", "broker", addr, "levels", text)
		default:
			s.read.levels = levels
		}
	}
	if hours, err := strconv.Atoi(all["fileReservedTime"]); err == nil {
		if d := time.Duration(hours) * time.Hour; s.read.reserved == 0 || d < s.read.reserved {
			s.read.reserved = d
		}
	}
}

// membership is what brokers know of the member.
func (s *Source) membership() membership {
	m := membership{Group: s.wireGroup, Type: "CONSUME_PASSIVELY", Model: "CLUSTERING", From: "CONSUME_FROM_FIRST_OFFSET"}
	if s.opt.FromLatest {
		m.From = "CONSUME_FROM_LAST_OFFSET"
	}
	add := func(topic, tags string) {
		sub := subscription{Topic: topic, Expression: tags, Tags: []string{}, Codes: []int32{}, Type: "TAG", Version: s.version}
		for tag := range tagSet(tags) {
			sub.Tags = append(sub.Tags, tag)
			sub.Codes = append(sub.Codes, javaHash(tag))
		}
		m.Subscriptions = append(m.Subscriptions, sub)
	}
	for _, t := range s.topics {
		add(s.cluster.wire(t), s.opt.Tags)
	}
	add(s.retryTopic, allTags)
	add(s.bounceTopic, allTags)
	return m
}

// javaHash is String.hashCode, by which brokers compare tags.
func javaHash(s string) (h int32) {
	for _, r := range s {
		if r > 0xffff {
			r -= 0x10000
			h = 31*h + int32(0xd800+r>>10)
			r = 0xdc00 + r&0x3ff
		}
		h = 31*h + int32(r)
	}
	return h
}
