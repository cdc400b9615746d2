package consumertest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/consumer/consumertest"
	"github.com/idemq/idemq/dedup"
)

// settler is a Settler with other words where they are not nil.
type settler struct {
	consumer.Settler
	ack, giveBack func(ctx context.Context) error
	retry         func(ctx context.Context, d time.Duration, cause error) error
	dead          func(ctx context.Context, redrive int, cause error) error
}

func (s settler) Ack(ctx context.Context) error {
	if s.ack == nil {
		return s.Settler.Ack(ctx)
	}
	return s.ack(ctx)
}

func (s settler) GiveBack(ctx context.Context) error {
	if s.giveBack == nil {
		return s.Settler.GiveBack(ctx)
	}
	return s.giveBack(ctx)
}

func (s settler) Retry(ctx context.Context, d time.Duration, cause error) error {
	if s.retry == nil {
		return s.Settler.Retry(ctx, d, cause)
	}
	return s.retry(ctx, d, cause)
}

func (s settler) DeadLetter(ctx context.Context, redrive int, cause error) error {
	if s.dead == nil {
		return s.Settler.DeadLetter(ctx, redrive, cause)
	}
	return s.dead(ctx, redrive, cause)
}

// onSettle gives each delivery the words that f returns; the true ones are d's.
func onSettle(f func(b *consumertest.Broker, d consumer.Delivery) settler) func(*consumertest.Broker, *consumertest.Config) {
	return onDelivery(func(b *consumertest.Broker, d *consumer.Delivery) {
		s := f(b, *d)
		s.Settler = d.Settler
		d.Settler = s
	})
}

// around has f stand around every word.
func around(f func(d consumer.Delivery, say func() error) error) func(*consumertest.Broker, *consumertest.Config) {
	return onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
		return settler{
			ack:      func(ctx context.Context) error { return f(d, func() error { return d.Ack(ctx) }) },
			giveBack: func(ctx context.Context) error { return f(d, func() error { return d.GiveBack(ctx) }) },
			retry: func(ctx context.Context, after time.Duration, cause error) error {
				return f(d, func() error { return d.Retry(ctx, after, cause) })
			},
		}
	})
}

// republish stands for a Retry by a copy, edited, at the end of the queue.
func republish(b *consumertest.Broker, d consumer.Delivery, after time.Duration, edit func(m *consumer.Message)) error {
	m := *d.Message
	m.Headers = maps.Clone(m.Headers)
	edit(&m)
	time.AfterFunc(after, func() { b.Publish(m) })
	return d.Ack(context.Background())
}

