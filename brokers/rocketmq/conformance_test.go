package rocketmq_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/internal/conformance"
	"github.com/idemq/idemq/outbox"
)

func TestSourceKeepsTheRules(t *testing.T) {
	for name, ordered := range map[string]bool{"RocketMQ": false, "RocketMQ, ordered": true} {
		t.Run(name, func(t *testing.T) {
			report := conformance.Column(t, "consumertest.TestSource", name)
			consumertest.TestSource(t, func(tb testing.TB) consumertest.Config {
				return configOf(tb, newWorld(tb, 2), ordered, report)
			})
		})
	}
}

func configOf(tb testing.TB, w world, ordered bool, report func(name, inapplicable string)) consumertest.Config {
	publisher := w.publisher(tb)
	var mu sync.Mutex
	var open []*rocketmq.Source
	var dead []consumer.Message
	var graves *rocketmq.Source
	return consumertest.Config{
		Open: func(tb testing.TB) consumer.Source {
			s := w.source(tb, func(o *rocketmq.SourceOptions) { o.Ordered = ordered })
			mu.Lock()
			defer mu.Unlock()
			open = append(open, s)
			return s
		},
		Publish: func(tb testing.TB, ms ...consumer.Message) {
			out := make([]outbox.Message, len(ms))
			for i, m := range ms {
				out[i] = outbox.Message{ID: m.ID, Topic: w.topic, Key: m.Key, Headers: m.Headers, Body: m.Body}
			}
			require.NoError(tb, publisher.SendAsIs(within(tb, eventually), out))
		},
		DeadLetters: func(tb testing.TB) []consumer.Message {
			if graves == nil {
				graves = w.sourceOf(tb, w.group+"-graves", []string{w.group + "-dead"})
			}
			ctx, cancel := context.WithTimeout(tb.Context(), 500*time.Millisecond)
			defer cancel()
			for ctx.Err() == nil {
				ds, err := graves.Receive(ctx, 100)
				if err != nil {
					require.ErrorIs(tb, err, context.DeadlineExceeded)
				}
				for _, d := range ds {
					dead = append(dead, *d.Message)
					require.NoError(tb, d.Ack(tb.Context()))
				}
			}
			return dead
		},
		Cut: func(testing.TB) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range open {
				s.Cut()
			}
		},
		Ordered:    ordered,
		Delay:      time.Second,
		MaxBody:    4<<20 - 64<<10,
		NilIsEmpty: true,
		Report:     report,
	}
}
