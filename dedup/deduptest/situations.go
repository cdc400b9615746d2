package deduptest

import (
	"errors"

	"github.com/idemq/idemq/dedup"
)

// What a complete exploration must come through.
const (
	sawTakeover      = "a lease ends and another takes over"
	sawFirstCrash    = "a takeover counts the first crash"
	sawUncounted     = "a takeover counts no later crash"
	sawAlone         = "a takeover counts a later crash of one alone"
	sawCondemned     = "a condemned record is taken over"
	sawRedrive       = "a higher number takes what failed for good"
	sawRedriveCond   = "a higher number takes a condemned record"
	sawRepeated      = "a claim is repeated in progress"
	sawRepeatedEnd   = "a claim is repeated after its end"
	sawLate          = "an owner finishes after its lease, with no successor"
	sawFollowed      = "a followed owner is refused"
	sawEnded         = "a word after the end is refused"
	sawMissing       = "a missing record is written anew"
	sawBack          = "a record that went back is overwritten"
	sawDoneBehind    = "a done record of a lower epoch stands"
	sawOldLifeSpeaks = "takeover, late word, new life, and a late word again"
)

var everySituation = []string{
	sawTakeover, sawFirstCrash, sawUncounted, sawAlone, sawCondemned, sawRedrive, sawRedriveCond, sawRepeated,
	sawRepeatedEnd, sawLate, sawFollowed, sawEnded, sawMissing, sawBack, sawDoneBehind, sawOldLifeSpeaks,
}

func (x *explorer) saw(name string, yes bool) {
	if yes {
		x.Situations[name]++
	}
}

// situations names what a claim met.
func (x *explorer) situations(n *node, was life, q dedup.ClaimRequest, v dedup.Verdict) {
	if was.state == 0 {
		if n.stage == 3 {
			n.stage = 4
		}
		return
	}
	if q.Owner == was.owner {
		x.saw(sawRepeated, was.held)
		x.saw(sawRepeatedEnd, !was.held)
		return
	}
	taken := v.State == dedup.Acquired
	takeover := taken && was.state == dedup.InProgress
	same := q.Redrive <= was.number
	x.saw(sawTakeover, takeover)
	x.saw(sawFirstCrash, takeover && same && was.crash == 0)
	x.saw(sawUncounted, takeover && same && was.crash > 0 && !was.alone)
	x.saw(sawAlone, takeover && same && was.crash > 0 && was.alone)
	x.saw(sawCondemned, v.State == dedup.Condemned)
	x.saw(sawRedrive, taken && was.state == dedup.Failed)
	x.saw(sawRedriveCond, taken && was.state == dedup.Condemned)
	if takeover && n.stage == 0 {
		n.stage = 1
	}
}

// spoke names what a beat or a finish of o met.
func (x *explorer) spoke(n *node, call string, was life, o *owner, answer error) {
	refused := errors.Is(answer, dedup.ErrSuperseded)
	followed := refused && was.owner != o.h.Owner
	x.saw(sawLate, call == "finish" && answer == nil && was.held && !was.live)
	x.saw(sawFollowed, followed)
	x.saw(sawEnded, refused && was.owner == o.h.Owner)
	x.saw(sawMissing, errors.Is(answer, dedup.ErrRecordLost) && was.state == 0)
	x.saw(sawBack, errors.Is(answer, dedup.ErrRecordLost) && was.state != 0)
	x.saw(sawDoneBehind, refused && was.state == dedup.Done && was.epoch < o.h.Epoch)
	switch {
	case followed && n.stage == 1:
		n.stage = 2
	case followed && n.stage == 4:
		x.Situations[sawOldLifeSpeaks]++
	}
}
