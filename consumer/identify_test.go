package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

func named(m consumer.Message, made bool, rules ...consumer.IDRule) consumer.Message {
	if rules == nil {
		rules = consumer.DefaultRules()
	}
	m.Identify(rules, made)
	return m
}

func TestTheFirstRuleWithAnAnswerNames(t *testing.T) {
	m := consumer.Message{ID: "t/0/1", Body: []byte("x"), Headers: map[string]string{"Message-Id": "app-1", "idempotency-key": "k"}}
	n := named(m, true)
	require.Equal(t, "app-1", n.ID, "whatever the header's case")
	require.Equal(t, "header:message-id", n.IDFrom)

	delete(m.Headers, "Message-Id")
	require.Equal(t, "k", named(m, true).ID)

	m.Headers = map[string]string{consumer.IDHeader: "", "message-id": "", "idempotency-key": "k"}
	n = named(m, true)
	require.Equal(t, "k", n.ID, "an empty name is none")
	require.Equal(t, "header:idempotency-key", n.IDFrom)

	m.Headers = map[string]string{"message-id": "app-1", consumer.IDHeader: "first", consumer.RedriveHeader: "3"}
	n = named(m, true)
	require.Equal(t, "first", n.ID, "a dead letter's name outranks every rule")
	require.Equal(t, 3, n.Redrive)
}

func TestNamesThatMachinesMakeCarryTheContent(t *testing.T) {
	a := named(consumer.Message{ID: "t/0/1", Body: []byte("a")}, true)
	b := named(consumer.Message{ID: "t/0/1", Body: []byte("b")}, true)
	require.NotEqual(t, a.ID, b.ID)
	require.Zero(t, a.Work().Fingerprint, "so they cannot mismatch")
	c := named(consumer.Message{ID: "app", Body: []byte("a")}, false)
	require.Equal(t, "app", c.ID)
	require.Equal(t, dedup.FingerprintOf([]byte("a")), c.Work().Fingerprint)
}

func TestTombstoneAndEmptyBodyUnderOneIDAreTwoMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkaLike()
		b.Publish(consumer.Message{ID: "m", Key: "lane", Body: []byte{}}, consumer.Message{ID: "m", Key: "lane"})
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), (&recorder{}).handle, nil))
		require.EqualValues(t, 1, stats.Done)
		require.EqualValues(t, 1, stats.DeadLettered, "neither merged nor lost")
	})
	empty, none := named(consumer.Message{ID: "t/0/1", Body: []byte{}}, true), named(consumer.Message{ID: "t/0/1"}, true)
	require.NotEqual(t, empty.ID, none.ID)
}

func TestBusinessKeysBelongToTheirTopicAndCompareNoBodies(t *testing.T) {
	rule := consumer.IDRule{Name: "order", BusinessKey: true, Of: func(*consumer.Message) string { return "7" }}
	a := named(consumer.Message{Topic: "charges", Body: []byte("a")}, true, rule)
	b := named(consumer.Message{Topic: "charges", Body: []byte("b")}, true, rule)
	require.Equal(t, "charges/7", a.ID)
	require.Equal(t, a.Work(), b.Work())
	require.NotEqual(t, a.ID, named(consumer.Message{Topic: "refunds"}, true, rule).ID)
}

