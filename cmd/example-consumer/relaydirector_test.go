package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// relayStage is a director of relays whose kills are only noted, and an outbox that the test notes in.
type relayStage struct {
	*relayDirector
	outbox map[string]bool // pending
	kills  []killed
}

func newRelayStage(kills map[string]point) *relayStage {
	s := plan().throughOutbox()
	s.relayKills, s.declined = kills, map[string]bool{"declined": true}
	at := &relayStage{outbox: make(map[string]bool)}
	for _, id := range s.orders {
		at.outbox[id] = true
	}
	at.relayDirector = newRelayDirector(s, newLedger(s),
		func(context.Context) (map[string]bool, error) { return at.outbox, nil },
		func(child int, order string, p point) { at.kills = append(at.kills, killed{child, order, p}) })
	return at
}

// publish is a batch on its way; it reports how far it came.
func (s *relayStage) publish(child int, orders ...string) (point, bool) {
	a, ok := s.take(context.Background(), report{Child: child, Kind: publishing, Orders: orders})
	if !ok {
		return beforePublish, false
	}
	copies := make([]place, len(orders))
	for i := range copies {
		copies[i] = a.First + place(i)
	}
	if _, ok = s.take(context.Background(), report{Child: child, Kind: published, Orders: orders, Copies: copies}); !ok {
		return beforeWriteBack, false
	}
	return nowhere, true
}

// through is a batch that is published and noted.
func (s *relayStage) through(t *testing.T, child int, orders ...string) {
	t.Helper()
	_, ok := s.publish(child, orders...)
	require.True(t, ok)
	for _, id := range orders {
		delete(s.outbox, id)
	}
}

func TestRelayDiesAtItsPointAndItsBatchIsCountedTwice(t *testing.T) {
	s := newRelayStage(map[string]point{"early": beforePublish, "late": beforeWriteBack})
	s.through(t, 1, "plain")
	at, ok := s.publish(1, "early", "window")
	require.False(t, ok)
	require.Equal(t, beforePublish, at)
	require.True(t, s.killed(1))
	s.through(t, 2, "early", "window")
	at, ok = s.publish(2, "late", "failing")
	require.False(t, ok)
	require.Equal(t, beforeWriteBack, at)
	s.through(t, 3, "late", "failing", "poison")
	require.False(t, s.killed(3))

	require.Equal(t, []killed{{1, "early", beforePublish}, {2, "late", beforeWriteBack}}, s.kills)
	require.Equal(t, &passage{Relayed: 6, RelayedTwice: 2, cut: 2, kills: map[point]int{beforePublish: 1, beforeWriteBack: 1}}, s.passage())
	require.Equal(t, 8, s.ledger.unsettled(), "each copy has a number of its own")
}

func TestKillOfARelayWaitsUntilItsEarlierBatchesAreNoted(t *testing.T) {
	for _, p := range []point{beforePublish, beforeWriteBack} {
		synctest.Test(t, func(t *testing.T) {
			s := newRelayStage(map[string]point{"late": p})
			_, ok := s.publish(1, "plain")
			require.True(t, ok)
			asked := 0
			s.pending = func(context.Context) (map[string]bool, error) {
				require.Empty(t, s.kills, "plain would be published again, too")
				switch asked++; asked {
				case 1:
					return map[string]bool{"plain": true, "late": true}, nil
				case 2:
					return nil, errors.New("database is locked")
				}
				return map[string]bool{"late": true}, nil
			}
			at, ok := s.publish(1, "late")
			require.False(t, ok)
			require.Equal(t, p, at)
			require.Equal(t, 3, asked)
			require.Equal(t, []killed{{1, "late", p}}, s.kills)
		})
	}
}

func TestRelayThatEndsByItselfIsNotWaitedFor(t *testing.T) {
	s := newRelayStage(map[string]point{"late": beforePublish})
	_, ok := s.publish(1, "plain")
	require.True(t, ok)
	ctx, gone := context.WithCancel(t.Context())
	gone()
	_, ok = s.take(ctx, report{Child: 1, Kind: publishing, Orders: []string{"late"}})
	require.False(t, ok)
	require.Empty(t, s.kills)
}

func TestUnconfirmedCopiesAreNotWaitedFor(t *testing.T) {
	s := newRelayStage(nil)
	a, ok := s.take(t.Context(), report{Child: 1, Kind: publishing, Orders: []string{"plain", "early"}})
	require.True(t, ok)
	_, ok = s.take(t.Context(), report{Child: 1, Kind: published, Orders: []string{"early"}, Copies: []place{a.First + 1}})
	require.True(t, ok)
	require.Equal(t, 1, s.ledger.unsettled())
	s.ledger.settle(a.First) // it was there all the same
	require.Equal(t, 1, s.ledger.unsettled())
	require.Equal(t, 2, s.ledger.tally("").Published)
}

func TestRolledBackOrderIsSeenByWhoeverSeesIt(t *testing.T) {
	s := newRelayStage(nil)
	s.through(t, 1, "plain")
	require.Zero(t, s.passage().RolledBackSeen)
	s.through(t, 1, "declined")
	require.Equal(t, 1, s.passage().RolledBackSeen)

	consumers, _ := stage()
	consumers.ledger.declined["declined"] = false
	_, _ = tell(consumers, 1, received, "plain")
	require.Zero(t, consumers.ledger.declinedSeen())
	_, _ = tell(consumers, 1, received, "declined")
	require.Equal(t, 1, consumers.ledger.declinedSeen())
}
