package consumertest_test

import (
	"testing"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
)

// configOf tests b, whose members are wrapped by change.
func configOf(b *consumertest.Broker, change func(consumer.Source) consumer.Source) consumertest.Config {
	return consumertest.Config{
		Open:        func(testing.TB) consumer.Source { return change(b.Member()) },
		Publish:     func(_ testing.TB, ms ...consumer.Message) { b.Publish(ms...) },
		DeadLetters: func(testing.TB) []consumer.Message { return b.DeadLetters() },
		Cut:         func(testing.TB) { b.Cut() },
		Delay:       10 * time.Millisecond,
	}
}

func unchanged(s consumer.Source) consumer.Source { return s }

func TestBrokerWithoutOrder(t *testing.T) {
	consumertest.TestSource(t, func(testing.TB) consumertest.Config {
		return configOf(consumertest.NewBroker(), unchanged)
	})
}

func TestBrokerWithOrder(t *testing.T) {
	consumertest.TestSource(t, func(testing.TB) consumertest.Config {
		b := consumertest.NewBroker()
		b.MaxUnsettled = 10 // as few as the package doc promises
		c := configOf(b, unchanged)
		c.Ordered = true
		return c
	})
}
