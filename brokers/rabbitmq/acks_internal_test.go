package rabbitmq

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// serverSide is what the server knows of a channel's deliveries.
type serverSide struct {
	t     *testing.T
	open  map[uint64]bool
	acked map[uint64]bool // by the application
	words int
}

func (s *serverSide) say(tag uint64, multiple bool) {
	s.words++
	require.True(s.t, s.open[tag], "tag %d is not known: the server would close the channel", tag)
	for open := range s.open {
		if open == tag || multiple && open < tag {
			require.True(s.t, s.acked[open], "the word on %d took %d, which is unsettled", tag, open)
			delete(s.open, open)
		}
	}
}

func TestWhatFollowsWithoutAGapIsAcknowledgedByOneWord(t *testing.T) {
	server := &serverSide{t: t, open: map[uint64]bool{}, acked: map[uint64]bool{}}
	a := newAcks(server.say)
	places := make([]place, 101)
	for tag := range uint64(101) {
		places[tag].tag = tag
		if tag > 0 {
			server.open[tag] = true
			a.arrive(&places[tag])
		}
	}
	for _, tag := range rand.Perm(101) {
		if tag != 0 && tag != 91 {
			server.acked[uint64(tag)] = true
			a.ack(&places[tag])
		}
	}
	a.flush()
	require.Equal(t, 1+9, server.words, "1 to 90, and each of 92 to 100")
	require.Len(t, server.open, 1)
	server.acked[91] = true
	a.ack(&places[91])
	a.flush()
	a.flush()
	require.Equal(t, 11, server.words)
	require.Empty(t, server.open)
}

func TestAcknowledgementsTakeNothingElseInAnyOrder(t *testing.T) {
	for range 300 {
		server := &serverSide{t: t, open: map[uint64]bool{}, acked: map[uint64]bool{}}
		a := newAcks(server.say)
		var unsettled []*place
		for last, step := uint64(0), 0; step < 300; step++ {
			switch n := rand.IntN(10); {
			case n < 4:
				last++
				p := &place{tag: last}
				server.open[last] = true
				a.arrive(p)
				unsettled = append(unsettled, p)
			case n < 9 && len(unsettled) > 0:
				i := rand.IntN(len(unsettled))
				p := unsettled[i]
				unsettled = append(unsettled[:i], unsettled[i+1:]...)
				if n == 8 { // given back
					delete(server.open, p.tag)
					a.drop(p)
					break
				}
				server.acked[p.tag] = true
				a.ack(p)
			default:
				a.flush()
			}
		}
		a.flush()
		require.Len(t, server.open, len(unsettled), "everything that was settled is said")
	}
}
