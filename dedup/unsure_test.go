package dedup_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// afterLostReply is a Guard that has asked for w, in vain: the store has answered, the reply was lost.
func afterLostReply(t *testing.T, s dedup.Store, w dedup.Work) *dedup.Guard {
	t.Helper()
	f := &flaky{Store: s, after: func(call string) error { return errBoom }}
	g := newGuard(t, f, nil)
	_, err := g.Claim(t.Context(), w)
	require.ErrorIs(t, err, dedup.ErrUnavailable)
	f.after = nil
	return g
}

func TestClaimWhoseReplyWasLostIsFoundAfterAQuestionThatWasNotSent(t *testing.T) {
	for name, ask := range map[string]func(g *dedup.Guard) error{
		"its context had ended": func(g *dedup.Guard) error {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_, err := g.Claim(ended, work("a"))
			return err
		},
		"other work in its batch was refused": func(g *dedup.Guard) error {
			return g.ClaimBatch(context.Background(), []dedup.Work{work("a"), work("")}, make([]*dedup.Claim, 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := afterLostReply(t, memstore.New(), work("a"))
			require.Error(t, ask(g))
			c, err := g.Claim(t.Context(), work("a"))
			require.NoError(t, err)
			require.Equal(t, dedup.Acquired, c.State)
			require.Zero(t, c.Crashes)
			require.NoError(t, c.Release(t.Context()))
		})
	}
}

func TestRedrivenCopyDoesNotAskUnderTheTokenOfAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		dead, err := newGuard(t, s, nil).Claim(t.Context(), work("a"))
		require.NoError(t, err)
		require.NoError(t, dead.Condemn(t.Context(), errBoom))
		require.NoError(t, dead.Release(t.Context())) // its dead letter was sent, and sent again by an operator
		g := afterLostReply(t, s, work("a"))
		redriven := work("a")
		redriven.Redrive = 1
		c, err := g.Claim(t.Context(), redriven)
		require.NoError(t, err)
		require.Equal(t, dedup.InProgress, c.State, "that of the older copy, which is not its own")
		time.Sleep(c.Left)
		c, err = g.Claim(t.Context(), redriven)
		require.NoError(t, err)
		require.Equal(t, dedup.Acquired, c.State, "or it would be dead-lettered again")
		require.Equal(t, 1, c.Redrive)
		require.NoError(t, c.Release(t.Context()))
	})
}

func TestOlderCopyFindsItsClaimThoughTheRecordWasRedriven(t *testing.T) {
	s, g := newTx(t)
	redriven := work("a")
	redriven.Redrive = 1
	c, err := g.Claim(t.Context(), redriven)
	require.NoError(t, err)
	require.NoError(t, c.Release(t.Context()))
	c, err = g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, 1, c.Redrive)
	s.verdict = func() error { return dedup.ErrUnavailable }
	require.ErrorIs(t, c.CompleteInTx(t.Context(), s.write("a")), dedup.ErrUnavailable)
	c, err = g.Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Acquired, c.State, "not in progress until the lease ends")
	require.NoError(t, c.Release(t.Context()))
}
