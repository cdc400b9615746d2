package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/idemq/idemq/outbox"
)

// errDown is what a broker answers that cannot be asked.
var errDown = errors.New("the broker is down")

// broker is a publisher in memory. It finds out by itself whether it is given two messages of one key
// at once, or called by two goroutines of one relay.
type broker struct {
	mu     sync.Mutex
	log    []outbox.Message // what it took, in order
	calls  int
	wrong  []string
	answer func(m outbox.Message, asked int) error // asked: how often before; nil: it takes all
	asked  map[string]int
	down   bool
	enter  chan struct{} // where not nil: told of each call
	gate   chan struct{} // where not nil: each call waits for it
}

func newBroker() *broker { return &broker{asked: make(map[string]int)} }

// at is the broker as one relay sees it.
func (b *broker) at() outbox.Publisher { return &door{b: b} }

type door struct {
	b    *broker
	busy sync.Mutex
}

func (d *door) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	b := d.b
	b.mu.Lock()
	enter, gate := b.enter, b.gate
	if !d.busy.TryLock() {
		b.wrong = append(b.wrong, "two calls of one relay at once")
	} else {
		defer d.busy.Unlock()
	}
	b.mu.Unlock()
	if enter != nil {
		enter <- struct{}{}
	}
	if gate != nil {
		<-gate
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if _, ends := ctx.Deadline(); !ends {
		b.wrong = append(b.wrong, "a call without an end")
	}
	if len(ms) != len(errs) || len(ms) == 0 {
		b.wrong = append(b.wrong, fmt.Sprintf("%d messages with room for %d answers", len(ms), len(errs)))
	}
	if b.down {
		return errDown
	}
	keys := make(map[string]bool, len(ms))
	for i, m := range ms {
		if keys[m.Key] {
			b.wrong = append(b.wrong, fmt.Sprintf("two messages of key %q in one call", m.Key))
		}
		keys[m.Key] = m.Key != ""
		if b.answer != nil {
			errs[i] = b.answer(m, b.asked[m.ID])
		}
		b.asked[m.ID]++
		if errs[i] == nil {
			b.log = append(b.log, m)
		}
	}
	return nil
}

// set changes what the broker does.
func (b *broker) set(f func(b *broker)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// firsts are the messages in the order of their first arrivals, and how many came again.
func (b *broker) firsts() (ms []outbox.Message, again int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make(map[string]bool)
	for _, m := range b.log {
		if seen[m.ID] {
			again++
			continue
		}
		seen[m.ID] = true
		ms = append(ms, m)
	}
	return ms, again
}

func (b *broker) has(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.log {
		if m.ID == id {
			return true
		}
	}
	return false
}

func (b *broker) count() int {
	ms, _ := b.firsts()
	return len(ms)
}
