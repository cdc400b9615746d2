package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
)

// runIdemq consumes with idemq. Source and store are wrapped to tell the parent where the message is on
// its way; they change nothing.
func runIdemq(ctx context.Context, a *assignment, rep *reporter, log *slog.Logger) error {
	b, err := a.Servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	client := redis.NewClient(&redis.Options{Addr: a.Servers.Redis})
	defer client.Close()
	w := &watch{rep: rep, orders: make(map[dedup.Fingerprint]string), ran: make(map[place]bool)}
	store := &watchedStore{Store: redisstore.New(client, &redisstore.Options{Prefix: a.Group + ":", Logger: log}), w: w}
	guard, err := dedup.New(a.Group, store, &dedup.Options{Lease: lease, Logger: log})
	if err != nil {
		return err
	}
	source, err := b.openShort(a.Topic, a.Group, log)
	if err != nil {
		return err
	}
	c, err := consumer.New(&watchedSource{Source: source, w: w}, guard, w.handle, &consumer.Options{
		Policy: consumer.Policy{Backoff: shortDelays[:1]},
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// watch knows which order is behind a delivery and behind a record.
type watch struct {
	rep *reporter

	mu     sync.Mutex
	orders map[dedup.Fingerprint]string // a store sees no IDs, but the fingerprint of the body
	ran    map[place]bool               // a handler has had this copy in this process
}

func (w *watch) handle(ctx context.Context, m *consumer.Message) error {
	at := placeOf(m)
	w.mu.Lock()
	w.ran[at] = true
	w.mu.Unlock()
	err := handleOrder(ctx, w.rep, m.ID, at)
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
	*redisstore.Store
	w *watch
}

func (s *watchedStore) Finish(ctx context.Context, in []dedup.FinishRequest, out []error) error {
	if err := s.Store.Finish(ctx, in, out); err != nil {
		return err
	}
	var done []string
	s.w.mu.Lock()
	for i := range in {
		if in[i].State == dedup.Done && (out[i] == nil || errors.Is(out[i], dedup.ErrRecordLost)) {
			done = append(done, s.w.orders[in[i].Fingerprint])
		}
	}
	s.w.mu.Unlock()
	if len(done) == 0 {
		return nil
	}
	_, err := s.w.rep.tell(ctx, report{Kind: verdict, Orders: done})
	return err
}
