package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func columns(doubled int) []tally {
	kills := map[point]int{beforeEffect: 3, inWindow: 3, beforeAck: 3}
	return []tally{
		{Subject: setnxSubject, Published: 240, Delivered: 255, Runs: 200, Lost: 12, orders: 200, kills: kills},
		{Subject: idemqSubject, Published: 240, Delivered: 700, Runs: 219, Duplicates: 376, Retried: 10, TakenOver: 9, DeadLettered: 2,
			Doubled: doubled, DoubledInWindow: 3, orders: 200, producer: 40, redelivered: 336, kills: kills},
		{Subject: txSubject, Published: 240, Delivered: 650, Runs: 218, Duplicates: 300, Retried: 10, TakenOver: 6, DeadLettered: 2,
			Doubled: doubled - 3, orders: 200, producer: 40, redelivered: 260, kills: kills},
	}
}

func TestTableHasAColumnASubject(t *testing.T) {
	lines := strings.Split(strings.TrimRight(table(columns(3)), "\n"), "\n")
	require.Regexp(t, `setnx loop +idemq +idemq in tx$`, lines[0])
	text := strings.Join(lines, "\n")
	for _, row := range []string{
		`published +240 +240 +240`, `different orders +200 +200 +200`, `delivered +255 +700 +650`, `handler runs +200 +219 +218`, `duplicates dropped +0 +376 +300`,
		`by the producer +0 +40 +40`, `by the broker +0 +336 +260`, `retried after a failure +0 +10 +10`, `taken over after a kill +0 +9 +6`,
		`dead-lettered +0 +2 +2`, `children killed +9 +9 +9`, `LOST +12 +0 +0`, `DONE TWICE +0 +3 +0`, `in the named window +0 +3 +0`,
	} {
		require.Regexp(t, row, text)
	}
	for _, l := range lines {
		require.Len(t, l, len(lines[0]), "columns are aligned")
	}
}

func TestWordsSayWhatTheTableShows(t *testing.T) {
	require.Contains(t, words(columns(3)), "The SETNX loop lost 12 of 200 orders")
	require.Contains(t, words(columns(3)), "idemq lost none. It did 3 twice, exactly as often as a child was killed between effect and verdict")
	require.Contains(t, words(columns(3)), "that window is closed: 3 children were killed in it, and nothing was lost or done twice")
	require.Contains(t, words(columns(4)), "idemq lost 0 and did 4 twice, with 3 children killed between effect and verdict: THIS DOES NOT ADD UP")
	require.Contains(t, words(columns(4)), "idemq in tx lost 0 and did 1 twice, with 3 children killed between effect and verdict: THIS DOES NOT ADD UP")
}

func TestJSONHasTheAgreedKeysAndNumbers(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, show(&out, columns(3), true))
	var got []map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, []map[string]any{
		{"subject": "setnx loop", "published": 240., "delivered": 255., "runs": 200., "duplicates": 0., "retried": 0., "taken_over": 0.,
			"dead_lettered": 0., "lost": 12., "doubled": 0., "doubled_in_window": 0.},
		{"subject": "idemq", "published": 240., "delivered": 700., "runs": 219., "duplicates": 376., "retried": 10., "taken_over": 9.,
			"dead_lettered": 2., "lost": 0., "doubled": 3., "doubled_in_window": 3.},
		{"subject": "idemq in tx", "published": 240., "delivered": 650., "runs": 218., "duplicates": 300., "retried": 10., "taken_over": 6.,
			"dead_lettered": 2., "lost": 0., "doubled": 0., "doubled_in_window": 0.},
	}, got)
}

func TestRunThatDoesNotAddUpFailsAndStillPrints(t *testing.T) {
	trialOf := func(subject string, l *ledger) *trial {
		return &trial{children: children{subject: subject}, plan: plan(), director: &director{ledger: l}}
	}
	var out bytes.Buffer
	require.NoError(t, conclude([]*trial{trialOf(setnxSubject, faultless("plain")), trialOf(idemqSubject, faultless(""))}, false, &out),
		"what the SETNX loop loses is no failure of the run")

	out.Reset()
	err := conclude([]*trial{trialOf(setnxSubject, faultless("")), trialOf(idemqSubject, faultless("plain"))}, false, &out)
	require.ErrorContains(t, err, "does not add up")
	require.ErrorContains(t, err, "plain is lost")
	require.Contains(t, out.String(), "LOST")
}
