package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScheduleIsThatOfItsSeed(t *testing.T) {
	require.Equal(t, newSchedule(7, 200), newSchedule(7, 200))
	require.NotEqual(t, newSchedule(7, 200), newSchedule(8, 200))
}

func TestScheduleHasEverythingAndNoOrderTwoFates(t *testing.T) {
	for _, n := range []int{minOrders, 50, 200, 5000} {
		for seed := range uint64(20) {
			s := newSchedule(seed, n)
			require.Len(t, s.orders, n)
			require.Len(t, s.published, n+n/5)
			points := make(map[point]int)
			for id, p := range s.kills {
				points[p]++
				require.NotContains(t, s.failures, id)
				require.NotContains(t, s.poison, id)
			}
			require.Positive(t, points[beforeEffect])
			require.Positive(t, points[inWindow])
			require.Positive(t, points[beforeAck])
			require.NotEmpty(t, s.failures)
			require.NotEmpty(t, s.poison)
			for id := range s.poison {
				require.NotContains(t, s.failures, id)
			}
			seen := make(map[string]bool)
			for _, id := range s.published {
				seen[id] = true
			}
			require.Len(t, seen, n)
			for id, p := range s.relayKills {
				points[p]++
				require.NotContains(t, s.kills, id)
				require.NotContains(t, s.failures, id)
				require.NotContains(t, s.poison, id)
			}
			require.Positive(t, points[beforePublish])
			require.Positive(t, points[beforeWriteBack])
			require.Equal(t, s.published, slices.DeleteFunc(slices.Clone(s.requests), func(id string) bool { return s.declined[id] }))
			require.Len(t, s.declined, len(s.published)/8)
		}
	}
}
