package shop_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/cmd/example-consumer/shop"
	"github.com/idemq/idemq/dedup/deduptest"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/outbox"
)

const pollPause = 20 * time.Millisecond

func TestFormThatWasSentShowsItsOrderAgain(t *testing.T) {
	s := openSite(t)
	ann := s.client("ann")
	form := espresso(ann.token())
	first := ann.order(form)
	require.Equal(t, 200, first.status, first.body)
	require.Contains(t, first.body, "2 × Espresso beans")
	require.Contains(t, first.body, "€ 13.80")

	form.Set("quantity", "9")
	again := ann.order(form)
	require.Equal(t, 409, again.status)
	require.Contains(t, again.body, "This order was placed already")
	require.Contains(t, again.body, "2 × Espresso beans", "what was ordered, not what is asked for now")
	require.Equal(t, first.order(), again.order())
	s.requireBooked(1)
}

func TestFormsThatCannotBeTakenAreExplained(t *testing.T) {
	s := openSite(t)
	ann, bob := s.client("ann"), s.client("bob")
	token := ann.token()
	requireTrouble(t, 403, "foreign", bob.order(espresso(token)))
	requireTrouble(t, 403, "foreign", s.client("").order(espresso(token)))
	requireTrouble(t, 403, "expired", ann.order(espresso("made-up")))
	requireTrouble(t, 403, "expired", ann.order(espresso("")))
	for field, wrong := range map[string]string{"item": "<b>", "quantity": "10"} {
		form := espresso(token)
		form.Set(field, wrong)
		a := ann.order(form)
		requireTrouble(t, 400, "unclear", a)
		require.NotContains(t, a.body, "<b>")
	}
	requireTrouble(t, 404, "nowhere", ann.send(http.MethodGet, "/nowhere", nil))
	require.Zero(t, s.count("shop_orders"))
	require.Equal(t, 200, ann.order(espresso(token)).status, "none of it has consumed the token")
}

func TestFormThatIsTooOldIsExplained(t *testing.T) {
	s := openSite(t, func(p *shop.Parts) { p.FormTTL = time.Second })
	ann, bob := s.client("ann"), s.client("bob")
	form := espresso(ann.token())
	require.Eventually(t, func() bool { return bob.order(form).trouble() == "expired" }, eventually, pollPause, "bob's tries change nothing")
	requireTrouble(t, 403, "expired", ann.order(form))
	require.Zero(t, s.count("shop_orders"))
}

// faulty is the shop's store, out of reach while down is set.
func faulty(s *shop.Parts, down *atomic.Bool) {
	s.Store = &deduptest.Faulty{Store: s.Store, Before: func(context.Context, string) error {
		if down.Load() {
			return errors.New("connection refused")
		}
		return nil
	}}
}

func TestStoreOutOfReachTakesNoOrders(t *testing.T) {
	var down atomic.Bool
	s := openSite(t, func(p *shop.Parts) { faulty(p, &down) })
	ann := s.client("ann")
	form := espresso(ann.token())
	down.Store(true)
	requireTrouble(t, 503, "out-of-reach", ann.order(form))
	requireTrouble(t, 503, "out-of-reach", ann.send(http.MethodGet, "/checkout", nil))
	require.Equal(t, 503, ann.pay("key").status)
	require.Zero(t, s.count("shop_orders"))
	down.Store(false)
	require.Equal(t, 200, ann.order(form).status)
	require.Equal(t, 201, ann.pay("key").status)
	s.requireBooked(2)
}

func TestPaymentIsAnsweredAgain(t *testing.T) {
	s := openSite(t)
	ann := s.client("ann")
	first, again := ann.pay("key"), ann.pay("key")
	require.Equal(t, 201, first.status, first.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	require.Equal(t, first.body, again.body)
	require.Equal(t, first.header.Get("Location"), again.header.Get("Location"))
	require.NotEqual(t, first.body, s.client("bob").pay("key").body, "bob's key is another")
	require.Equal(t, 400, ann.pay("").status)
	require.Equal(t, 403, s.client("").pay("key").status)
	s.requireBooked(2)
}

// As after a crash between the order and the verdict on its key.
func TestOrderWhoseRequestRunsAgainIsFound(t *testing.T) {
	s := openSite(t)
	ann := s.client("ann")
	first := ann.pay("key")
	require.Equal(t, 201, first.status, first.body)
	require.NoError(t, s.guard().Forget(t.Context(), httpdedup.WorkOf("payments", "user ann", "key")))
	again := ann.pay("key")
	require.Equal(t, 201, again.status, again.body)
	require.Empty(t, again.header.Get("Idempotent-Replayed"), "it runs")
	require.Equal(t, first.body, again.body, "and makes the same order")
	s.requireBooked(1)
}

func TestMessageThatComesTwiceIsBookedOnce(t *testing.T) {
	s := openSite(t)
	ann := s.client("ann")
	first := ann.pay("key-1")
	var o struct{ ID, Customer string }
	require.NoError(t, json.Unmarshal([]byte(first.body), &o))
	errs := make([]error, 1)
	copied := outbox.Message{ID: "order-" + o.ID, Topic: topic, Key: o.Customer, Body: []byte(first.body)[:len(first.body)-1]}
	require.NoError(t, s.publisher.Publish(t.Context(), []outbox.Message{copied}, errs))
	require.NoError(t, errs[0])
	require.Equal(t, 201, ann.pay("key-2").status)
	require.Eventually(t, func() bool { return s.count("shop_ledger WHERE id <> '"+o.ID+"'") == 1 }, eventually, pollPause,
		"the order after the copy, in the same partition")
	require.Equal(t, 2, s.count("shop_ledger"))
}

func TestVisitorsSeeNoSecretsOfOthers(t *testing.T) {
	s := openSite(t)
	require.Equal(t, 201, s.client("ann").pay("key").status)
	s.requireBooked(1)
	page := s.client("bob").send(http.MethodGet, "/ledger", nil)
	require.Contains(t, page.body, "Espresso")
	require.NotContains(t, page.body, "ann")
	require.NotContains(t, page.body, "yours")
	require.Contains(t, s.client("ann").send(http.MethodGet, "/ledger", nil).body, `class="yours"`)
}

func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	s := openSite(t)
	ann := s.client("ann")
	a := ann.send(http.MethodPost, "/orders", espresso(ann.token()), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	require.Equal(t, 403, a.status)
	require.Zero(t, s.count("shop_orders"))
}

func TestClosingShopAnswersWhoWasBeingServed(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := openSite(t, func(p *shop.Parts) {
		p.Store = &deduptest.Faulty{Store: p.Store, Before: func(_ context.Context, method string) error {
			if method == "Finish" {
				close(begun)
				<-goOn
			}
			return nil
		}}
	})
	ann := s.client("ann")
	answered := make(chan answer, 1)
	go func() {
		a, _ := ann.try(http.MethodPost, s.own+"/payments", espresso(""), func(r *http.Request) { r.Header.Set("Idempotency-Key", "key") })
		answered <- a
	}()
	select {
	case <-begun:
	case a := <-answered:
		t.Fatal("answered without the store's word: ", a.body)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.close() }()
	require.Eventually(t, func() bool { _, err := ann.try(http.MethodGet, s.own+"/ledger", nil); return err != nil }, eventually, pollPause)
	close(goOn)
	require.Equal(t, 201, (<-answered).status)
	require.NoError(t, <-closed)
}
