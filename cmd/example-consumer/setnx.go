package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"
)

// setnxLoop is deduplication as most tutorials show it.
type setnxLoop struct {
	a     *assignment
	rep   *reporter
	redis *redis.Client
}

// runSETNX runs the loop anew after every error, as a supervisor would, so that what was not
// acknowledged comes again.
func runSETNX(ctx context.Context, a *assignment, rep *reporter, log *slog.Logger) error {
	l := &setnxLoop{a: a, rep: rep, redis: redis.NewClient(&redis.Options{Addr: a.Redis})}
	defer l.redis.Close()
	for ctx.Err() == nil {
		if err := l.consume(ctx); err != nil && ctx.Err() == nil {
			log.Warn("setnx: the loop ended and begins anew", "err", err)
		}
	}
	return nil
}

func (l *setnxLoop) consume(ctx context.Context) error {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: l.a.Brokers, GroupID: l.a.Group, Topic: l.a.Topic, StartOffset: kafka.FirstOffset,
		SessionTimeout: sessionTimeout, RebalanceTimeout: sessionTimeout, HeartbeatInterval: sessionTimeout / 10,
		JoinGroupBackoff: 200 * time.Millisecond, MaxWait: 100 * time.Millisecond,
	})
	defer r.Close()
	for {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return err
		}
		id := header(&m, "message-id")
		at := place{m.Partition, m.Offset}
		if _, err := l.rep.tell(ctx, report{Kind: received, Orders: []string{id}}); err != nil {
			return err
		}

		// The loop itself: three steps, and a gap after the first.
		first, err := l.redis.SetNX(ctx, l.a.Group+":"+id, 1, 24*time.Hour).Result()
		if err != nil {
			return err
		}
		if first {
			if err := l.handle(ctx, id, at); err != nil {
				return err // the key stays behind: the next delivery takes the order for done
			}
		}
		if _, err := l.rep.tell(ctx, report{Kind: ack, Orders: []string{id}, At: at, Ran: first}); err != nil {
			return err
		}
		if err := r.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}

func (l *setnxLoop) handle(ctx context.Context, id string, at place) error {
	return handleOrder(ctx, l.rep, id, at)
}

var (
	errMadeToFail = errors.New("the payment service does not answer")
	errPoison     = errors.New("the order has no items")
)

// handleOrder is the handler of both subjects. Its effect is a call to the parent. It is not
// interrupted, since an effect that was sent but not waited for would be counted and denied.
func handleOrder(ctx context.Context, rep *reporter, id string, at place) error {
	ctx = context.WithoutCancel(ctx)
	a, err := rep.tell(ctx, report{Kind: begin, Orders: []string{id}, At: at})
	if err != nil {
		return err
	}
	switch a.Do {
	case failNow:
		return errMadeToFail
	case failForAye:
		return errPoison
	}
	_, err = rep.tell(ctx, report{Kind: effect, Orders: []string{id}})
	return err
}

func header(m *kafka.Message, name string) string {
	for _, h := range m.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
