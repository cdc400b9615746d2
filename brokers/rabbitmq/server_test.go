package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup/memstore"
	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// One server serves all of these, one after the other: each leaves it as it was.
func TestFaultsOfAServer(t *testing.T) {
	t.Parallel()
	s := testenv.StartRabbitMQ(t, "-rabbit dead_letter_worker_publisher_confirm_timeout 1000", "-rabbit channel_tick_interval 200")
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s *testenv.RabbitServer)
	}{
		{"DeliveryLimitLoweredByAPolicyLosesNothing", loweredLimit},
		{"HandlerBeyondTheServersOwnLimitCostsNoSecondEffect", beyondTheLimit},
		{"MemoryAlarmHoldsRetriesUpButNotAcknowledgements", memoryAlarm},
		{"MessagesWaitWhileTheirQueueIsMissingAndOverARestart", missingTarget},
		{"RestartsInMidRunLoseAndDoubleNothing", restarts},
	} {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, s) }) {
			return
		}
	}
}

// No client can see a policy. What the server then gives up by itself is in the dead letter
// queue, and can be redriven.
func loweredLimit(t *testing.T, s *testenv.RabbitServer) {
	w := worldOn(t, s.URL)
	s.Ctl("set_policy", "low", "^"+w.queue+"$", `{"delivery-limit":1}`, "--apply-to", "queues")
	defer s.Ctl("clear_policy", "low")
	w.publishRaw(t, numbers(0, 1)...)
	src := w.source(t)
	require.Eventually(t, func() bool {
		ds, err := src.Receive(within(t, 200*time.Millisecond), 1)
		if err == nil {
			require.NoError(t, ds[0].GiveBack(t.Context()))
		}
		return w.count(t, w.queue+".dead") == 1
	}, eventually, time.Millisecond)
	dead := rabbitmq.MessageFrom(w.look(t, w.queue+".dead")[0])
	require.Equal(t, "delivery_limit", dead.Headers["x-first-death-reason"])
	require.NoError(t, w.publisher(t, nil).Redrive(t.Context(), dead))
	again := receive(t, src, 1)[0]
	require.Equal(t, []string{"id-0", w.queue}, []string{again.ID, again.Topic})
	ack(t, again)
}

