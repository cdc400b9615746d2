package main

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

type killed struct {
	child int
	order string
	p     point
}

// stage is a director whose kills are only noted.
func stage() (d *director, kills *[]killed) {
	kills = new([]killed)
	d = newDirector(plan(), func(child int, order string, p point) { *kills = append(*kills, killed{child, order, p}) })
	return d, kills
}

func tell(d *director, child int, k kind, order string) (string, bool) {
	return d.take(context.Background(), report{Child: child, Kind: k, Orders: []string{order}, Ran: true})
}

func answered(t *testing.T, d *director, child int, k kind, order, want string) {
	t.Helper()
	do, ok := tell(d, child, k, order)
	require.True(t, ok, "%s of %s got no answer", k, order)
	require.Equal(t, want, do)
}

func TestVictimDiesAtItsPointAndGetsNoAnswer(t *testing.T) {
	d, kills := stage()
	_, ok := tell(d, 1, begin, "early")
	require.False(t, ok)

	answered(t, d, 2, begin, "window", goOn)
	_, ok = tell(d, 2, effect, "window")
	require.False(t, ok)
	effects, inWindowOf := d.ledger.effects(d.ledger.accounts["window"])
	require.Equal(t, []int{1, 1}, []int{effects, inWindowOf}, "the effect stands, and was cut off from its verdict")

	answered(t, d, 3, begin, "late", goOn)
	answered(t, d, 3, effect, "late", goOn)
	answered(t, d, 3, verdict, "late", goOn)
	_, ok = tell(d, 3, ack, "late")
	require.False(t, ok)
	require.Equal(t, []killed{{1, "early", beforeEffect}, {2, "window", inWindow}, {3, "late", beforeAck}}, *kills)
}

func TestVictimIsKilledOnce(t *testing.T) {
	d, kills := stage()
	_, _ = tell(d, 1, begin, "early")
	answered(t, d, 2, begin, "early", goOn)
	answered(t, d, 2, effect, "early", goOn)
	answered(t, d, 2, ack, "early", goOn)
	require.Len(t, *kills, 1)
}

func TestDeadChildIsNotHeard(t *testing.T) {
	d, _ := stage()
	answered(t, d, 1, begin, "plain", goOn)
	_, _ = tell(d, 1, begin, "early")
	_, ok := tell(d, 1, effect, "plain")
	require.False(t, ok)
	effects, _ := d.ledger.effects(d.ledger.accounts["plain"])
	require.Zero(t, effects)
}

func TestKillWaitsForTheVerdictsOfOtherEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, kills := stage()
		answered(t, d, 1, begin, "plain", goOn)
		answered(t, d, 1, effect, "plain", goOn)
		go tell(d, 1, begin, "early")
		synctest.Wait()
		require.Empty(t, *kills, "plain would be cut off in the window, too")

		answered(t, d, 1, verdict, "plain", goOn)
		synctest.Wait()
		require.Len(t, *kills, 1)
		require.Zero(t, d.ledger.open(1, ""))
	})
}

func TestNoOtherEffectWhileAKillIsPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, kills := stage()
		answered(t, d, 1, begin, "late", goOn)
		answered(t, d, 1, begin, "plain", goOn)
		answered(t, d, 1, effect, "late", goOn)
		heard := make(chan bool, 1)
		go func() {
			_, ok := tell(d, 1, effect, "plain")
			heard <- ok
		}()
		synctest.Wait()
		require.Empty(t, heard)
		answered(t, d, 2, begin, "plain", goOn) // other children are not held up
		answered(t, d, 2, effect, "plain", goOn)

		answered(t, d, 1, verdict, "late", goOn)
		_, ok := tell(d, 1, ack, "late")
		require.False(t, ok)
		require.Len(t, *kills, 1)
		require.False(t, <-heard)
		effects, _ := d.ledger.effects(d.ledger.accounts["plain"])
		require.Equal(t, 1, effects)
	})
}

