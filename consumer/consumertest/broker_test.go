package consumertest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
)

func receive(t *testing.T, s consumer.Source, n int) []consumer.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds, err := s.Receive(ctx, 100)
	require.NoError(t, err)
	require.Len(t, ds, n)
	return ds
}

func empty(t *testing.T, s consumer.Source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.Receive(ctx, 100)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestWordsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, b := t.Context(), consumertest.NewBroker()
		failing := errors.New("connection reset")
		b.Fail = func(word string, m *consumer.Message) error {
			require.Equal(t, "order-1", m.ID)
			if failing != nil {
				return errors.Join(failing, errors.New(word))
			}
			return nil
		}
		b.Publish(order("order-1"))
		d := receive(t, b, 1)[0]
		require.ErrorContains(t, d.Retry(ctx, 0, nil), "Retry")
		require.ErrorIs(t, d.DeadLetter(ctx, 1, nil), failing)
		require.Empty(t, b.DeadLetters())
		require.ErrorIs(t, d.Ack(ctx), failing)
		require.ErrorContains(t, d.Ack(ctx), "settled before")

		d = receive(t, b, 1)[0]
		require.ErrorIs(t, d.GiveBack(ctx), failing)
		d = receive(t, b, 1)[0]
		require.ErrorIs(t, d.Retry(ctx, 0, nil), failing)
		failing = nil
		require.NoError(t, d.Retry(ctx, 0, nil), "after an error the delivery is unsettled")
		require.NoError(t, receive(t, b, 1)[0].Ack(ctx))
		empty(t, b)
	})
}

func TestDeliveryPastItsDeadlineLosesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := consumertest.NewBroker()
		b.Deadline = time.Second
		b.Publish(order("order-1"))
		begun := time.Now()
		first := receive(t, b, 1)[0]
		require.Equal(t, begun.Add(time.Second), first.Deadline)
		second := receive(t, b, 1)[0]
		require.Equal(t, time.Second, time.Since(begun))
		require.NoError(t, first.Ack(t.Context()), "too late to count")
		<-first.Lost
		require.NoError(t, b.Close(t.Context()))
		<-second.Lost
		require.NoError(t, receive(t, b, 1)[0].Ack(t.Context()))
		empty(t, b)
	})
}

func TestUnsettledDeliveriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := consumertest.NewBroker()
		b.MaxUnsettled = 2
		b.Publish(order("1"), order("2"), order("3"))
		ds := receive(t, b, 2)
		empty(t, b)
		require.NoError(t, ds[0].Ack(t.Context()))
		require.Equal(t, "3", receive(t, b, 1)[0].ID)
	})
}

func TestLaneBelongsToOneMemberWhileItHasUnsettledMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := consumertest.NewBroker()
		other := b.Member()
		of := func(key, id string) consumer.Message {
			m := order(id)
			m.Key = key
			return m
		}
		b.Publish(of("a", "1"))
		d := receive(t, b, 1)[0]
		b.Publish(of("a", "2"), of("b", "3"), of("a", "4"))
		require.Equal(t, "3", receive(t, other, 1)[0].ID)
		require.NoError(t, d.Ack(t.Context()))
		ds := receive(t, other, 2)
		require.Equal(t, "2", ds[0].ID)
		require.Equal(t, "4", ds[1].ID)
		empty(t, b)
	})
}

func TestRedeliverBringsEverythingOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, b := t.Context(), consumertest.NewBroker()
		b.Publish(order("acked"), order("postponed"), order("unsettled"), order("dead"))
		ds := receive(t, b, 4)
		require.NoError(t, ds[0].Ack(ctx))
		require.NoError(t, ds[1].Retry(ctx, time.Hour, nil))
		require.NoError(t, ds[3].DeadLetter(ctx, 1, errors.New("no")))
		require.NoError(t, ds[3].Ack(ctx))
		b.Redeliver()
		<-ds[2].Lost
		var ids []string
		for _, d := range receive(t, b, 3) {
			ids = append(ids, d.ID)
			require.NoError(t, d.Ack(ctx))
		}
		require.Equal(t, []string{"acked", "unsettled", "dead"}, ids)
		empty(t, b)
		<-time.After(time.Hour)
		require.Equal(t, "postponed", receive(t, b, 1)[0].ID)
	})
}

func TestPublishedMessagesAreCopies(t *testing.T) {
	b := consumertest.NewBroker()
	m := consumer.Message{ID: "order-1", Body: []byte("body"), Headers: map[string]string{"a": "1"}}
	b.Publish(m)
	m.Body[0], m.Headers["a"] = 'B', "2"
	for range 2 {
		d := receive(t, b, 1)[0]
		require.Equal(t, "body", string(d.Body))
		require.Equal(t, map[string]string{"a": "1"}, d.Headers)
		d.Body[0], d.Headers["a"] = 'X', "3" // a handler may
		require.NoError(t, d.GiveBack(t.Context()))
	}
}

func TestSettingsThatCannotBeMeantAreRefused(t *testing.T) {
	b := consumertest.NewBroker()
	b.HandlerLimit = -1
	_, err := b.Plan(consumer.Policy{})
	require.ErrorContains(t, err, "HandlerLimit -1ns")
	_, err = b.Receive(t.Context(), 0)
	require.ErrorContains(t, err, "at least one")
}
