package main

import "fmt"

// passage is a column's part of the table that says what went through the outbox.
type passage struct {
	Committed      int `json:"committed"` // messages in the outbox, as the database has them
	RolledBack     int `json:"rolled_back"`
	Relayed        int `json:"relayed"`
	RelayedTwice   int `json:"relayed_twice"` // copies beyond the first
	RolledBackSeen int `json:"rolled_back_seen"`

	orders int // that the database has
	cut    int // copies that were cut off from their write-back by a kill
	kills  map[point]int
}

// check lists what does not add up: what is committed is relayed, what is rolled back is not, and what is relayed twice
// is what a killed relay had published and not noted.
func (p *passage) check(s *schedule) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, "outbox: "+fmt.Sprintf(format, args...)) }
	if p.orders != len(s.orders) || p.Committed != len(s.orders) {
		say("%d orders and %d messages are committed, of %d orders that were taken", p.orders, p.Committed, len(s.orders))
	}
	if p.Relayed != p.Committed {
		say("%d messages are committed, and %d relayed", p.Committed, p.Relayed)
	}
	if p.RelayedTwice != p.cut {
		say("%d copies were relayed twice, but %d were cut off from their write-back", p.RelayedTwice, p.cut)
	}
	if p.RolledBackSeen > 0 {
		say("%d orders that were rolled back were seen", p.RolledBackSeen)
	}
	due := make(map[point]int)
	for _, at := range s.relayKills {
		due[at]++
	}
	for _, at := range [...]point{beforePublish, beforeWriteBack} {
		if p.kills[at] != due[at] {
			say("%d of %d kills %v took place", p.kills[at], due[at], at)
		}
	}
	return wrong
}

// passageRows are the rows of the table that it has with --outbox.
func passageRows() []row {
	return []row{
		{"committed in the outbox", func(t *tally) int { return t.Outbox.Committed }},
		{"  relayed", func(t *tally) int { return t.Outbox.Relayed }},
		{"  relayed twice", func(t *tally) int { return t.Outbox.RelayedTwice }},
		{"rolled back", func(t *tally) int { return t.Outbox.RolledBack }},
		{"  of these seen by anybody", func(t *tally) int { return t.Outbox.RolledBackSeen }},
		{"relays killed", func(t *tally) int { return t.Outbox.kills[beforePublish] + t.Outbox.kills[beforeWriteBack] }},
		{"  before the publish", func(t *tally) int { return t.Outbox.kills[beforePublish] }},
		{"  between publish and write-back", func(t *tally) int { return t.Outbox.kills[beforeWriteBack] }},
	}
}

// passageWords says what they show.
func passageWords(columns []tally) string {
	var all passage
	for i := range columns {
		p := columns[i].Outbox
		all.Committed += p.Committed
		all.Relayed += p.Relayed
		all.RelayedTwice += p.RelayedTwice
		all.RolledBack += p.RolledBack
		all.RolledBackSeen += p.RolledBackSeen
		all.cut += p.cut
	}
	if all.Relayed != all.Committed || all.RelayedTwice != all.cut || all.RolledBackSeen > 0 {
		return fmt.Sprintf("The relays published %d of %d committed messages, %d twice, with %d cut off from their write-back, and %d of %d that were rolled back were seen: THIS DOES NOT ADD UP.\n",
			all.Relayed, all.Committed, all.RelayedTwice, all.cut, all.RolledBackSeen, all.RolledBack)
	}
	return fmt.Sprintf("The relays published all %d committed messages and none of the %d that were rolled back. They published %d twice, just what a relay had published and not noted when it was killed; a consumer knows these by the outbox's ID.\n",
		all.Committed, all.RolledBack, all.RelayedTwice)
}
