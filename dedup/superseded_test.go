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

// cutOff is a Store from which one owner hears nothing more, except for claims. Its words take
// effect if reached.
func cutOff(s dedup.Store, reached bool) *flaky {
	cut := func(call string) error {
		if call != "claim" {
			return errBoom
		}
		return nil
	}
	before := func(call string) error { // a beat that came through would keep the claim
		if call == "extend" || !reached {
			return cut(call)
		}
		return nil
	}
	return &flaky{Store: s, before: before, after: cut}
}

// lostFinish lets an owner say word, whose reply is lost, and lets its lease end. It returns the
// owner's claim, whose connection is back, and what the next one is answered.
func lostFinish(t *testing.T, s dedup.Store, reached bool, word func(*dedup.Claim) error) (first, next *dedup.Claim) {
	t.Helper()
	f := cutOff(s, reached)
	first, err := newGuard(t, f, nil).Claim(t.Context(), work("a"))
	require.NoError(t, err)
	require.ErrorIs(t, word(first), dedup.ErrUnavailable)
	time.Sleep(30 * time.Second)
	synctest.Wait()
	f.before, f.after = nil, nil
	next, err = newGuard(t, s, nil).Claim(t.Context(), work("a"))
	require.NoError(t, err)
	return first, next
}

func complete(result string) func(*dedup.Claim) error {
	return func(c *dedup.Claim) error { return c.Complete(context.Background(), []byte(result)) }
}

func fail(c *dedup.Claim) error { return c.Fail(context.Background(), errBoom) }

func TestFinishThatWasWrittenIsFoundAgainAfterItsReplyWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, next := lostFinish(t, memstore.New(), true, complete("first"))
		require.Equal(t, dedup.Done, next.State, "it is not run again")
		require.Equal(t, []byte("first"), next.Result)
		require.NoError(t, complete("first")(first), "its own verdict is there")
	})
}

func TestFinishWhoseReplyIsLostIsSupersededByASuccessor(t *testing.T) {
	for name, c := range map[string]struct {
		reached          bool
		word             func(*dedup.Claim) error
		attempt, crashes int
	}{
		"done, not written":   {false, complete("first"), 1, 1},
		"failed, not written": {false, fail, 1, 1},
		"failed, written":     {true, fail, 2, 0},
	} {
		for _, finished := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := memstore.New()
					first, next := lostFinish(t, s, c.reached, c.word)
					require.Equal(t, dedup.Acquired, next.State)
					require.Equal(t, []int{c.attempt, c.crashes}, []int{next.Attempt, next.Crashes}, "attempt and crashes of the successor")
					require.Greater(t, next.Epoch, first.Epoch)
					if finished {
						require.NoError(t, complete("next")(next))
					}
					for range 2 {
						require.ErrorIs(t, c.word(first), dedup.ErrSuperseded)
						require.NoError(t, first.Release(t.Context()), "which does nothing")
					}
					if !finished {
						require.True(t, next.Held())
						require.NoError(t, complete("next")(next), "the successor's claim is as it was")
					}
					last, err := newGuard(t, s, nil).Claim(t.Context(), work("a"))
					require.NoError(t, err)
					require.Equal(t, dedup.Done, last.State)
					require.Equal(t, []byte("next"), last.Result, "the first owner's word is not written over it")
				})
			})
		}
	}
}

// slowWords is a Store that hears no beat of one owner, and its last word only after the lease: what
// the owner says before is lost, and what it says in the lease's last second takes four.
func slowWords(s dedup.Store) *flaky {
	begun := time.Now()
	return &flaky{Store: s, before: func(call string) error {
		switch {
		case call == "claim":
			return nil
		case call == "extend" || time.Since(begun) < 29*time.Second:
			return errBoom
		}
		time.Sleep(4 * time.Second)
		return nil
	}}
}

func TestDoThatIsSupersededObeysItsSuccessor(t *testing.T) {
	for name, c := range map[string]struct {
		takes, waits time.Duration // the successor's work, and the first owner for it
		want         error
	}{
		"which has finished":               {time.Second, 0, nil},
		"which is at work":                 {time.Minute, 0, dedup.ErrInProgress},
		"which is at work, and waited for": {time.Minute, time.Hour, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs := memstore.New(), make(chan string, 10)
				successor := make(chan error)
				go func() {
					time.Sleep(time.Second) // the first owner is at work
					w := work("a")
					w.Wait = time.Hour
					_, err := newGuard(t, s, nil).Do(t.Context(), w, func(context.Context) error {
						runs <- "next"
						time.Sleep(c.takes)
						return nil
					})
					successor <- err
				}()
				w := work("a")
				w.Wait = c.waits
				ran, err := newGuard(t, slowWords(s), nil).Do(t.Context(), w, func(context.Context) error {
					runs <- "first"
					return nil
				})
				require.True(t, ran)
				require.ErrorIs(t, err, c.want)
				require.NoError(t, <-successor)
				close(runs)
				var order []string
				for who := range runs {
					order = append(order, who)
				}
				require.Equal(t, []string{"first", "next"}, order, "one takeover is one run more")
			})
		})
	}
}

func TestDoValueReturnsNoValueOfARunThatWasSuperseded(t *testing.T) {
	for name, c := range map[string]struct {
		successor func(*dedup.Claim) error
		want      string
		is        error
		says      string
	}{
		"by one with another": {func(c *dedup.Claim) error { return c.Complete(context.Background(), []byte(`"theirs"`)) }, "theirs", nil, ""},
		"by one with none":    {func(c *dedup.Claim) error { return c.Complete(context.Background(), nil) }, "", nil, "its result could not be stored"},
		"by one that failed for good": {func(c *dedup.Claim) error {
			return c.FailFinal(context.Background(), errBoom)
		}, "", dedup.ErrFailed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				v, ran, err := dedup.DoValue(t.Context(), newGuard(t, slowWords(s), nil), work("a"), func(context.Context) (string, error) {
					time.Sleep(time.Minute)
					next, err := newGuard(t, s, nil).Claim(t.Context(), work("a"))
					require.NoError(t, err)
					require.NoError(t, c.successor(next))
					return "mine", nil
				})
				require.True(t, ran)
				require.Equal(t, c.want, v)
				switch {
				case c.is != nil:
					require.ErrorIs(t, err, c.is)
				case c.says != "":
					require.ErrorContains(t, err, c.says)
				default:
					require.NoError(t, err)
				}
			})
		})
	}
}
