package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func relayedPlan() *schedule {
	s := plan()
	s.relayKills = map[string]point{"early": beforePublish, "late": beforeWriteBack}
	return s
}

func relayedWell() *passage {
	return &passage{
		Committed: 6, RolledBack: 2, Relayed: 6, RelayedTwice: 3, orders: 6, cut: 3,
		kills: map[point]int{beforePublish: 1, beforeWriteBack: 1},
	}
}

func TestPassageThatDoesNotAddUpSaysWhy(t *testing.T) {
	require.Empty(t, relayedWell().check(relayedPlan()))
	for want, spoil := range map[string]func(p *passage){
		"outbox: 5 orders and 6 messages are committed, of 6 orders that were taken":    func(p *passage) { p.orders-- },
		"outbox: 6 messages are committed, and 5 relayed":                               func(p *passage) { p.Relayed-- },
		"outbox: 4 copies were relayed twice, but 3 were cut off from their write-back": func(p *passage) { p.RelayedTwice++ },
		"outbox: 1 orders that were rolled back were seen":                              func(p *passage) { p.RolledBackSeen++ },
		"outbox: 0 of 1 kills before the publish took place":                            func(p *passage) { p.kills[beforePublish]-- },
		"outbox: 2 of 1 kills between publish and write-back took place":                func(p *passage) { p.kills[beforeWriteBack]++ },
	} {
		p := relayedWell()
		spoil(p)
		require.Equal(t, []string{want}, p.check(relayedPlan()))
	}
}

func TestRunWhosePassageDoesNotAddUpFails(t *testing.T) {
	var out bytes.Buffer
	run := &trial{children: children{subject: setnxSubject}, plan: relayedPlan(), director: &director{ledger: faultless("")}}
	run.passage = relayedWell()
	require.NoError(t, conclude([]*trial{run}, false, &out))
	run.passage.Relayed--
	require.ErrorContains(t, conclude([]*trial{run}, false, &out), "setnx loop: outbox: 6 messages are committed, and 5 relayed")
}

func TestTableBeginsWithThePassage(t *testing.T) {
	cs := columns(3)
	for i := range cs {
		cs[i].Outbox = &passage{Committed: 200, Relayed: 200, RelayedTwice: 32, RolledBack: 30, cut: 32, kills: map[point]int{beforePublish: 2, beforeWriteBack: 2}}
	}
	text := table(cs)
	for _, row := range []string{
		`committed in the outbox +200 +200 +200`, `relayed +200 +200 +200`, `relayed twice +32 +32 +32`, `rolled back +30 +30 +30`, `seen by anybody +0 +0 +0`,
		`relays killed +4 +4 +4`, `before the publish +2 +2 +2`, `between publish and write-back +2 +2 +2`, `published +240 +240 +240`,
	} {
		require.Regexp(t, row, text)
	}
	require.Contains(t, words(cs), "The relays published all 600 committed messages and none of the 90 that were rolled back. They published 96 twice")
	cs[1].Outbox.RelayedTwice--
	require.Contains(t, words(cs), "The relays published 600 of 600 committed messages, 95 twice, with 96 cut off from their write-back, and 0 of 90 that were rolled back were seen: THIS DOES NOT ADD UP")
}

func TestJSONHasThePassageWhereThereIsOne(t *testing.T) {
	cs := columns(3)[:1]
	cs[0].Outbox = relayedWell()
	var out bytes.Buffer
	require.NoError(t, show(&out, cs, true))
	var got []map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, map[string]any{"committed": 6., "rolled_back": 2., "relayed": 6., "relayed_twice": 3., "rolled_back_seen": 0.}, got[0]["outbox"])
	require.EqualValues(t, 240, got[0]["published"])
}
