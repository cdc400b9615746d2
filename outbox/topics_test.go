package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// topicBroker lacks topic "missing" until somebody makes it, and of "half" takes what has an even number at its end.
type topicBroker struct {
	arrived
	err  error // of what it does not take
	mu   sync.Mutex
	made bool
	many int // calls with more than one message of the missing topic
	one  int // calls with one
}

func (b *topicBroker) publish(ms []outbox.Message, errs []error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := 0
	for i, m := range ms {
		if m.Topic == "missing" {
			missing++
		}
		if !b.made && (m.Topic == "missing" || m.Topic == "half" && strings.ContainsAny(m.ID[len(m.ID)-1:], "13579")) {
			errs[i] = b.err
			continue
		}
		b.arrived.mu.Lock()
		b.ids = append(b.ids, m.ID)
		b.arrived.mu.Unlock()
	}
	if missing > 1 && !b.made {
		b.many++
	} else if missing == 1 {
		b.one++
	}
	return nil
}

func (b *topicBroker) ones() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.one
}

func (b *topicBroker) has(ids ...string) func() bool {
	return func() bool {
		got := make(map[string]bool)
		for _, id := range b.all() {
			got[id] = true
		}
		for _, id := range ids {
			if !got[id] {
				return false
			}
		}
		return true
	}
}

var errMissing = errors.New("there is no such topic")

// TestMissingTopicHoldsItsOwnMessagesAndTheirKeysOnly: one of them is tried at a time; what has their keys does not overtake
// them; the others pass. When somebody has made the topic all goes on.
func TestMissingTopicHoldsItsOwnMessagesAndTheirKeysOnly(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"missing": errMissing, "unavailable": outbox.Unavailable(errMissing)} {
		t.Run(name, func(t *testing.T) {
			eachDB(t, func(t *testing.T, b *base) {
				broker := &topicBroker{err: answer}
				ms := make([]outbox.Message, 0, 1000)
				for n := range 600 {
					ms = append(ms, outbox.Message{ID: fmt.Sprint("bad-", n), Topic: "missing"})
				}
				for n := range 100 {
					key := fmt.Sprint("k", n)
					ms = append(ms, outbox.Message{ID: key + "-0", Topic: "good", Key: key}, outbox.Message{ID: key + "-1", Topic: "missing", Key: key}, outbox.Message{ID: key + "-2", Topic: "good", Key: key})
				}
				b.write(t, ms...)
				run(t, b.Outbox, publisher(broker.publish), outbox.RelayOptions{Batch: 64, MaxAttempts: 1000, Backoff: 5 * time.Millisecond, MaxBackoff: 20 * time.Millisecond})
				require.Eventually(t, func() bool { return broker.ones() > 3 }, eventually, time.Millisecond, "one at a time is tried")
				b.write(t, outbox.Message{ID: "good-0", Topic: "good"}, outbox.Message{ID: "good-1", Topic: "good", Key: "another"}, outbox.Message{ID: "k0-3", Topic: "good", Key: "k0"})
				require.Eventually(t, broker.has("good-0", "good-1"), eventually, time.Millisecond)
				before := broker.ones()
				require.Eventually(t, func() bool { return broker.ones() > before+5 }, eventually, time.Millisecond)
				broker.mu.Lock()
				require.Equal(t, 1, broker.many, "they are not asked for together again")
				broker.made = true
				broker.mu.Unlock()
				b.awaitSent(t)
				next := make(map[string]int)
				for _, id := range broker.all() {
					if key, n, _ := strings.Cut(id, "-"); key[0] == 'k' {
						require.Equal(t, fmt.Sprint(next[key]), n, id)
						next[key]++
					}
				}
				require.Len(t, next, 100)
				require.Len(t, broker.all(), 600+300+3)
			})
		})
	}
}

// TestTopicThatTakesSomeHoldsUpNoOther: a partition is away, so that of its messages each waits by itself.
func TestTopicThatTakesSomeHoldsUpNoOther(t *testing.T) {
	b := newBase(t, outbox.PostgreSQL)
	broker := &topicBroker{err: outbox.Unavailable(errMissing)}
	for at := 0; at < 24_000; at += 1000 { // more than a relay has in memory
		ms := make([]outbox.Message, 1000)
		for i := range ms {
			ms[i] = outbox.Message{ID: fmt.Sprint("half-", at+i), Topic: "half"}
		}
		b.write(t, ms...)
	}
	run(t, b.Outbox, publisher(broker.publish), outbox.RelayOptions{Backoff: time.Minute, MaxBackoff: time.Minute})
	require.Eventually(t, broker.has("half-0"), eventually, time.Millisecond)
	b.write(t, outbox.Message{ID: "good", Topic: "good"})
	require.Eventually(t, broker.has("good"), eventually, time.Millisecond)
	require.Less(t, len(broker.all()), 12_000, "and no more of it is read than 5,000 may wait")
}

// TestTopicWithAPartitionAwayTakesWhatIsForTheOthers: those that nobody takes are older, wake again and again, and cost no attempt.
func TestTopicWithAPartitionAwayTakesWhatIsForTheOthers(t *testing.T) {
	for name, err := range map[string]error{"unavailable": outbox.Unavailable(errMissing), "refused": errMissing} {
		t.Run(name, func(t *testing.T) {
			b := newBase(t, outbox.SQLite)
			var mu sync.Mutex
			calls := 0
			run(t, b.Outbox, publisher(func(ms []outbox.Message, errs []error) error {
				mu.Lock()
				defer mu.Unlock()
				for i, m := range ms {
					if strings.HasPrefix(m.ID, "dead") {
						errs[i] = err
						calls++
					}
				}
				return nil
			}), outbox.RelayOptions{MaxAttempts: 100_000, Backoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
			for n := range 4 {
				b.write(t, outbox.Message{ID: fmt.Sprint("dead-", n), Topic: "t"})
			}
			require.Eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return calls > 8
			}, eventually, time.Millisecond)
			for n := range 5 {
				b.write(t, outbox.Message{ID: fmt.Sprint("good-", n), Topic: "t"})
			}
			require.Eventually(t, func() bool {
				s, err := b.Stats(t.Context())
				require.NoError(t, err)
				return s.Pending == 4
			}, eventually, 5*time.Millisecond, "the others wait for ever")
		})
	}
}

// TestMessageThatFailsByItselfDoesNotHoldItsTopic: nobody knows that it is its own fault, until others of the topic are taken.
func TestMessageThatFailsByItselfDoesNotHoldItsTopic(t *testing.T) {
	b := newBase(t, outbox.SQLite)
	broker := &topicBroker{err: errMissing}
	b.write(t, outbox.Message{ID: "half-1", Topic: "half"})
	run(t, b.Outbox, publisher(broker.publish), outbox.RelayOptions{MaxAttempts: 3, Backoff: time.Hour, MaxBackoff: time.Hour})
	require.Eventually(t, func() bool {
		var attempts int
		require.NoError(t, b.db.QueryRow("SELECT attempts FROM "+b.table).Scan(&attempts))
		return attempts == 1
	}, eventually, time.Millisecond)
	b.write(t, outbox.Message{ID: "half-2", Topic: "half"})
	require.Eventually(t, broker.has("half-2"), eventually, time.Millisecond)
}