var settleMutants = []mutant{
	{"a second word is accepted", "SecondSettleIsAnErrorAndChangesNothing", around(func(_ consumer.Delivery, say func() error) error {
		_ = say()
		return nil
	})},
	{"settled is looked at, then set", "OneOfManySettlesAtOnceWins", func(b *consumertest.Broker, c *consumertest.Config) {
		onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) {
			var said atomic.Bool
			once := func(say func() error) error {
				if said.Load() {
					return errMutant
				}
				time.Sleep(time.Millisecond)
				said.Store(true)
				_ = say()
				return nil
			}
			s := *d
			d.Settler = settler{
				Settler:  s.Settler,
				ack:      func(ctx context.Context) error { return once(func() error { return s.Ack(ctx) }) },
				giveBack: func(ctx context.Context) error { return once(func() error { return s.GiveBack(ctx) }) },
			}
		})(b, c)
	}},
	{"a word fails while another is said", "SettlesMayComeFromManyGoroutines", func(b *consumertest.Broker, c *consumertest.Config) {
		var saying atomic.Int32
		around(func(_ consumer.Delivery, say func() error) error {
			defer saying.Add(-1)
			if saying.Add(1) > 1 {
				return errMutant
			}
			time.Sleep(time.Millisecond)
			return say()
		})(b, c)
	}},
	{"Ack is forgotten", "AcknowledgedMessageDoesNotComeAgain", onSettle(func(*consumertest.Broker, consumer.Delivery) settler {
		return settler{ack: func(context.Context) error { return nil }}
	})},
	{"Close acknowledges everything", "UnsettledMessageComesAgainAfterClose", func(b *consumertest.Broker, c *consumertest.Config) {
		wrap(c, func(s consumer.Source) consumer.Source {
			var all []consumer.Delivery
			return closing{
				receiving{s, func(ctx context.Context, max int) ([]consumer.Delivery, error) {
					ds, err := s.Receive(ctx, max)
					all = append(all, ds...)
					return ds, err
				}},
				func(ctx context.Context) error {
					drop(all, func(consumer.Delivery) bool { return true })
					return s.Close(ctx)
				},
			}
		})
	}},
	{"Ack moves the position past everything before it", "WatermarkNeverPassesAnUnsettledMessage", func(b *consumertest.Broker, c *consumertest.Config) {
		var all []consumer.Delivery
		onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
			n := len(all)
			all = append(all, d)
			return settler{ack: func(ctx context.Context) error {
				for _, before := range all[:n] {
					_ = before.Ack(ctx)
				}
				_ = d.Ack(ctx)
				return nil
			}}
		})(b, c)
	}},
	{"Retry's copy has another ID", "IDIsTheSameOnEveryDelivery", onSettle(func(b *consumertest.Broker, d consumer.Delivery) settler {
		return settler{retry: func(_ context.Context, after time.Duration, _ error) error {
			return republish(b, d, after, func(m *consumer.Message) { m.ID += "'" })
		}}
	})},
	{"Retry does not wait", "RetryBringsTheMessageAgainNotBeforeItsDelay", onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
		return settler{retry: func(ctx context.Context, _ time.Duration, cause error) error { return d.Retry(ctx, 0, cause) }}
	})},
	{"Retry knows one level only", "RetryBringsTheMessageAgainNotBeforeItsDelay", onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
		return settler{retry: func(ctx context.Context, _ time.Duration, cause error) error {
			return d.Retry(ctx, 10*time.Millisecond, cause)
		}}
	})},
	{"Retry's copy lacks the redrive number", "RetryKeepsTheMessage", onSettle(func(b *consumertest.Broker, d consumer.Delivery) settler {
		return settler{retry: func(_ context.Context, after time.Duration, _ error) error {
			return republish(b, d, after, func(m *consumer.Message) { delete(m.Headers, consumer.RedriveHeader) })
		}}
	})},
	{"Retry's copy comes from another topic", "RetryKeepsTheMessage", onSettle(func(b *consumertest.Broker, d consumer.Delivery) settler {
		return settler{retry: func(_ context.Context, after time.Duration, _ error) error {
			return republish(b, d, after, func(m *consumer.Message) { m.Topic += ".wait" })
		}}
	})},
	{"Receive waits until a retry is due", "RetryHoldsNobodyElseUp", func(b *consumertest.Broker, c *consumertest.Config) {
		var until atomic.Int64
		onReceive(func(s consumer.Source, ctx context.Context, max int) ([]consumer.Delivery, error) {
			time.Sleep(time.Until(time.Unix(0, until.Load())))
			ds, err := s.Receive(ctx, max)
			for i := range ds {
				d := ds[i]
				ds[i].Settler = settler{Settler: d.Settler, retry: func(ctx context.Context, after time.Duration, cause error) error {
					until.Store(time.Now().Add(after).UnixNano())
					return d.Retry(ctx, after, cause)
				}}
			}
			return ds, err
		})(b, c)
	}},
	{"the 16th Retry ends a message in progress", "RetryInProgressNeverEndsAMessage", endsAfter(16, dedup.ErrInProgress)},
	{"GiveBack takes a minute", "GiveBackBringsTheMessageAgainAtOnce", onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
		return settler{giveBack: func(ctx context.Context) error { return d.Retry(ctx, time.Minute, nil) }}
	})},
	{"the 16th GiveBack ends a message", "GiveBackBringsTheMessageAgainAtOnce", endsAfter(16, nil)},
}

// endsAfter dead-letters a message that was handed back n times.
func endsAfter(n int, cause error) func(*consumertest.Broker, *consumertest.Config) {
	return func(b *consumertest.Broker, c *consumertest.Config) {
		var mu sync.Mutex
		back := make(map[string]int)
		onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
			id := d.ID
			end := func(ctx context.Context, otherwise func() error) error {
				mu.Lock()
				back[id]++
				over := back[id] >= n
				mu.Unlock()
				if !over {
					return otherwise()
				}
				return errors.Join(d.DeadLetter(ctx, 1, errMutant), d.Ack(ctx))
			}
			if cause == nil {
				return settler{giveBack: func(ctx context.Context) error { return end(ctx, func() error { return d.GiveBack(ctx) }) }}
			}
			return settler{retry: func(ctx context.Context, after time.Duration, why error) error {
				if !errors.Is(why, cause) {
					return d.Retry(ctx, after, why)
				}
				return end(ctx, func() error { return d.Retry(ctx, after, why) })
			}}
		})(b, c)
	}
}

// onDead changes the dead letters that are found.
func onDead(f func(m *consumer.Message)) func(*consumertest.Broker, *consumertest.Config) {
	return func(b *consumertest.Broker, c *consumertest.Config) {
		c.DeadLetters = func(testing.TB) []consumer.Message {
			ms := b.DeadLetters()
			for i := range ms {
				f(&ms[i])
			}
			return ms
		}
	}
}

