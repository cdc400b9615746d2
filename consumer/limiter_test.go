package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// illegible is a Store none of whose records can be decoded.
type illegible struct{ dedup.Store }

func (s illegible) Claim(_ context.Context, in []dedup.ClaimRequest, out []dedup.Verdict) error {
	for i := range in {
		out[i] = dedup.Verdict{Err: errBoom}
	}
	return nil
}

func TestTroubleOfManyMessagesDoesNotFloodTheLog(t *testing.T) {
	for line, c := range map[string]struct {
		store dedup.Store
		fail  string
	}{
		"record cannot be used":                   {illegible{memstore.New()}, ""},
		"broker did not take a dead letter":       {memstore.New(), "dead letter"},
		"consumer: broker did not take a retry, ": {memstore.New(), "retry"},
	} {
		t.Run(line, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out lines
				g, err := dedup.New("app", c.store, &dedup.Options{Logger: out.logger()})
				require.NoError(t, err)
				s := newSource()
				s.hold = 5 * time.Second
				s.fail = func(word string, _ *consumer.Message) error {
					if word == c.fail {
						return errBoom
					}
					return nil
				}
				s.publish(messages(50, "")...)
				stop := start(t, newConsumer(t, s, g, func(context.Context, *consumer.Message) error {
					if c.fail == "retry" {
						return errBoom
					}
					return consumer.Permanent(errBoom)
				}, nil))
				time.Sleep(time.Minute)
				require.NotZero(t, out.count(line))
				require.LessOrEqual(t, out.count(line), 7, "in a minute, whatever the messages are")
				require.Equal(t, 1, out.count("and_more=0"), "the first one")
				require.NoError(t, stop())
			})
		})
	}
}
