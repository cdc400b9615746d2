package consumer_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup/memstore"
)

func TestOverdueHeadKeepsItsPlaceUntilItsSessionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		busy := elsewhere(t, store, "a")
		s := newSource()
		s.deadline = 40 * time.Second
		s.policy.HandlerTimeout = 2 * time.Second
		var asked atomic.Int64
		s.fail = func(word string, _ *consumer.Message) error {
			if word != "give back" {
				return nil
			}
			if asked.Add(1) == 1 {
				time.AfterFunc(3*time.Second, s.lose) // a session takes a while to end
			}
			return errBoom // it comes with the next session, in its place
		}
		r := &recorder{}
		c := newConsumer(t, s, newGuard(t, store), r.handle, nil)
		stop := start(t, c)
		s.publish(message("a", "queue"))
		time.Sleep(15 * time.Second)
		s.publish(message("b", "queue"), message("c", "queue"))
		time.Sleep(35 * time.Second)
		require.Empty(t, r.all(), "what comes after it waits for it")
		require.EqualValues(t, 6, c.Stats().Received, "each came once more, with the second session")
		require.NoError(t, busy.Release(t.Context()))
		time.Sleep(5 * time.Second)
		require.Equal(t, []string{"a", "b", "c"}, r.all())
		require.NoError(t, stop())
		s.kept(t)
	})
}

func TestOverdueHeadOfASessionThatDoesNotEndGoesAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		elsewhere(t, store, "a")
		s := newSource()
		s.deadline = 40 * time.Second
		s.fail = func(word string, _ *consumer.Message) error {
			if word == "give back" {
				return errBoom
			}
			return nil
		}
		r := &recorder{}
		c := newConsumer(t, s, newGuard(t, store), r.handle, &consumer.Options{Policy: consumer.Policy{HandlerTimeout: 2 * time.Second}})
		stop := start(t, c)
		s.publish(message("a", "queue"))
		time.Sleep(38 * time.Second)
		s.publish(message("b", "queue"))
		time.Sleep(1900 * time.Millisecond)
		require.Empty(t, r.all())
		time.Sleep(time.Second)
		require.Equal(t, []string{"b"}, r.all())
		require.EqualValues(t, 1, c.Stats().GivenBack)
		require.NoError(t, stop())
		s.kept(t)
	})
}