var deadMutants = []mutant{
	{"a dead letter has no cause", "DeadLetterIsACopyWithItsCauseAndOrigin", onDead(func(m *consumer.Message) { delete(m.Headers, consumer.CauseHeader) })},
	{"a dead letter is named by the broker's ID", "DeadLetterIsACopyWithItsCauseAndOrigin", onDead(func(m *consumer.Message) { m.Headers[consumer.IDHeader] = m.ID })},
	{"a dead letter counts its own redrives", "DeadLetterIsACopyWithItsCauseAndOrigin", onDead(func(m *consumer.Message) { m.Headers[consumer.RedriveHeader] = "1" })},
	{"two copies of a dead letter", "DeadLetterIsACopyWithItsCauseAndOrigin", onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
		return settler{dead: func(ctx context.Context, redrive int, cause error) error {
			return errors.Join(d.DeadLetter(ctx, redrive, cause), d.DeadLetter(ctx, redrive, cause))
		}}
	})},
	{"a dead letter lacks the message's own headers", "DeadLetterKeepsTheMessage", onDead(func(m *consumer.Message) {
		maps.DeleteFunc(m.Headers, func(k, _ string) bool { return !strings.Contains(k, "idemq") && k != "consumertest-number" })
	})},
	{"a dead letter of no body has an empty one", "DeadLetterKeepsTheMessage", onDead(func(m *consumer.Message) { m.Body = append([]byte{}, m.Body...) })},
	{"a dead letter's headers are text", "DeadLetterKeepsTheMessage", onDead(func(m *consumer.Message) {
		for k, v := range m.Headers {
			m.Headers[k] = strings.ToValidUTF8(v, "?")
		}
	})},
	{"DeadLetter acknowledges", "DeadLetterIsNotTheLastWord", onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
		return settler{dead: func(ctx context.Context, redrive int, cause error) error {
			return errors.Join(d.DeadLetter(ctx, redrive, cause), d.Ack(ctx))
		}}
	})},
}

// onOpen changes the n-th Source, 1 the first.
func onOpen(n int, f func(b *consumertest.Broker, s consumer.Source) consumer.Source) func(*consumertest.Broker, *consumertest.Config) {
	return func(b *consumertest.Broker, c *consumertest.Config) {
		opened := 0
		wrap(c, func(s consumer.Source) consumer.Source {
			if opened++; opened == n {
				return f(b, s)
			}
			return s
		})
	}
}

var never = onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) { d.Lost = make(chan struct{}) })

var lostMutants = []mutant{
	{"the second member gets nothing", "MembersShareTheWorkAndLoseNothing", onOpen(2, func(_ *consumertest.Broker, s consumer.Source) consumer.Source {
		return receiving{s, func(ctx context.Context, _ int) ([]consumer.Delivery, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
	})},
	{"a second member loses its first message", "MembersShareTheWorkAndLoseNothing", onOpen(2, func(_ *consumertest.Broker, s consumer.Source) consumer.Source {
		first := true
		return receiving{s, func(ctx context.Context, max int) ([]consumer.Delivery, error) {
			for {
				ds, err := s.Receive(ctx, max)
				if err == nil && first {
					first = false
					drop(slices.Clone(ds), func(consumer.Delivery) bool { return true })
					continue
				}
				return ds, err
			}
		}}
	})},
	{"Lost stays open in a rebalance", "LostClosesWhenAMessageMovesToAnotherMember", func(b *consumertest.Broker, c *consumertest.Config) {
		movingOnOpen(b, c)
		never(b, c)
	}},
	{"Close hangs", "CloseEndsWithinItsContext", func(_ *consumertest.Broker, c *consumertest.Config) {
		wrap(c, func(s consumer.Source) consumer.Source {
			return closing{s, func(ctx context.Context) error {
				<-time.After(time.Hour)
				return s.Close(ctx)
			}}
		})
	}},
	{"Close before Receive is an error", "CloseEndsWithinItsContext", onOpen(1, func(_ *consumertest.Broker, s consumer.Source) consumer.Source {
		return closing{s, func(context.Context) error { return errMutant }}
	})},
	{"Lost stays open when the connection breaks", "CutLosesSessionsAndNoMessage", never},
	{"what a broken connection held is lost", "CutLosesSessionsAndNoMessage", func(b *consumertest.Broker, c *consumertest.Config) {
		var all []consumer.Delivery
		onDelivery(func(_ *consumertest.Broker, d *consumer.Delivery) { all = append(all, *d) })(b, c)
		c.Cut = func(testing.TB) {
			drop(all[3:4], func(consumer.Delivery) bool { return true })
			b.Cut()
		}
	}},
	{"a word on a lost session is an error", "SettleOnALostSessionIsANoOp", around(func(d consumer.Delivery, say func() error) error {
		select {
		case <-d.Lost:
			return errMutant
		default:
			return say()
		}
	})},
	{"an Ack on a lost session counts in the new one", "SettleOnALostSessionIsANoOp", func(b *consumertest.Broker, c *consumertest.Config) {
		latest := make(map[string]consumer.Delivery)
		onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
			id := d.ID
			latest[id] = d
			return settler{ack: func(ctx context.Context) error { return latest[id].Ack(ctx) }}
		})(b, c)
	}},
	{"a retry waits in the memory of a session", "RetrySurvivesACut", func(b *consumertest.Broker, c *consumertest.Config) {
		var cut atomic.Bool
		onSettle(func(_ *consumertest.Broker, d consumer.Delivery) settler {
			return settler{retry: func(ctx context.Context, after time.Duration, _ error) error {
				m := *d.Message
				time.AfterFunc(after, func() {
					if !cut.Load() {
						b.Publish(m)
					}
				})
				return d.Ack(ctx)
			}}
		})(b, c)
		c.Cut = func(testing.TB) { cut.Store(true); b.Cut() }
	}},
}