func TestCloudEventsAreNamedAlikeHoweverTheyAreSent(t *testing.T) {
	body := `{"specversion":"1.0","id":"e-1","source":"/s","type":"t"}`
	for name, m := range map[string]consumer.Message{
		"structured":                   {Body: []byte(body)},
		"content type in capitals":     {Body: []byte(body), Headers: map[string]string{"Content-Type": "application/cloudevents+json; charset=UTF-8"}},
		"behind a byte order mark":     {Body: []byte("\xef\xbb\xbf" + body)},
		"binary":                       {Headers: map[string]string{"ce_id": "e-1", "ce_source": "/s"}},
		"binary, other way of writing": {Headers: map[string]string{"cloudEvents:id": "e-1", "cloudEvents:source": "/s"}},
	} {
		m.ID = "t/0/1"
		require.Equal(t, "/s e-1", named(m, true).ID, name)
	}
	big, next := consumer.Message{Body: []byte(`{"specversion":"1.0","source":"/s","id":9007199254740993}`)}, consumer.Message{Body: []byte(`{"specversion":"1.0","source":"/s","id":9007199254740992}`)}
	require.NotEqual(t, named(big, true).ID, named(next, true).ID, "numbers beyond a float's precision stay apart")
	other := consumer.Message{ID: "t/0/1", Body: []byte(body), Headers: map[string]string{"content-type": "application/json"}}
	require.NotEqual(t, "/s e-1", named(other, true).ID, "another content type is believed")
	a := named(consumer.Message{Headers: map[string]string{"ce_id": "b c", "ce_source": "/a"}}, true)
	b := named(consumer.Message{Headers: map[string]string{"ce_id": "c", "ce_source": "/a b"}}, true)
	require.NotEqual(t, a.ID, b.ID)
}

func TestChildIDsAreTheSameOnEveryRunAndDifferEverywhereElse(t *testing.T) {
	m := consumer.Message{Scope: "kafka/a", ID: "m"}
	again := m
	again.Attempt, again.Redrive = 4, 2
	require.Equal(t, m.ChildID(0), again.ChildID(0))
	require.NotEqual(t, m.ChildID(0), m.ChildID(1))
	require.NotEqual(t, m.ChildID(0), (&consumer.Message{Scope: "kafka/b", ID: "m"}).ChildID(0))
	require.NotEqual(t, (&consumer.Message{Scope: "ab", ID: "c"}).ChildID(0), (&consumer.Message{Scope: "a", ID: "bc"}).ChildID(0))
}

func TestRuleThatPanicsDeadLettersItsMessageAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := []consumer.IDRule{{Name: "order", Of: func(m *consumer.Message) string {
			return string(m.Body[8:]) // too short a body
		}}, consumer.BrokerID}
		for _, allow := range []bool{false, true} {
			b := kafkaLike()
			b.Publish(message("a", "lane"), consumer.Message{ID: "b", Key: "lane", Body: []byte("short")}, message("c", "lane"))
			r := &recorder{}
			stats := b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), r.handle, &consumer.Options{MessageID: rules, AllowNoID: allow}))
			require.EqualValues(t, 2, stats.Done)
			require.Equal(t, []string{"a", "c"}, r.all(), "it has no name that could be trusted, so it does not run unprotected either")
			dead := b.DeadLetters()
			require.Len(t, dead, 1)
			require.Contains(t, dead[0].DeadCause, `rule "order" panicked: runtime error: slice bounds out of range`)
		}
		require.False(t, (&consumer.Message{ID: "b"}).Identify(rules, false))
	})
}

func TestMessageWithoutANameIsDeadLetteredOrRunsUnprotected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := consumer.Options{MessageID: []consumer.IDRule{consumer.HeaderID("message-id")}}
		b := kafkaLike()
		b.Publish(message("x", ""), message("y", ""))
		r := &recorder{}
		stats := b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), r.handle, &o))
		require.Empty(t, r.all())
		require.EqualValues(t, 2, stats.DeadLettered)
		require.Contains(t, b.DeadLetters()[0].DeadCause, "names this message")

		o.AllowNoID = true
		runs := 0
		b = kafkaLike()
		b.Publish(message("x", ""), message("y", ""))
		stats = b.Drain(t, newConsumer(t, b, newGuard(t, memstore.New()), func(_ context.Context, m *consumer.Message) error {
			require.Empty(t, m.ID)
			if runs++; runs == 1 {
				return errBoom
			}
			return nil
		}, &consumer.Options{MessageID: o.MessageID, AllowNoID: true, Policy: consumer.Policy{Concurrency: 1}}))
		require.Equal(t, 3, runs)
		require.EqualValues(t, 2, stats.Done)
	})
}
