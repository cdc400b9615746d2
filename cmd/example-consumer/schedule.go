package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/idemq/idemq/outbox"
)

// point is where a child is killed.
type point int

const (
	nowhere      point = iota
	beforeEffect       // in the handler, before the effect
	inWindow           // between effect and verdict: the named window
	beforeAck          // between verdict and acknowledgement

	beforePublish   // of a relay: the batch is read
	beforeWriteBack // the broker has the batch, and the outbox does not know it
)

func (p point) String() string {
	return [...]string{"nowhere", "before the effect", "between effect and verdict", "between verdict and ack",
		"before the publish", "between publish and write-back"}[p]
}

// schedule is what befalls the orders; it is the same for every subject.
type schedule struct {
	orders    []string
	published []string         // orders and producer duplicates, in the order they are sent
	failures  map[string]int   // how often the handler fails before it succeeds
	poison    map[string]bool  // always fails, for good
	kills     map[string]point // the child that handles it is killed there, once

	requests   []string         // with --outbox: published, and orders that are declined
	declined   map[string]bool  // their transaction is rolled back
	relayKills map[string]point // the relay that publishes it is killed there, once
}

// newSchedule draws a schedule. Victims, failing orders and poison are different orders, so that each
// count has one cause.
func newSchedule(seed uint64, n int) *schedule {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	s := &schedule{
		failures: make(map[string]int), poison: make(map[string]bool), kills: make(map[string]point),
		declined: make(map[string]bool), relayKills: make(map[string]point),
	}
	for i := range n {
		s.orders = append(s.orders, fmt.Sprintf("order-%04d", i+1))
	}
	cards := r.Perm(n)
	draw := func() string {
		id := s.orders[cards[0]]
		cards = cards[1:]
		return id
	}
	for _, p := range [...]point{beforeEffect, inWindow, beforeAck} {
		for range min(max(n/50, 1), 3) {
			s.kills[draw()] = p
		}
	}
	for range min(max(n/25, 1), 8) {
		s.failures[draw()] = 1 + r.IntN(2)
	}
	for range min(max(n/100, 1), 3) {
		s.poison[draw()] = true
	}
	for _, p := range [...]point{beforePublish, beforeWriteBack} {
		for range min(max(n/100, 1), 2) {
			s.relayKills[draw()] = p
		}
	}
	// A fifth of the orders is sent again, some at once, most a while later.
	again := make(map[int][]string)
	for _, i := range r.Perm(n)[:n/5] {
		at := min(i+r.IntN(20), n-1)
		again[at] = append(again[at], s.orders[i])
	}
	for i, id := range s.orders {
		s.published = append(s.published, id)
		s.published = append(s.published, again[i]...)
	}
	for i, id := range s.published {
		s.requests = append(s.requests, id)
		if (i+1)%8 == 0 {
			no := fmt.Sprintf("declined-%04d", len(s.declined)+1)
			s.declined[no] = true
			s.requests = append(s.requests, no)
		}
	}
	return s
}

// throughOutbox is the schedule where a relay decides what is published how often.
func (s *schedule) throughOutbox() *schedule {
	t := *s
	t.published = nil
	return &t
}

// messages are the schedule as it is sent: a duplicate has the ID and the content of its original.
func (s *schedule) messages(topic string) []outbox.Message {
	ms := make([]outbox.Message, len(s.published))
	for i, id := range s.published {
		ms[i] = sampleOrder(topic, id)
		ms[i].Headers[copyHeader] = strconv.Itoa(i + 1)
	}
	return ms
}

// sampleOrder is the message for one order; its customer is its key.
func sampleOrder(topic, id string) outbox.Message {
	customer := "customer-" + id[max(len(id)-3, 0):]
	return outbox.Message{
		ID: id, Topic: topic, Key: customer,
		Headers: map[string]string{"content-type": "application/json", orderHeader: id},
		Body:    fmt.Appendf(nil, `{"order":%q,"customer":%q,"cents":1999}`, id, customer),
	}
}
