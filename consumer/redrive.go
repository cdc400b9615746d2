package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Redriver sends a dead-lettered message back to where it first came from, under the name and
// the redrive number that its dead letter carries, so that it is no duplicate. The
// Publisher of every broker package is one. It may be called again after an error.
type Redriver interface {
	Redrive(ctx context.Context, m *Message) error
}

// redriveIdle is for how long nothing must come from the dead letters before a redrive ends.
const redriveIdle = 5 * time.Second

// Redrive redrives the messages of deadLetters that match (nil: all of them), named as their
// consumer named them, and acknowledges each once its copy is confirmed. It holds the others and
// gives them back at the end, which is when nothing has come for 5s on a live session, or when ctx
// ends, or at the first message that cannot be sent. It closes deadLetters, a source of the topic or queue
// of dead letters: on Kafka and RocketMQ in a group of its own, kafka.NewSource(cluster, "billing-redrive", []string{"orders.dlt"}, nil) say.
//
// n is how many were sent. Redriving a dead letter twice does no harm: both copies carry one
// number, and only one of them runs. A message that is dead-lettered anew meanwhile is held like
// those that do not match. All that are held count as unsettled: raise the source's limit
// (SourceOptions.MaxInFlight, on RabbitMQ Prefetch) above the number of dead letters to look through all of them.
func Redrive(ctx context.Context, deadLetters Source, to Redriver, match func(*Message) bool) (n int, err error) {
	switch {
	case deadLetters == nil:
		return 0, errors.New("consumer: Redrive: deadLetters is nil; pass a source of the dead-letter destination")
	case to == nil:
		return 0, errors.New("consumer: Redrive: the Redriver is nil; pass a Publisher of the broker package")
	}
	r := redrive{source: deadLetters, to: to, match: match, sent: make(map[sentBack]int)}
	err = r.run(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, d := range r.others {
		if gerr := d.GiveBack(closing); gerr != nil { // it comes again in any case
			err = errors.Join(err, fmt.Errorf("consumer: redrive: give back %q: %w", short(d.ID), gerr))
		}
	}
	if cerr := deadLetters.Close(closing); cerr != nil {
		err = errors.Join(err, fmt.Errorf("consumer: redrive: close the source: %w", cerr))
	}
	return r.n, err
}

type redrive struct {
	source Source
	to     Redriver
	match  func(*Message) bool
	others []Delivery
	sent   map[sentBack]int // under which number
	n      int
}

type sentBack struct{ origin, id string }

func (r *redrive) run(ctx context.Context) error {
	if _, err := r.source.Plan(Policy{}); err != nil {
		return fmt.Errorf("consumer: redrive: %w", err)
	}
	for {
		live := connected(r.source)
		waiting, cancel := context.WithTimeout(ctx, redriveIdle)
		ds, err := r.source.Receive(waiting, receiveBatch)
		idle := err != nil && waiting.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			r.others = append(r.others, ds...)
			return nil
		case idle && live && connected(r.source): // all the while
			return nil
		case idle:
			continue
		case err != nil:
			return fmt.Errorf("consumer: redrive: receive: %w", err)
		}
		for i, d := range ds {
			if err := r.one(ctx, d); err != nil {
				r.others = append(r.others, ds[i+1:]...)
				return err
			}
		}
	}
}

// one sends d back, or holds it.
func (r *redrive) one(ctx context.Context, d Delivery) error {
	named := d.Identify(DefaultRules(), d.Made)
	k := sentBack{d.Headers[OriginHeader], d.ID}
	number, before := r.sent[k]
	failedAgain := before && d.Redrive > number
	if !named || failedAgain || r.match != nil && !r.match(d.Message) {
		r.others = append(r.others, d)
		return nil
	}
	if err := r.to.Redrive(ctx, d.Message); err != nil {
		r.others = append(r.others, d)
		return fmt.Errorf("consumer: redrive: %w", err)
	}
	r.n++
	r.sent[k] = d.Redrive
	if err := d.Ack(ctx); err != nil {
		return fmt.Errorf("consumer: redrive: %q was sent, but its dead letter stays: %w", short(d.ID), err)
	}
	return nil
}

// connected is true of a source that does not tell.
func connected(s Source) bool {
	k, ok := s.(Connector)
	return !ok || k.Connected()
}

// elsewhere acknowledges t, and reports so, if it is a redrive of what another group of its topic gave up. This
// group had the message when it was published; its record of that may have expired, so t would run here, too.
func (e *engine) elsewhere(t *task) bool {
	scope := t.redriveOf()
	if scope == "" || scope == t.Scope || slices.Contains(e.c.opts.FormerScopes, scope) {
		return false
	}
	if unsaid, ok := e.quiet.allow("redrive"); ok {
		e.log.Info("consumer: a message was redriven for another group and is not run here; if that group has now this one's name, name it in Options.FormerScopes",
			"scope", t.Scope, "id", short(t.Message.ID), "for", short(scope), "and_more", unsaid)
	}
	e.ackDuplicates("redrive_elsewhere", t)
	return true
}