// The option says half an hour, the server is set to one second.
func beyondTheLimit(t *testing.T, s *testenv.RabbitServer) {
	set := func(name, value string) { s.Ctl("eval", "application:set_env(rabbit, "+name+", "+value+").") }
	set("consumer_timeout", "500")
	defer set("consumer_timeout", "1800000")
	w := worldOn(t, s.URL)
	w.publishRaw(t, numbers(0, 5)...)
	var l log
	j := w.work(t, memstore.New(), quick, func(ctx context.Context, m *consumer.Message) error {
		if m.ID != "id-0" {
			return nil
		}
		select {
		case <-time.After(2 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, func(o *rabbitmq.SourceOptions) { o.Logger = l.logger() })
	j.until(t, "all done", func(consumer.Stats) bool { effects, _ := j.done(); return len(effects) == 5 })
	require.Eventually(t, func() bool { st := j.Stats(); return st.Running+st.Waiting == 0 && w.count(t, w.queue) == 0 }, eventually, 20*time.Millisecond)
	j.stop()
	j.once(t, 5)
	require.Empty(t, w.look(t, w.queue))
	require.Contains(t, l.String(), "PRECONDITION_FAILED - delivery acknowledgement on channel")
}

func memoryAlarm(t *testing.T, s *testenv.RabbitServer) {
	w := worldOn(t, s.URL)
	w.publishRaw(t, numbers(0, 10)...)
	src, p := w.source(t), w.publisher(t, nil)
	ds := receive(t, src, 10)
	require.NoError(t, ds[0].Retry(t.Context(), 0, nil)) // so that there is a connection to publish on
	ack(t, receive(t, src, 1)...)
	s.Ctl("set_vm_memory_high_watermark", "0.00001")
	calm := func() { s.Ctl("set_vm_memory_high_watermark", "0.6") }
	defer calm()
	require.Eventually(t, func() bool {
		return strings.Contains(s.Ctl("eval", "rabbit_alarm:get_alarms()."), "memory")
	}, eventually, 50*time.Millisecond)

	err := ds[1].Retry(within(t, 300*time.Millisecond), 0, nil)
	require.Error(t, err, "no confirmation")
	require.Eventually(t, func() bool {
		begun := time.Now()
		err := ds[2].Retry(within(t, 300*time.Millisecond), 0, nil)
		require.Error(t, err)
		return strings.Contains(err.Error(), "blocked publishers") && time.Since(begun) < 250*time.Millisecond
	}, eventually, time.Millisecond, "once it knows, it does not wait")
	errs := make([]error, 1)
	_ = p.Publish(within(t, 300*time.Millisecond), []outbox.Message{{ID: "late", Topic: w.queue + ".dead"}}, errs)
	ack(t, ds[3:]...)
	require.Eventually(t, func() bool { // acknowledgements go on
		return strings.Contains(s.Ctl("list_queues", "name", "messages_unacknowledged"), w.queue+"\t2\n")
	}, eventually, 50*time.Millisecond)
	require.True(t, src.Connected())

	calm()
	for _, d := range ds[1:3] {
		require.Eventually(t, func() bool { return d.Retry(within(t, time.Second), 0, nil) == nil }, eventually, 50*time.Millisecond)
	}
	seen := map[string]bool{}
	for !seen["id-1"] || !seen["id-2"] { // one of them perhaps twice: what was written under the alarm was taken after it
		d := receive(t, src, 1)[0]
		seen[d.ID] = true
		ack(t, d)
	}
}

// The server tries again to hand on what is due every second here; every 3 minutes is its default.
func missingTarget(t *testing.T, s *testenv.RabbitServer) {
	w := worldOn(t, s.URL)
	const n, long = 60, 2 * time.Second // enough for all to be sent before the first is due
	w.publishRaw(t, numbers(0, n)...)
	slow := func(o *rabbitmq.SourceOptions) { o.Prefetch, o.Delays = n, []time.Duration{long} }
	src := w.source(t, slow)
	for _, d := range receive(t, src, n) {
		require.NoError(t, d.Retry(t.Context(), 0, errors.New("later")))
	}
	closeSource(t, src)
	ch := w.channel(t)
	gone, err := ch.QueueDelete(w.queue, false, false, false)
	require.NoError(t, err)
	require.Zero(t, gone, "messages that were back already")
	kept := func() bool { // all are due, and none has anywhere to go; the numbers are some seconds old
		return strings.Contains(s.Ctl("list_queues", "name", "messages", "messages_ready"), fmt.Sprintf("%s.wait.2s\t%d\t0\n", w.queue, n))
	}
	require.Eventually(t, kept, eventually, 50*time.Millisecond)
	s.Restart() // killed
	require.Eventually(t, kept, eventually, 50*time.Millisecond)
	w.declare(t)
	src = w.source(t, slow)
	seen := map[string]bool{}
	for len(seen) < n {
		d := receive(t, src, 1)[0]
		seen[d.ID] = true
		ack(t, d)
	}
}

func restarts(t *testing.T, s *testenv.RabbitServer) {
	w := worldOn(t, s.URL)
	const n = 400
	w.publishRaw(t, numbers(0, n)...)
	j := w.work(t, memstore.New(), quick, failing(1))
	at := func(k int) func(consumer.Stats) bool {
		return func(consumer.Stats) bool { effects, _ := j.done(); return len(effects) >= k }
	}
	j.until(t, "some", at(20))
	s.Restart() // killed
	j.until(t, "more", at(n/2))
	s.Stop()
	s.Start()
	j.until(t, "all", at(n))
	require.Eventually(t, func() bool { st := j.Stats(); return st.Running+st.Waiting == 0 }, eventually, 10*time.Millisecond)
	j.stop()
	j.once(t, n)
	require.Empty(t, w.look(t, w.queue+".dead"))
	for _, d := range w.look(t, w.queue) { // copies whose ack was lost
		require.Contains(t, j.effects, d.MessageId)
	}
}
