package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// report is what a child tells its parent, and waits to be answered: what a report says has been
// recorded by the time the child goes on. A child that is to be killed gets no answer.
type report struct {
	Child  int      `json:"child"`
	Kind   kind     `json:"kind"`
	Orders []string `json:"orders"` // one, but for received, verdict and a relay's
	At     place    `json:"at"`     // with begin and ack
	Ran    bool     `json:"ran"`    // with ack: the handler ran on this delivery
	Copies []place  `json:"copies"` // with published
}

type kind string

const (
	received kind = "received" // the broker has delivered copies
	begin    kind = "begin"    // the handler has begun
	effect   kind = "effect"   // the effect: this call is it
	verdict  kind = "verdict"  // the store has the verdict
	ack      kind = "ack"      // the acknowledgement is next

	publishing kind = "publishing" // a relay is about to publish messages
	published  kind = "published"  // the broker has confirmed them
)

// answer is what the child is to do.
type answer struct {
	Do    string `json:"do"`
	First place  `json:"first"` // to publishing: the number of the first copy
}

const (
	goOn       = "go on"
	failNow    = "fail"          // the handler is to return an error
	failForAye = "fail for good" // the handler is to return an error that no retry mends
)

// reporter is the child's line to its parent.
type reporter struct {
	url   string
	child int
	http  *http.Client
}

func newReporter(url string, child int) *reporter {
	return &reporter{url: url, child: child, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

func (r *reporter) tell(ctx context.Context, what report) (answer, error) {
	var a answer
	what.Child = r.child
	body, err := json.Marshal(what)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	res, err := r.http.Do(req)
	if err != nil {
		return a, fmt.Errorf("report %s: %w", what.Kind, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("report %s: the parent answered %s", what.Kind, res.Status)
	}
	return a, json.NewDecoder(res.Body).Decode(&a)
}
