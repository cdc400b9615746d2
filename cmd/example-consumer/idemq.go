package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
)

// runIdemq consumes with idemq. Source and store are wrapped to tell the parent where the message is on
// its way; they change nothing.
func runIdemq(ctx context.Context, a *assignment, rep *reporter, log *slog.Logger) error {
	b, err := a.Servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	open := a.Servers.openNamed
	if a.Subject == txSubject {
		open = a.Servers.openTx
	}
	store, err := open(ctx, a.Group+":", log)
	if err != nil {
		return err
	}
	defer store.close()
	w := &watch{rep: rep, effects: a.Servers.effectsOf(a.Group), orders: make(map[dedup.Fingerprint]string), ran: make(map[place]bool)}
	guard, err := dedup.New(a.Group, &watchedStore{Store: store.Store, w: w}, &dedup.Options{Lease: lease, Logger: log})
	if err != nil {
		return err
	}
	source, err := b.openShort(a.Topic, a.Group, log)
	if err != nil {
		return err
	}
	watched := &watchedSource{Source: source, w: w}
	o := &consumer.Options{Policy: consumer.Policy{Backoff: shortDelays[:1]}}
	var c *consumer.Consumer
	if a.Subject == txSubject {
		c, err = consumer.NewInTx(watched, guard, w.handleInTx, o)
	} else {
		c, err = consumer.New(watched, guard, w.handle, o)
	}
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// watch knows which order is behind a delivery and behind a record.
type watch struct {
	rep     *reporter
	effects effects

	mu     sync.Mutex
	orders map[dedup.Fingerprint]string // a store sees no IDs, but the fingerprint of the body
	ran    map[place]bool               // a handler has had this copy in this process
}

// handle has an effect that is a call to the parent.
func (w *watch) handle(ctx context.Context, m *consumer.Message) error {
	return w.run(ctx, m, func() error { return nil })
}

// handleInTx has an effect that is a row. The call to the parent, after it, is where the child may be killed.
func (w *watch) handleInTx(ctx context.Context, tx *sql.Tx, m *consumer.Message) error {
	return w.run(ctx, m, func() error { return w.effects.add(ctx, tx, m.ID) })
}

func (w *watch) run(ctx context.Context, m *consumer.Message, work func() error) error {
	at := placeOf(m)
	w.mu.Lock()
	w.ran[at] = true
	w.mu.Unlock()
	err := handleOrder(ctx, w.rep, m.ID, at, work)
	if errors.Is(err, errPoison) {
		return consumer.Permanent(err)
	}
	return err
}

func placeOf(m *consumer.Message) place { return placeIn(m.Headers[copyHeader]) }

// watchedSource reports what is received and what is about to be acknowledged.
type watchedSource struct {
	consumer.Source
	w *watch
}

func (s *watchedSource) Receive(ctx context.Context, max int) ([]consumer.Delivery, error) {
	ds, err := s.Source.Receive(ctx, max)
	if len(ds) == 0 {
		return ds, err
	}
	ids := make([]string, len(ds))
	s.w.mu.Lock()
	for i := range ds {
		m := ds[i].Message
		ids[i] = m.Headers[orderHeader] // it has no name yet
		s.w.orders[dedup.FingerprintOf(m.Body)] = ids[i]
		at := placeOf(m)
		delete(s.w.ran, at) // this delivery has not run yet
		ds[i].Settler = &watchedSettler{Settler: ds[i].Settler, w: s.w, order: ids[i], at: at}
	}
	s.w.mu.Unlock()
	if _, e := s.w.rep.tell(context.WithoutCancel(ctx), report{Kind: received, Orders: ids}); e != nil {
		return nil, e
	}
	return ds, err
}

type watchedSettler struct {
	consumer.Settler
	w     *watch
	order string
	at    place
}

func (s *watchedSettler) Ack(ctx context.Context) error {
	s.w.mu.Lock()
	ran := s.w.ran[s.at]
	delete(s.w.ran, s.at)
	s.w.mu.Unlock()
	if _, err := s.w.rep.tell(ctx, report{Kind: ack, Orders: []string{s.order}, At: s.at, Ran: ran}); err != nil {
		return err
	}
	return s.Settler.Ack(ctx)
}

// watchedStore reports verdicts that the store has taken, before anybody acts on them.
type watchedStore struct {
	dedup.Store
	w *watch
}

func (s *watchedStore) Ping(ctx context.Context) error { return s.Store.(dedup.Pinger).Ping(ctx) }

func (s *watchedStore) InTx(ctx context.Context, f dedup.FinishRequest, work func(tx *sql.Tx) error) error {
	if err := s.Store.(dedup.TxStore).InTx(ctx, f, work); err != nil {
		return err
	}
	return s.w.tellVerdicts(ctx, f)
}

func (s *watchedStore) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if err := s.Store.Finish(ctx, in, out); err != nil {
		return err
	}
	var done []dedup.FinishRequest
	for i := range in {
		if in[i].State == dedup.Done && (out[i] == nil || errors.Is(out[i], dedup.ErrRecordLost)) {
			done = append(done, in[i])
		}
	}
	if len(done) == 0 {
		return nil
	}
	return s.w.tellVerdicts(ctx, done...)
}

func (w *watch) tellVerdicts(ctx context.Context, done ...dedup.FinishRequest) error {
	orders := make([]string, len(done))
	w.mu.Lock()
	for i := range done {
		orders[i] = w.orders[done[i].Fingerprint]
	}
	w.mu.Unlock()
	_, err := w.rep.tell(ctx, report{Kind: verdict, Orders: orders})
	return err
}
