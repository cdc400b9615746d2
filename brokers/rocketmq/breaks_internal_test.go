package rocketmq

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each try brings a connection, a heartbeat and positions; without a delay there would be hundreds of them in a second.
func TestBrokerThatBreaksConnectionsIsLeftAloneInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewSource(Cluster{NameServers: []string{"127.0.0.1:1"}}, "g", []string{"t"}, &SourceOptions{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		eof := errors.New("EOF")
		tries := 0
		for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(time.Millisecond) {
			if s.reconnectable("b:1") != nil {
				continue
			}
			if tries++; tries == 2 {
				require.Zero(t, time.Since(begun.Add(time.Millisecond)), "the first is made anew at once")
			}
			cn := &conn{addr: "b:1"}
			for range 8 { // its queues
				s.broke(cn, eof)
			}
		}
		require.Less(t, tries, 70, "a second at least, once there were some")
		require.Greater(t, tries, 30, "2 s at most")
		require.NoError(t, s.reconnectable("b:2"), "each broker for itself")
		require.ErrorContains(t, s.reconnectable("b:1"), "connections to it broke one after the other; the next is made in ")
		s.healed(&conn{addr: "b:1"})
		require.NoError(t, s.reconnectable("b:1"))
	})
}
