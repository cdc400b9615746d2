package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
)

// mutant is a broker with one fault.
type mutant struct {
	fault  string
	caught string // by this case
	make   func(b *consumertest.Broker, c *consumertest.Config)
}

func configOfMutant(mu mutant) func(testing.TB) consumertest.Config {
	return func(testing.TB) consumertest.Config {
		b := consumertest.NewBroker()
		c := configOf(b, unchanged)
		c.Ordered = mu.caught != "RetryHoldsNobodyElseUp"
		mu.make(b, &c)
		return c
	}
}

func TestSuiteCatchesEveryMutant(t *testing.T) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fault\tcaught by\tbecause")
	covered := make(map[string]bool)
	for _, mu := range slices.Concat(receiveMutants, settleMutants, deadMutants, lostMutants, planMutants) {
		failed, skipped, said := consumertest.RunCase(t, mu.caught, configOfMutant(mu))
		require.False(t, skipped, "%s: %s was skipped: %s", mu.fault, mu.caught, said)
		require.True(t, failed, "%s: not caught by %s", mu.fault, mu.caught)
		covered[mu.caught] = true
		fmt.Fprintf(w, "%s\t%s\t%s\n", mu.fault, mu.caught, reason(said))
	}
	require.NoError(t, w.Flush())
	t.Logf("%s", "\n"+table.String())
	for _, name := range consumertest.CaseNames() {
		require.True(t, covered[name], "no mutant shows that %s can fail", name)
	}
}

// reason is the message of a failed assertion.
func reason(said string) string {
	_, said, _ = strings.Cut(said, "Messages:")
	return strings.Join(strings.Fields(said), " ")
}

func TestSuitePassesInVirtualTime(t *testing.T) {
	for _, moves := range []bool{false, true} {
		for _, name := range consumertest.CaseNames() {
			mu := mutant{caught: name, make: func(b *consumertest.Broker, c *consumertest.Config) {
				if moves {
					movingOnOpen(b, c)
				}
			}}
			failed, skipped, said := consumertest.RunCase(t, name, configOfMutant(mu))
			require.False(t, failed || skipped, "%s: %s", name, said)
		}
	}
}

// movingOnOpen has every new member move what the others have, as a rebalance does.
func movingOnOpen(b *consumertest.Broker, c *consumertest.Config) {
	open := c.Open
	c.Open = func(tb testing.TB) consumer.Source {
		b.Cut()
		return open(tb)
	}
}

// wrap has every Source that c opens changed by f.
func wrap(c *consumertest.Config, f func(s consumer.Source) consumer.Source) {
	open := c.Open
	c.Open = func(tb testing.TB) consumer.Source { return f(open(tb)) }
}

// receiving is a Source with another Receive.
type receiving struct {
	consumer.Source
	receive func(ctx context.Context, max int) ([]consumer.Delivery, error)
}

func (s receiving) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	return s.receive(ctx, max)
}

func onReceive(f func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error)) func(*consumertest.Broker, *consumertest.Config) {
	return func(_ *consumertest.Broker, c *consumertest.Config) {
		wrap(c, func(s consumer.Source) consumer.Source {
			return receiving{s, func(ctx context.Context, max int) ([]consumer.Delivery, error) { return f(s, ctx, max) }}
		})
	}
}

// onDelivery changes each delivery.
func onDelivery(f func(b *consumertest.Broker, d *consumer.Delivery)) func(*consumertest.Broker, *consumertest.Config) {
	return func(b *consumertest.Broker, c *consumertest.Config) {
		onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
			ds, err := s.Receive(ctx, max)
			for i := range ds {
				f(b, &ds[i])
			}
			return ds, err
		})(b, c)
	}
}

// closing is a Source with another Close.
type closing struct {
	consumer.Source
	close func(ctx context.Context) error
}

func (s closing) Close(ctx context.Context) error { return s.close(ctx) }

func drop(ds []consumer.Delivery, which func(d consumer.Delivery) bool) []consumer.Delivery {
	return slices.DeleteFunc(ds, func(d consumer.Delivery) bool {
		return which(d) && d.Ack(context.Background()) == nil
	})
}

var errMutant = errors.New("mutant")
