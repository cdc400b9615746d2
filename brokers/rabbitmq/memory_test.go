package rabbitmq_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/outbox"
)

// A hundred thousand messages that wait do not enter the process.
func TestWaitingMessagesStayOutOfTheProcess(t *testing.T) {
	const waiting, part = 100_000, 10_000
	w := newWorld(t)
	p := w.publisher(t, &rabbitmq.PublisherOptions{Timeout: 5 * time.Minute})
	body := bytes.Repeat([]byte("x"), 512)
	for from := 0; from < waiting; from += part {
		ms := make([]outbox.Message, part)
		for i := range ms {
			ms[i] = outbox.Message{ID: w.queue + strconv.Itoa(from+i), Topic: w.queue, Body: body}
		}
		errs := make([]error, len(ms))
		require.NoError(t, p.Publish(t.Context(), ms, errs))
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	s := w.source(t, func(o *rabbitmq.SourceOptions) { o.Logger = slog.New(slog.DiscardHandler) })
	ds := receive(t, s, 32)
	nothing(t, s, 200*time.Millisecond)
	grown := heap() - before
	t.Logf("%d messages of 512 B wait; the heap has grown by %d KiB", waiting, grown>>10)
	require.Less(t, grown, 4<<20)
	runtime.KeepAlive(ds)
}
