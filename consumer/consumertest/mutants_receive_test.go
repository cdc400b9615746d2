package consumertest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
)

var receiveMutants = []mutant{
	{"one of 700 messages is dropped", "EveryMessageIsDelivered", func(b *consumertest.Broker, c *consumertest.Config) {
		var n atomic.Int32
		onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
			for {
				ds, err := s.Receive(ctx, max)
				ds = drop(ds, func(consumer.Delivery) bool { return n.Add(1) == 700 })
				if err != nil || len(ds) > 0 {
					return ds, err
				}
			}
		})(b, c)
	}},
	{"no body arrives as an empty one", "MessageArrivesAsItWasPublished", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		d.Body = append([]byte{}, d.Body...)
	})},
	{"headers end at their first NUL", "MessageArrivesAsItWasPublished", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		for k, v := range d.Headers {
			d.Headers[k], _, _ = strings.Cut(v, "\x00")
		}
	})},
	{"bodies end at 64 KiB", "MessageArrivesAsItWasPublished", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		d.Body = d.Body[:min(len(d.Body), 1<<16)]
	})},
	{"header names in lower case", "MessageArrivesAsItWasPublished", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		for k, v := range d.Headers {
			delete(d.Headers, k)
			d.Headers[strings.ToLower(k)] = v
		}
	})},
	{"Receive exceeds max", "ReceiveReturnsAtLeastOneAndAtMostMax", onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
		return s.Receive(ctx, max+1)
	})},
	{"Receive returns nothing after a poll", "ReceiveEndsWithItsContextAndLosesNothing", onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
		poll, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		ds, err := s.Receive(poll, max)
		if poll.Err() != nil {
			err = nil
		}
		return ds, err
	})},
	{"Receive outlasts its context", "ReceiveEndsWithItsContextAndLosesNothing", onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
		long, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
		defer cancel()
		return s.Receive(long, max)
	})},
	{"an ended context takes a message along", "ReceiveEndsWithItsContextAndLosesNothing", onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
		if err := ctx.Err(); err == context.Canceled {
			ds, _ := s.Receive(context.WithoutCancel(ctx), 1)
			drop(ds, func(consumer.Delivery) bool { return true })
			return nil, err
		}
		return s.Receive(ctx, max)
	})},
	{"Made is true of an application's ID", "MadeTellsWhoseIDItIs", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		d.Made = true
	})},
	{"Made is false of coordinates", "MadeTellsWhoseIDItIs", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		d.ID = "topic/0/17"
	})},
	{"a batch is delivered backwards", "OrderIsKeptPerLane", onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
		ds, err := s.Receive(ctx, max)
		slices.Reverse(ds)
		return ds, err
	})},
	{"lanes are missing", "OrderIsKeptPerLane", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
		d.Lane = ""
	})},
}

// planning is a Source with another Plan.
type planning struct {
	consumer.Source
	plan func(p consumer.Policy) (consumer.Plan, error)
}

func (s planning) Plan(p consumer.Policy) (consumer.Plan, error) { return s.plan(p) }

func onPlan(f func(p *consumer.Plan, err *error)) func(*consumertest.Broker, *consumertest.Config) {
	return func(_ *consumertest.Broker, c *consumertest.Config) {
		wrap(c, func(s consumer.Source) consumer.Source {
			return planning{s, func(p consumer.Policy) (consumer.Plan, error) {
				plan, err := s.Plan(p)
				f(&plan, &err)
				return plan, err
			}}
		})
	}
}

var planMutants = []mutant{
	{"Plan leaves MaxCrashes zero", "PlanFillsZeroFieldsAndKeepsTheOthers", onPlan(func(p *consumer.Plan, _ *error) { p.MaxCrashes = 0 })},
	{"Plan knows better than the policy", "PlanFillsZeroFieldsAndKeepsTheOthers", onPlan(func(p *consumer.Plan, _ *error) { p.Backoff = []time.Duration{time.Second} })},
	{"a term of Why has no tag", "PlanExplainsItsWindow", onPlan(func(p *consumer.Plan, _ *error) { p.Why += " + slack 1m0s" })},
	{"Window is below the backoff", "PlanExplainsItsWindow", onPlan(func(p *consumer.Plan, _ *error) { p.Window = time.Second })},
	{"negative policies are accepted", "PlanRefusesWhatCannotBeMeant", onPlan(func(_ *consumer.Plan, err *error) { *err = nil })},
	{"Plan waits for Receive", "PlanMayBeCalledBesideReceive", func(_ *consumertest.Broker, c *consumertest.Config) {
		wrap(c, func(s consumer.Source) consumer.Source {
			lock := make(chan struct{}, 1)
			return planning{
				receiving{s, func(ctx context.Context, max int) ([]consumer.Delivery, error) {
					lock <- struct{}{}
					defer func() { <-lock }()
					return s.Receive(ctx, max)
				}},
				func(p consumer.Policy) (consumer.Plan, error) {
					time.Sleep(time.Millisecond) // Receive comes first
					lock <- struct{}{}
					defer func() { <-lock }()
					return s.Plan(p)
				},
			}
		})
	}},
	{"deliveries have no Scope", "ScopeIsThatOfThePlan", onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) { d.Scope = "" })},
	{"every member has a Scope of its own", "ScopeIsThatOfThePlan", func(_ *consumertest.Broker, c *consumertest.Config) {
		open, n := c.Open, 0
		c.Open = func(tb testing.TB) consumer.Source {
			n++
			own, s := fmt.Sprint("test/", n), open(tb)
			return planning{
				receiving{s, func(ctx context.Context, max int) ([]consumer.Delivery, error) {
					ds, err := s.Receive(ctx, max)
					for _, d := range ds {
						d.Scope = own
					}
					return ds, err
				}},
				func(p consumer.Policy) (consumer.Plan, error) {
					plan, err := s.Plan(p)
					plan.Scope = own
					return plan, err
				},
			}
		}
	}},
}
