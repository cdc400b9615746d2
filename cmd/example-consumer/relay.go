package main

import (
	"context"
	"database/sql"
	"log/slog"
	"maps"
	"strconv"

	"github.com/idemq/idemq/outbox"
)

// runRelay is the relay of a desk's outbox. Its publisher is wrapped to tell the parent where a batch is on its way,
// and to number the copies; it changes nothing else.
func runRelay(ctx context.Context, a *assignment, rep *reporter, log *slog.Logger) error {
	b, err := a.Servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	p, err := b.publisher()
	if err != nil {
		return err
	}
	defer p.Close()
	db, err := sql.Open("sqlite", a.Outbox)
	if err != nil {
		return err
	}
	defer db.Close()
	out, err := outbox.New(db, outbox.SQLite, nil)
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(out, &watchedPublisher{p, rep}, &outbox.RelayOptions{Batch: relayBatch, Lease: lease, Logger: log})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// relayBatch is small, and so is what is published again because of a kill, although much gathers while no relay lives.
const relayBatch = 16

// watchedPublisher reports what is about to be published, and what the broker has before the relay hears of it.
type watchedPublisher struct {
	outbox.Publisher
	rep *reporter
}

func (p *watchedPublisher) Publish(ctx context.Context, ms []outbox.Message, errs []error) error {
	next := report{Kind: publishing}
	for _, m := range ms {
		next.Orders = append(next.Orders, m.ID)
	}
	a, err := p.rep.tell(ctx, next)
	if err != nil {
		return err
	}
	numbered := make([]outbox.Message, len(ms))
	for i, m := range ms {
		m.Headers = maps.Clone(m.Headers)
		m.Headers[copyHeader] = strconv.Itoa(int(a.First) + i)
		numbered[i] = m
	}
	if err := p.Publisher.Publish(ctx, numbered, errs); err != nil {
		return err
	}
	done := report{Kind: published}
	for i, m := range ms {
		if errs[i] == nil {
			done.Orders = append(done.Orders, m.ID)
			done.Copies = append(done.Copies, a.First+place(i))
		}
	}
	_, err = p.rep.tell(ctx, done)
	return err
}
