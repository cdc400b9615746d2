package rocketmq_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/internal/sqldialect"
)

// left leaves markers that no broker has confirmed, and about which none asks any more; the oldest first.
func (s *shop) left(t testing.TB, topic string, firstAge int, ids ...string) {
	t.Helper()
	var rows []string
	for i, id := range ids {
		head, err := json.Marshal(map[string][]byte{"ID": []byte(id), "Key": nil})
		require.NoError(t, err)
		if strings.HasPrefix(id, "damaged") {
			head = head[1:]
		}
		rows = append(rows, fmt.Sprintf("(%s, 1, %d, '%s', %s, %s)", s.bytes(id), firstAge+i/2, topic, s.bytes(string(head)), s.bytes("body"))) // two of each age
	}
	s.exec(t, "INSERT INTO "+s.markers+" (k, state, written_at, topic, head, body) VALUES "+strings.Join(rows, ", "))
}

func TestResendGoesPastWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	eachShop(t, func(t *testing.T, s *shop) {
		t.Parallel()
		w := newWorld(t, 1)
		p := w.newSeller(t, s)
		s.left(t, w.topic+"-gone", 1, numbers(1000, 1150)...) // more than are read at once
		s.left(t, w.topic, 500, "damaged", "a", "b")
		n, err := p.Resend(within(t, eventually))
		require.ErrorContains(t, err, "rocketmq: resend: marker 1000: topic ")
		require.ErrorContains(t, err, "it does not exist")
		require.ErrorContains(t, err, "marker damaged: ")
		require.ErrorContains(t, err, "and 149 more were not sent")
		require.Equal(t, 2, n)
		visible(t, w.source(t), "a", "b")
		require.Equal(t, []int{151, 2}, []int{s.marks(t, 1), s.marks(t, 2)})

		s.exec(t, "DELETE FROM "+s.markers+" WHERE state = 1 AND k = "+s.bytes("damaged"))
		w.create(t, w.topic+"-gone", 1)
		n, err = p.Resend(within(t, eventually))
		require.NoError(t, err)
		require.Equal(t, 150, n)
		require.Zero(t, s.marks(t, 1))
	})
}

func TestResendEndsWithRun(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, 1), openShop(t, sqldialect.SQLite)
	const askSend = 10
	far, broker := w.behind(t, askSend)
	p := far.newSeller(t, s)
	s.left(t, w.topic, 1, "a")
	answered := make(chan struct{})
	answer := sync.OnceFunc(func() { close(answered) })
	t.Cleanup(answer)
	broker.change(func(body []byte) []byte { <-answered; return body })
	ended := make(chan error, 1)
	go func() {
		_, err := p.Resend(within(t, eventually))
		ended <- err
	}()
	require.Eventually(t, func() bool { return broker.asked.Load() > 0 }, eventually, step, "nothing is sent")
	p.stop()
	require.ErrorIs(t, <-ended, rocketmq.ErrClosed)
	answer()
	require.NoError(t, p.end())
}