// A transaction that fails after its effect, say because its claim was lost, leaves no verdict and no acknowledgement.
func TestVictimWhoseRunCameToNothingHoldsNobodyUp(t *testing.T) {
	for name, again := range map[string]int{"it begins anew in another child": 2, "it begins anew in the same child": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, kills := stage()
				answered(t, d, 1, begin, "late", goOn)
				answered(t, d, 1, effect, "late", goOn)
				answered(t, d, 1, begin, "plain", goOn)
				go tell(d, 1, effect, "plain")
				answered(t, d, again, begin, "late", goOn)
				synctest.Wait()
				require.Equal(t, 1, d.ledger.open(1, ""), "the effect of plain")
				answered(t, d, 1, verdict, "plain", goOn)
				answered(t, d, again, effect, "late", goOn)
				_, ok := tell(d, again, ack, "late")
				require.False(t, ok)
				require.Equal(t, []killed{{again, "late", beforeAck}}, *kills)
			})
		})
	}
}

// settled tells of a copy of late that is acknowledged without a run.
func settled(d *director, child int, at place) bool {
	_, ok := d.take(context.Background(), report{Child: child, Kind: ack, Orders: []string{"late"}, At: at})
	return ok
}

// placed is a child in whose run of late, on the copy 3, the kill is being placed.
func placed(t *testing.T) (d *director, kills *[]killed) {
	d, kills = stage()
	_, ok := d.take(t.Context(), report{Child: 1, Kind: begin, Orders: []string{"late"}, At: 3})
	require.True(t, ok)
	answered(t, d, 1, effect, "late", goOn)
	return d, kills
}

// A copy that the producer sent again is acknowledged once the order is done, which may be before the one that ran.
func TestOtherCopyOfTheVictimDoesNotSpareIt(t *testing.T) {
	for _, other := range []int{1, 2} {
		d, kills := placed(t)
		require.True(t, settled(d, other, 4))
		_, ok := tell(d, 1, ack, "late")
		require.False(t, ok)
		require.Equal(t, []killed{{1, "late", beforeAck}}, *kills)
	}
}

// The child has lost its session after the verdict, so its own copy comes again, here or elsewhere.
func TestVictimWithoutASessionIsKilledWhenItsCopyComesAgain(t *testing.T) {
	for _, other := range []int{1, 2} {
		d, kills := placed(t)
		answered(t, d, 1, verdict, "late", goOn)
		require.Equal(t, other == 2, settled(d, other, 3), "only the victim dies")
		require.Equal(t, []killed{{1, "late", beforeAck}}, *kills)
	}
}

// The order is done by another run, which began before.
func TestVictimThatWasOvertakenHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, kills := placed(t)
		answered(t, d, 1, begin, "plain", goOn)
		go tell(d, 1, effect, "plain")
		require.True(t, settled(d, 2, 3))
		synctest.Wait()
		require.Equal(t, 2, d.ledger.open(1, ""), "the effects of late and plain")
		require.Empty(t, *kills)
	})
}

// While the effect of late waits for a verdict, its claim is lost, and another child is killed in its place.
func TestVictimThatIsReplacedHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, kills := stage()
		answered(t, d, 1, begin, "plain", goOn)
		answered(t, d, 1, effect, "plain", goOn)
		answered(t, d, 1, begin, "late", goOn)
		heard := make(chan bool, 1)
		go func() {
			_, ok := tell(d, 1, effect, "late")
			heard <- ok
		}()
		synctest.Wait()
		answered(t, d, 2, begin, "late", goOn)
		answered(t, d, 1, verdict, "plain", goOn)
		require.True(t, <-heard, "the child goes on: it is not killed")
		answered(t, d, 2, effect, "late", goOn)
		_, ok := tell(d, 2, ack, "late")
		require.False(t, ok)
		require.Equal(t, []killed{{2, "late", beforeAck}}, *kills)
		answered(t, d, 1, begin, "failing", failNow)
		answered(t, d, 1, begin, "failing", goOn)
		answered(t, d, 1, effect, "failing", goOn)
	})
}

func TestEndLetsNobodyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, kills := stage()
		answered(t, d, 1, begin, "plain", goOn)
		answered(t, d, 1, effect, "plain", goOn)
		go tell(d, 1, begin, "early")
		synctest.Wait()
		d.end()
		synctest.Wait()
		require.Empty(t, *kills)
	})
}

func TestHandlersFailAsScheduled(t *testing.T) {
	d, _ := stage()
	answered(t, d, 1, begin, "failing", failNow)
	answered(t, d, 1, begin, "failing", goOn)
	answered(t, d, 1, begin, "poison", failForAye)
	answered(t, d, 1, begin, "poison", failForAye)
}
