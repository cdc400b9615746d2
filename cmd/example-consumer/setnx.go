package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
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
	b, err := a.Servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	l := &setnxLoop{a: a, rep: rep, redis: redis.NewClient(&redis.Options{Addr: a.Servers.Redis})}
	defer l.redis.Close()
	for ctx.Err() == nil {
		if err := b.consume(ctx, a.Topic, a.Group, l.each); err != nil && ctx.Err() == nil {
			log.Warn("setnx: the loop ended and begins anew", "err", err)
		}
	}
	return nil
}

// each is what becomes of one message.
func (l *setnxLoop) each(ctx context.Context, id string, at place) error {
	if _, err := l.rep.tell(ctx, report{Kind: received, Orders: []string{id}}); err != nil {
		return err
	}

	// The loop itself: three steps, and a gap after the first.
	first, err := l.redis.SetNX(ctx, l.a.Group+":"+id, 1, 24*time.Hour).Result()
	if err != nil {
		return err
	}
	if first {
		if err := handleOrder(ctx, l.rep, id, at, func() error { return nil }); err != nil {
			return err // the key stays behind: the next delivery takes the order for done
		}
	}
	_, err = l.rep.tell(ctx, report{Kind: ack, Orders: []string{id}, At: at, Ran: first})
	return err // the acknowledgement follows
}

var (
	errMadeToFail = errors.New("the payment service does not answer")
	errPoison     = errors.New("the order has no items")
)

// handleOrder is the handler of all subjects: work, and a call to the parent, which is the effect where work
// has none. It is not interrupted, since an effect that was sent but not waited for would be counted and denied.
func handleOrder(ctx context.Context, rep *reporter, id string, at place, work func() error) error {
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
	if err := work(); err != nil {
		return err
	}
	_, err = rep.tell(ctx, report{Kind: effect, Orders: []string{id}})
	return err
}
