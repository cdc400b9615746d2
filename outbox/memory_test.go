package outbox_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// TestLargeMessagesAreReadAFewAtATime: a relay's memory is bounded in bytes, not by the number of messages alone.
func TestLargeMessagesAreReadAFewAtATime(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		const size, n = 3 << 20, 12
		for i := range n {
			b.write(t, outbox.Message{ID: fmt.Sprint(i), Topic: "t"})
		}
		b.exec(t, fmt.Sprintf("UPDATE %s SET body = %s", b.table, fmt.Sprintf(map[outbox.Dialect]string{
			outbox.PostgreSQL: "decode(repeat('00', %d), 'hex')", outbox.MySQL: "REPEAT('x', %d)", outbox.SQLite: "zeroblob(%d)",
		}[b.dialect], size)))
		for i := range 100 {
			b.write(t, outbox.Message{ID: fmt.Sprint("small-", i), Topic: "t"})
		}
		var most, sent atomic.Int64
		run(t, b.Outbox, publisher(func(ms []outbox.Message, _ []error) error {
			bytes := int64(0)
			for _, m := range ms {
				bytes += int64(len(m.Body))
			}
			most.Store(max(most.Load(), bytes))
			sent.Add(int64(len(ms)))
			return nil
		}), outbox.RelayOptions{})
		b.awaitSent(t)
		require.LessOrEqual(t, most.Load(), int64(32<<20), "of two reads at most")
		require.EqualValues(t, n+100, sent.Load(), "each once")
	})
}
